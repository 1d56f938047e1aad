"""How often the report's intervals contain the truth, and how often its verdicts are wrong, on made-up laws.

    python benchmarks/coverage_of_verdicts.py --json benchmarks/results/coverage_of_verdicts.json

A made-up study has the shape of the real ones: two sweeps of eight points (rates, strengths), accuracies in points with
a peak, a seed effect of 1 point and a scatter of 0.7 points, which is that of the pilot runs. "unequal": the scatter
grows from 0.4 to 1.1 over each sweep. "one wild point": one point of each sweep scatters by 3. Peaks are sharp (a
parabola), skew (steep on one side) or flat (all points equal). For 3, 5 and 7 seeds. Needs no torch.

coverage: the share of 95 % intervals that contain the truth. A difference and a peak should have 0.93 to 0.97. The
height of the best point has an interval that is honest in the worst case, so it may have more, not less.
wrong: the share of verdicts that contradict the truth, at the hardest place, a truth at the very bound of the rule.
"""

from __future__ import annotations

import argparse
import json
import zlib
from functools import cache
from pathlib import Path

import numpy as np

from tacit._util.provenance import provenance
from tacit.report import Criterion, rules
from tacit.report.collapse_score import collapse
from tacit.report.layout import Layout, layout
from tacit.report.numbers import Number, combine, minus, ratio
from tacit.report.verdict import Verdict

COUNT = 8  # points of a sweep
PLACES = np.arange(COUNT, dtype=float)  # log₂ of the rate, in steps of the grid
SEED_EFFECT = 1.0
SCATTERS = {
    "equal": np.full(COUNT, 0.7),
    "unequal": np.linspace(0.4, 1.1, COUNT),
    "one wild point": np.array([0.7] * (COUNT - 1) + [3.0]),
}


def sweep(shape: str, peak: float) -> np.ndarray:
    """True accuracies of a sweep in points, highest at `peak` (70, and 64 two to three steps away)."""
    distance = PLACES - peak
    if shape == "flat":
        return np.full(COUNT, 70.0)
    if shape == "skew":
        return 70 - np.where(distance < 0, 0.6, 1.0) * distance**2
    return 70 - 0.8 * distance**2


def study(means: np.ndarray, scatter: np.ndarray, seeds: int, noise: np.random.Generator) -> Layout:
    effect = SEED_EFFECT * noise.standard_normal(seeds)
    sizes = zip(means, scatter, strict=True)
    return layout([mean + effect + size * noise.standard_normal(seeds) for mean, size in sizes])


class Tally:
    """Counts of coverage and of verdicts, by name."""

    def __init__(self) -> None:
        self.inside: dict[str, list[bool]] = {}
        self.wrong: dict[str, list[bool]] = {}
        self.decided: dict[str, list[bool]] = {}

    def interval(self, name: str, number: Number, truth: float) -> None:
        found = number.interval()
        self.inside.setdefault(name, []).append(found.low <= truth <= found.high)

    def verdict(self, name: str, criteria: list[Criterion], wrong: str) -> None:
        outcome = Verdict("", "", tuple(criteria)).outcome
        self.wrong.setdefault(name, []).append(outcome == wrong)
        self.decided.setdefault(name, []).append(outcome != "undecided")

    def shares(self) -> dict[str, dict[str, float]]:
        tables = {"coverage": self.inside, "wrong": self.wrong, "decided": self.decided}
        return {
            key: {name: round(float(np.mean(each)), 4) for name, each in table.items()} for key, table in tables.items()
        }


def within(number: Number) -> Criterion:
    return Criterion(number, "", "within", rules.SAME_FACTOR)


def trial(tally: Tally, scatter: np.ndarray, seeds: int, noise: np.random.Generator) -> None:
    both, rates, strengths = np.concatenate([scatter, scatter]), range(COUNT), range(COUNT, 2 * COUNT)
    x = [*PLACES, *PLACES]
    pick = noise.permutation(COUNT - 1)[:2]  # two points of the first sweep, never the wild one
    for shape in ("sharp", "skew", "flat"):
        means = np.concatenate([sweep(shape, 4.0), sweep(shape, 4.0)])
        points = study(means, both, seeds, noise)
        tally.interval("difference of two points", points.difference(*pick), means[pick[0]] - means[pick[1]])
        _, top = points.highest(rates)
        tally.interval(f"height of the best, {shape}", minus(top, points.point(COUNT)), 70.0 - means[COUNT])
        _, other = points.highest(strengths)
        tally.interval(f"difference of two best, {shape}", minus(top, other), 0.0)
        base = points.point(0)
        if shape != "flat":
            apart = minus(points.peak(x, strengths), points.peak(x, rates))
            tally.interval(f"distance of two peaks, {shape}", apart, 0.0)
            gains = ratio(lambda r, top=top, other=other, base=base: combine((1, other), (-r, top), (r - 1, base)), 1.0)
            tally.interval(f"ratio of two gains, {shape}", gains, 1.0)

    # Truths at the bound of a rule: the verdict that the claim gets must not be "agrees" more often than 5 %.
    material, alike = 100 * rules.MATERIAL, 100 * rules.ALIKE
    flat = np.full(2 * COUNT, 70.0)
    flat[1] -= material
    points = study(flat, both, seeds, noise)
    gain = points.difference(0, 1)
    tally.verdict("gain at the bound taken for more", [Criterion(gain, "", "above", material)], "agrees")
    tally.verdict("gain at the bound taken for less", [Criterion(gain, "", "above", material)], "disagrees")
    _, top = points.highest(rates)
    chosen = Criterion(minus(top, points.point(1)), "", "above", material)
    tally.verdict("gain of a chosen best at the bound taken for more", [chosen], "agrees")
    tally.verdict("gain of a chosen best at the bound taken for less", [chosen], "disagrees")
    flat = np.full(2 * COUNT, 70.0)
    flat[1] -= alike
    points = study(flat, both, seeds, noise)
    parts = [Criterion(points.difference(0, k), "", "within", alike, name=str(k)) for k in (1, 2, 3)]
    tally.verdict("unlike at the margin taken for alike", parts[:1], "agrees")
    tally.verdict("one of three unlike at the margin, taken for alike", parts, "agrees")
    points = study(np.full(2 * COUNT, 70.0), both, seeds, noise)
    parts = [Criterion(points.difference(0, k), "", "within", alike, name=str(k)) for k in (1, 2, 3)]
    tally.verdict("three alike taken for unlike", parts, "disagrees")
    for shape in ("sharp", "skew"):
        points = study(np.concatenate([sweep(shape, 3.5), sweep(shape, 4.5)]), both, seeds, noise)
        apart = minus(points.peak(x, strengths), points.peak(x, rates))
        tally.verdict(f"peaks a factor 2 apart taken for equal, {shape}", [within(apart)], "agrees")
        points = study(np.concatenate([sweep(shape, 4.0), sweep(shape, 4.0)]), both, seeds, noise)
        apart = minus(points.peak(x, strengths), points.peak(x, rates))
        tally.verdict(f"equal peaks taken for different, {shape}", [within(apart)], "disagrees")
    collapses(tally, scatter, seeds, noise)


CURVE = np.repeat([0.0, 1.0, 2.0], COUNT)
X = np.tile(PLACES, 3) - 3.5
RIVAL = X + CURVE


def compared(points: Layout) -> Number:
    return collapse(points, range(len(X)), curve=list(CURVE), x=list(2**X), rival=list(2**RIVAL)).ratio


@cache
def heights(share: float) -> tuple[np.ndarray, float]:
    """Three curves that follow (1 − share) log x + share log rival, and the true ratio of their distances."""
    means = 70 - 0.4 * (X + share * CURVE) ** 2
    return means, compared(study(means, np.full(len(X), 1e-9), 3, np.random.default_rng(0))).value


def collapses(tally: Tally, scatter: np.ndarray, seeds: int, noise: np.random.Generator) -> None:
    """A perfect collapse, one at the bound (a third of the way to the rival), and none (half of the way)."""
    for share in (0.0, 1 / 3, 0.5):
        means, truth = heights(share)
        number = compared(study(means, np.tile(scatter, 3), seeds, noise))
        tally.interval(f"ratio of distances, {truth:.2f}", number, truth)
        judged = Criterion(number, "", "below", rules.COLLAPSES)
        if truth < rules.COLLAPSES - 0.01:
            tally.verdict(f"ratio {truth:.2f} taken for no collapse", [judged], "disagrees")
        else:
            tally.verdict(f"ratio {truth:.2f} taken for a collapse", [judged], "agrees")


def simulate(trials: int) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    found: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for name, scatter in SCATTERS.items():
        for seeds in (3, 5, 7):
            tally, noise = Tally(), np.random.default_rng([zlib.crc32(name.encode()), seeds])
            for _ in range(trials):
                trial(tally, scatter, seeds, noise)
            found.setdefault(name, {})[f"{seeds} seeds"] = tally.shares()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--trials", type=int, default=300, help="of each kind; 300 know a share of 5 % to ±2.5 %")
    chosen = parser.parse_args()
    found = simulate(chosen.trials)
    text = json.dumps({"trials": chosen.trials, "laws": found, **provenance()}, indent=1, ensure_ascii=False)
    print(text)
    if chosen.json is not None:
        temporary = chosen.json.with_suffix(".writing")
        temporary.write_text(text + "\n")
        temporary.replace(chosen.json)


if __name__ == "__main__":
    main()
