"""`ConvergenceStudy`: predicted and observed orders, side by side."""

from __future__ import annotations

import json
import math
import unicodedata
from dataclasses import asdict, dataclass, replace

TOLERANCE = 0.15
FLOOR = 2e-13  # below it an error is rounding, in float64 with parameters of order one
FEWEST_POINTS = 3


@dataclass(frozen=True)
class Finding:
    """One statement on one problem: the errors at each learning rate, and the order they show."""

    statement: str
    where: str
    predicted: float
    problem: str
    learning_rates: tuple[float, ...]
    errors: tuple[float, ...]
    not_measured: str = ""  # why there are no errors, when there are none

    @property
    def observed(self) -> float | None:
        """The least-squares exponent of the error in ε; None when too few errors are above rounding."""
        return observed_order(self.learning_rates, self.errors)

    @property
    def status(self) -> str:
        """`pass`, `fail`, or `not measured`."""
        if self.not_measured:
            return "not measured"
        seen = self.observed
        return "pass" if seen is not None and abs(seen - self.predicted) <= TOLERANCE else "fail"


def finding_of(made: Finding) -> Finding:
    """The finding itself; one whose errors are all rounding is not measured, and says so."""
    if made.errors and made.observed is None:
        largest = max(made.errors)
        return replace(made, not_measured=f"errors of {largest:.0e} are rounding: there is nothing to measure")
    return made


def observed_order(learning_rates: tuple[float, ...], errors: tuple[float, ...]) -> float | None:
    """Slope of log(error) against log(ε), by least squares.

    >>> observed_order((0.1, 0.05, 0.025), (0.003, 0.003 / 8, 0.003 / 64))
    3.0
    """
    points = [(math.log(e), math.log(error)) for e, error in zip(learning_rates, errors, strict=True) if error > FLOOR]
    if len(points) < FEWEST_POINTS:
        return None
    mean_x, mean_y = (sum(column) / len(points) for column in zip(*points, strict=True))
    across = sum((x - mean_x) ** 2 for x, _ in points)
    return round(sum((x - mean_x) * (y - mean_y) for x, y in points) / across, 12)


@dataclass(frozen=True)
class ConvergenceStudy:
    """Findings for one or several problems. `print` it, store `to_json()`, draw it with `theory.figures`."""

    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """True when every statement that was measured shows its predicted order, and something was measured."""
        statuses = {finding.status for finding in self.findings}
        return "fail" not in statuses and "pass" in statuses

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(finding.problem for finding in self.findings))

    def __add__(self, other: ConvergenceStudy) -> ConvergenceStudy:
        return ConvergenceStudy(self.findings + other.findings)

    def finding(self, statement: str, problem: str | None = None) -> Finding:
        """The finding of one statement (on one problem)."""
        found = [f for f in self.findings if f.statement == statement and problem in (None, f.problem)]
        if not found:
            raise KeyError(statement)
        return found[0]

    def rows(self) -> list[tuple[str, str, float, dict[str, Finding]]]:
        """One row per statement: (statement, where, predicted order, finding by problem)."""
        table: dict[tuple[str, str, float], dict[str, Finding]] = {}
        for finding in self.findings:
            table.setdefault((finding.statement, finding.where, finding.predicted), {})[finding.problem] = finding
        return [(*head, by_problem) for head, by_problem in table.items()]

    def __str__(self) -> str:
        problems = self.problems
        width = max([len("statement"), *[_columns(f.statement) for f in self.findings]])
        place = max([len("where"), *[len(f.where) for f in self.findings]])
        lines = [
            f"{_padded('statement', width)}  {'where':<{place}}  predicted"
            + "".join(f"  {name:>10}" for name in problems)
            + "  verdict"
        ]
        lines += [
            f"{_padded(statement, width)}  {where:<{place}}  {predicted:>9g}"
            + "".join(f"  {_cell(by_problem.get(name)):>10}" for name in problems)
            + f"  {row_verdict(by_problem)}"
            for statement, where, predicted, by_problem in self.rows()
        ]
        notes = dict.fromkeys(f"{f.problem}: {f.statement}: {f.not_measured}" for f in self.findings if f.not_measured)
        return "\n".join([*lines, *[f"not measured, {note}" for note in notes], self.summary()])

    def summary(self) -> str:
        count = {name: sum(f.status == name for f in self.findings) for name in ("pass", "fail", "not measured")}
        said = f"{count['pass']} of {count['pass'] + count['fail']} orders within {TOLERANCE} of the prediction"
        return said + (f", {count['not measured']} not measured." if count["not measured"] else ".")

    def to_json(self) -> str:
        """Every finding with its errors, as JSON text."""
        findings = [{**asdict(f), "observed": f.observed, "status": f.status} for f in self.findings]
        return json.dumps({"tolerance": TOLERANCE, "passed": self.passed, "findings": findings}, indent=1)


def row_verdict(by_problem: dict[str, Finding]) -> str:
    statuses = {finding.status for finding in by_problem.values()}
    return "fail" if "fail" in statuses else "pass" if "pass" in statuses else "–"


def _columns(text: str) -> int:
    """How many columns of a terminal a text takes: the tilde of C̃ is a character of its own and takes none."""
    return sum(not unicodedata.combining(character) for character in text)


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _columns(text))


def _cell(finding: Finding | None) -> str:
    if finding is None or finding.not_measured:
        return "–"
    return "rounding" if finding.observed is None else f"{finding.observed:.3f}"
