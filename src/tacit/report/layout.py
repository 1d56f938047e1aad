"""The two-way layout seed × point: means, pooled scatter, and numbers with intervals at any level.

    y[p, s] = μ[p] + a[s] + e[p, s]

A seed's initialisation makes its runs better or worse at all points together: that is a[s], and it cancels in every
difference between points. What is left, e, is about as large at every point that trains, so its variance is estimated
from all of them: (points − 1)(seeds − 1) degrees of freedom instead of seeds − 1. Points that fall apart scatter more;
`pooled_points` leaves them out, and they keep a variance of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc, ndtri

from tacit.report.numbers import Array, Number, student, unknown
from tacit.report.scatter import Cell, design, prior_freedom, residual_variance

# A point with a larger scatter than the rest (F test at this level) is not pooled. A higher level would leave out many
# points of equal scatter for having scattered more by chance, and make the pool's scatter too small.
UNEQUAL = 0.01
FALLEN_APART = 1e-3  # the weight in least squares of a run whose point does not train
CONTENDERS = 2.5  # points within this many standard errors of the highest may be the highest in truth


@dataclass(frozen=True)
class Layout:
    """Grid points with their runs. `trains` marks points that may share one scatter: see `rules.trains`."""

    cells: tuple[Cell, ...]
    trains: tuple[bool, ...]

    @cached_property
    def _solver(self) -> Array:
        """The matrix from runs to (μ, a) of least squares; with missing runs it is not just a mean.

        A run of a point that does not train says nothing about its seed: it would make a seed that diverged there look
        bad, and lift the points that have that seed alone. It counts where a seed has no other runs.
        """
        trains = np.asarray(self.trains, dtype=bool)[self._point_of_run]
        weights = np.where(trains, 1.0, FALLEN_APART)
        return np.asarray(np.linalg.pinv(self._design * weights[:, None]) * weights)

    @cached_property
    def _design(self) -> Array:
        return design(self.cells)

    @cached_property
    def _runs(self) -> Array:
        return np.concatenate([cell.values for cell in self.cells])

    @cached_property
    def _point_of_run(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(len(self.cells)), [len(cell) for cell in self.cells])

    @cached_property
    def means(self) -> Array:
        """One height per point, as if every point had all seeds; with all runs there, the mean of its runs."""
        return np.array([self._weights(self._at(index)) @ self._runs for index in range(len(self.cells))])

    @cached_property
    def pooled_points(self) -> tuple[int, ...]:
        """Points that share one scatter: those that train, less those that scatter more than the others (F test)."""
        kept = [index for index, trains in enumerate(self.trains) if trains and len(self.cells[index]) > 1]
        while len(kept) > 2:
            chances = {index: self._chance_of_scatter(index, [k for k in kept if k != index]) for index in kept}
            worst = min(kept, key=lambda index: chances[index])
            if chances[worst] >= UNEQUAL:
                break
            kept.remove(worst)
        return tuple(kept)

    def _chance_of_scatter(self, index: int, others: list[int]) -> float:
        """How often a point scatters this much more than the others if in truth it does not."""
        variance, freedom = residual_variance([self.cells[k] for k in others])
        own, own_freedom = self._beside(index, others)
        if freedom < 1 or own_freedom < 1 or variance <= 0:
            return 1.0
        return float(fdtrc(own_freedom, freedom, own / (variance * (1 + 1 / len(others)))))

    def _beside(self, index: int, others: Sequence[int]) -> tuple[float, int]:
        """The variance of a point's runs after the mean of other points at the same seed is taken away."""
        cell = self.cells[index]
        left = []
        for seed, value in zip(cell.seeds, cell.values, strict=True):
            same = [
                self.cells[k].values[self.cells[k].seeds.index(seed)] - self.means[k]
                for k in others
                if seed in self.cells[k].seeds
            ]
            left.append(value - (float(np.mean(same)) if same else 0.0))
        return (float(np.var(left, ddof=1)), len(left) - 1) if len(left) > 1 else (math.nan, 0)

    @cached_property
    def variances(self) -> tuple[Array, Array]:
        """The variance of one run at each point, and the degrees of freedom it is known to.

        Pooled points share one variance as far as their own look alike; where these differ more than chance would let
        them, each is drawn towards the common one (Smyth 2004, as in limma) instead of being replaced by it.
        """
        pool = self.pooled_points
        variance, freedom = residual_variance([self.cells[k] for k in pool]) if pool else (math.nan, 0)
        found, known = np.full(len(self.cells), variance), np.full(len(self.cells), float(freedom))
        if len(pool) > 2 and variance > 0:
            each_own = [self._beside(index, [k for k in pool if k != index]) for index in pool]
            wider = 1 + 1 / (len(pool) - 1)  # the others' mean at a seed scatters too
            prior = prior_freedom([each / wider for each, _ in each_own], [count for _, count in each_own])
            for index, (each, count) in zip(pool, each_own, strict=True):
                share = 0.0 if math.isinf(prior) else count / (prior + count)
                found[index] = (1 - share) * variance + share * each / wider
                known[index] = min(prior + count, freedom)
        for index, cell in enumerate(self.cells):
            if index not in pool and len(cell) > 1:
                own, own_freedom = self._beside(index, pool)
                # Not below the pool's: that a point which falls apart scatters less than the others is chance.
                found[index], known[index] = np.nanmax([own, variance]), own_freedom
        return found, known

    @cached_property
    def freedom(self) -> int:
        """Degrees of freedom of the pooled scatter."""
        return residual_variance([self.cells[k] for k in self.pooled_points])[1] if self.pooled_points else 0

    @cached_property
    def seeds(self) -> int:
        """The largest number of runs at a point: study files give the points that decide the most seeds."""
        return max((len(cell) for cell in self.cells), default=0)

    # -- numbers ------------------------------------------------------------------------------------------------------
    def contrast(self, weights: dict[int, float]) -> Number:
        """Σ weight · μ over points; the weights add up to 0, so that the seeds' own effects cancel."""
        target = np.zeros(self._design.shape[1])
        for index, weight in weights.items():
            target[index] += weight
        return self._number(target)

    def difference(self, minuend: int, subtrahend: int) -> Number:
        return self.contrast({minuend: 1.0, subtrahend: -1.0})

    def point(self, index: int) -> Number:
        """A point's height for comparison with others of this layout: the seeds' own effects are not counted."""
        return self._number(self._at(index))

    def highest(self, candidates: Sequence[int]) -> tuple[int, Number]:
        """The highest of some points, and an honest interval of the highest μ among them.

        The highest of several estimates is too high on average (the winner's curse). The upper end may ignore that:
        the true best point is at most as high in the runs as the highest one. The lower end may not: it counts every
        point that could be the highest, those within `CONTENDERS` errors. If all k of them are equally high, the
        highest is too high by the mean of the largest of k errors (Blom's formula), and its quantiles are Šidák's.
        """
        index = max(candidates, key=lambda k: float(self.means[k]))
        best = self.error(index)
        distances = {k: math.hypot(best, self.error(k)) * CONTENDERS for k in candidates}
        count = sum(1 for k in candidates if k == index or not self.means[index] - self.means[k] > distances[k])
        plain = self.point(index)
        too_high = best * float(ndtri((count - 0.375) / (count + 0.25)))

        def ends(level: float) -> tuple[float, float]:
            side = (1 + level) / 2
            return plain.ends(2 * side ** (1 / count) - 1)[0], plain.ends(level)[1]

        return index, Number(plain.value, ends, plain.seeds, too_high=too_high)

    def peak(self, x: Sequence[float], candidates: Sequence[int]) -> Number:
        """Where a parabola through the highest point and its neighbours is highest; ends by Fieller's theorem.

        `x` are places of the points (log₂ of a rate), `candidates` those of one curve. Two neighbours on each side
        take part if they train; where the next one does not, the parabola goes through three points. NaN when the
        highest point is an end of its curve.
        """
        ordered = sorted(candidates, key=lambda k: x[k])
        top = ordered.index(max(ordered, key=lambda k: float(self.means[k])))
        if top in (0, len(ordered) - 1):
            return unknown()
        window = self._window(ordered, top)
        place = np.array([x[k] for k in window]) - x[ordered[top]]
        slope, bend = np.linalg.pinv(np.vander(place, 3, increasing=True))[1:]
        linear, square = (self.contrast(dict(zip(window, w, strict=True))) for w in (slope, bend))
        targets = np.zeros((2, self._design.shape[1]))
        targets[0, window], targets[1, window] = slope, bend
        weights = np.array([self._weights(target) for target in targets])
        run_variances, _ = self.variances
        covariance = (weights * run_variances[self._point_of_run]) @ weights.T
        at = x[ordered[top]]
        if square.value >= 0:
            return unknown(at)
        freedom = self._freedom(targets[0])

        def ends(level: float) -> tuple[float, float]:
            # All places where the slope b + 2cx may be 0: (b + 2cx)² ≤ t² var(b + 2cx), a quadratic inequality in x.
            t = student(level, freedom)
            b, c = linear.value, square.value
            p = 4 * (c * c - t * t * covariance[1, 1])
            q = 4 * (b * c - t * t * covariance[0, 1])
            r = b * b - t * t * covariance[0, 0]
            root = q * q - 4 * p * r
            if math.isnan(root):
                return math.nan, math.nan
            if p <= 0 or root < 0:  # the bend may be 0: the peak may be anywhere
                return -math.inf, math.inf
            return at + (-q - math.sqrt(root)) / (2 * p), at + (-q + math.sqrt(root)) / (2 * p)

        return Number(at - linear.value / (2 * square.value), ends, self.seeds)

    def _window(self, ordered: list[int], top: int) -> list[int]:
        left = [k for k in ordered[max(0, top - 2) : top] if self.trains[k]]
        right = [k for k in ordered[top + 1 : top + 3] if self.trains[k]]
        beside = ordered[top - 1] in left and ordered[top + 1] in right
        return [*left, ordered[top], *right] if beside else ordered[top - 1 : top + 2]

    def _at(self, index: int) -> Array:
        """The height of a point at the mean of all seeds."""
        target = np.zeros(self._design.shape[1])
        target[index] = 1.0
        target[len(self.cells) :] = 1 / (self._design.shape[1] - len(self.cells))
        return target

    def _weights(self, target: Array) -> Array:
        return np.asarray(target @ self._solver)

    def error(self, index: int) -> float:
        """The standard error of a point's height."""
        return self._error(self._at(index))

    def _error(self, target: Array) -> float:
        run_variances, _ = self.variances
        return math.sqrt(float((self._weights(target) ** 2 * run_variances[self._point_of_run]).sum()))

    def _freedom(self, target: Array) -> float:
        """Satterthwaite's degrees of freedom: those of the pool when only pooled points take part."""
        run_variances, known = self.variances
        shares = self._weights(target) ** 2 * run_variances[self._point_of_run]
        parts = {k: float(shares[self._point_of_run == k].sum()) for k in range(len(self.cells))}
        pooled = [k for k in parts if k in self.pooled_points]
        groups = [(sum(parts[k] for k in pooled), float(min(known[k] for k in pooled)))] if pooled else []
        groups += [(parts[k], float(known[k])) for k in parts if k not in self.pooled_points]
        groups = [(part, freedom) for part, freedom in groups if part > 0]
        if not groups or any(freedom < 1 for _, freedom in groups):
            return 0.0
        return sum(part for part, _ in groups) ** 2 / sum(part**2 / freedom for part, freedom in groups)

    def _number(self, target: Array) -> Number:
        weights = self._weights(target)
        value = float(weights @ self._runs)
        # Points that no chain of shared seeds connects cannot be compared: the seeds' effects do not cancel.
        if not np.allclose(target @ self._solver @ self._design, target, atol=1e-8):
            return unknown(value)
        error, freedom = self._error(target), self._freedom(target)

        def ends(level: float) -> tuple[float, float]:
            if error == 0 and self.seeds > 1:
                return value, value
            width = error * student(level, freedom)
            return value - width, value + width

        return Number(value, ends, self.seeds)


def layout(cells: Sequence[Cell | Array], trains: Sequence[bool] | None = None) -> Layout:
    """Grid points as cells; a bare array holds the runs of seeds 0, 1, 2, … in that order."""
    made = tuple(each if isinstance(each, Cell) else Cell(tuple(range(len(each))), each) for each in cells)
    return Layout(made, tuple(trains) if trains is not None else (True,) * len(made))
