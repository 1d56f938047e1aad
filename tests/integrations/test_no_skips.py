"""`make test-integrations` fails where the other targets skip."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = {
    "a module": 'import pytest\npytest.importorskip("no_such_trainer")\n\ndef test_it(): ...\n',
    "a test": 'import pytest\n\ndef test_it():\n    pytest.skip("not here")\n',
    "a parameter": 'import pytest\n\n@pytest.mark.skipif(True, reason="not here")\ndef test_it(): ...\n',
}


@pytest.mark.parametrize("name", TESTS)
@pytest.mark.parametrize("forbidden", [True, False])
def test_a_skip_is_a_failure_where_none_is_allowed(name: str, forbidden: bool, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((Path(__file__).parent / "conftest.py").read_text())
    (tmp_path / "test_skipped.py").write_text(TESTS[name] + "\n\ndef test_other(): ...\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        env={**os.environ, "TACIT_NO_SKIPS": "1" if forbidden else "0"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ("no skipped test" in done.stdout) == forbidden, done.stdout
    # 1: a test failed, 2: collecting did, 5: nothing was collected
    assert (done.returncode in (1, 2)) == forbidden, done.stdout
