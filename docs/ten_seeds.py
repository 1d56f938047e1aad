"""Write the verdicts of the stored ten-seed run into the package: `python docs/ten_seeds.py`."""

from __future__ import annotations

import json
from pathlib import Path

from tacit.report import build_report, read_parts
from tacit.report.page import answer
from tacit.report.ten_seeds import FILE, as_json

RESULTS = Path(__file__).parent / "results/mnist1d"


def text() -> str:
    report = build_report(read_parts([RESULTS]))
    return json.dumps(as_json(report, answer(report)), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
