"""The judged table of docs/judged-plan.md: every judged task, its arms, differences to tuned plain, and prices.

    python benchmarks/judged_table.py runs/judged runs/judged-search --json benchmarks/results/judged/table.json

Reads rows of `tacit run studies/judged/…` and of `judged_search.py`, and prices.json of the latter; trains and times
nothing. Tasks without judged rows are left out. docs/readme_tables.py makes the tables of the pages from the JSON.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import judged
import judged_search

from tacit.report.numbers import student
from tacit.studies import read_rows

TIMED = {"SAM, 16 rows": "SAM, drawn rows"}  # names of task 1's arms in prices.json


def add_verdicts(task: dict[str, Any], prices: dict[str, float]) -> None:
    """To each arm: means with standard errors, tuned − plain tuned with a 95 % interval, a word, and its price."""
    plain = task["arms"]["plain"]["tuned"]
    for name, arm in task["arms"].items():
        for stage in ("tuned", "untuned"):
            values = list(arm[stage].values())
            arm[f"{stage}_mean"] = [fmean(values), stdev(values) / math.sqrt(len(values))]
        if name != "plain":
            differences = [arm["tuned"][seed] - plain[seed] for seed in plain]
            half = student(0.95, len(differences) - 1) * stdev(differences) / math.sqrt(len(differences))
            arm["minus_plain"] = [fmean(differences), half]
            gain = -fmean(differences) if task["lower_is_better"] else fmean(differences)
            arm["verdict"] = "gains" if gain > half else "loses" if gain < -half else "tie"
        arm["price"] = prices.get(TIMED.get(name, name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grids", type=Path, help="the folder of rows of task 1")
    parser.add_argument("searches", type=Path, help="the folder of judged_search.py")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    tasks = judged.results(read_rows(given.grids)) | judged_search.results(given.searches)
    timed = given.searches / "prices.json"
    prices = json.loads(timed.read_text()) if timed.exists() else {}
    for name, task in tasks.items():
        add_verdicts(task, prices.get("mnist1d" if name in judged.TASKS else name, {}))
        print(name)
        for arm, entry in task["arms"].items():
            mean, error = entry["tuned_mean"]
            difference = "{:+.3f} ± {:.3f}".format(*entry["minus_plain"]) if "minus_plain" in entry else ""
            line = f"  {arm:24} {mean:.3f} ± {error:.3f}  {difference:18} {entry.get('verdict', ''):6}"
            print(f"{line} untuned {entry['untuned_mean'][0]:.3f}  price {entry['price']}")
    if given.json:
        given.json.write_text(json.dumps({"prices": prices, "tasks": tasks}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
