"""The rules of every verdict, in one place: margins, thresholds, and which points count.

Written before the runs that they judge. The sizes come from the paper and from pilot runs on other seeds: n-step SGD
costs the paper 4.7 points (93.5 → 88.8 %, figure 4a); on MNIST-1D a good learning rate gains about 6 points, and runs
that differ in their seed alone scatter by 0.5 to 1.0 points. Accuracies are shares, not per cent.

How a claim is judged:

- A difference is a difference between means of all runs; its 95 % interval comes from the scatter that is left after
  each seed's own effect, pooled over the points that train. The best 5 of 7 runs are for pictures only.
- "larger", "reduces": agrees when the whole 95 % interval lies beyond the threshold, disagrees when it lies before it.
- "similar", "equal": two one-sided tests at 5 %: agrees when the 90 % interval lies inside the margin; disagrees when
  the 95 % interval lies outside.
- A claim with several parts agrees when all do. It disagrees when one does, at a level corrected for their number.
- A distance between curves is a root mean square over points, without what the noise of the runs adds to it.
- The height of a best point has an interval that allows for its having been chosen as the best.
- A verdict on fewer than 3 seeds is "undecided so far", and so is one on how curves collapse at fewer than 6 points,
  unless these have 10 seeds: the next larger run may turn it over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

MATERIAL = 0.005  # a gain counts from half a point on: a tenth of the paper's 4.7 points, 80 of 16,000 test signals
ALIKE = 0.015  # "similar accuracies": 1.5 points, a third of the paper's 4.7, a quarter of what a good rate gains here
SAME_FACTOR = 1.0  # "equal" optima, "similar" losses: within a factor of two, one step of the paper's grids (log₂)
RECOVERS = 0.75  # "a similar influence": three quarters of the learning rate's gain or more
COLLAPSES = 0.5  # curves collapse on x rather than on its rival: half the distance between them or less
# What a verdict needs to be more than "undecided so far". The quick figure 7a disagreed on 4 points of 5 seeds; on 9
# points of 10 seeds it is undecided.
FEWEST_SEEDS, FEWEST_POINTS, ENOUGH_SEEDS = 3, 6, 10
TRAINED = 0.005  # a rate trains as well as any when its training accuracy is within half a point of the highest

# Shares of the highest final training accuracy among the points of a figure.
TRAINS = 0.75  # below, a point has fallen apart: its scatter is not pooled
# Figures that vary the rate judge a collapse on points that are nearly through with training: at fixed epochs ε/B (or
# nα) is also the time that gradient flow has had, so unfinished runs collapse on it whatever the regularizer does.
LEARNED = 0.9


def end_accuracies(points: Sequence[Sequence[Any]]) -> np.ndarray:
    """The mean final training accuracy of each point; 0 for one with a run that diverged."""
    return np.array(
        [
            float(np.mean([row["final_train_accuracy"] or 0.0 for row in rows]))
            if rows and all(row["status"] == "finished" for row in rows)
            else 0.0
            for rows in points
        ]
    )


def reaches(points: Sequence[Sequence[Any]], share: float) -> tuple[bool, ...]:
    """Which points end with at least this share of the highest training accuracy among them, all runs finished."""
    ends = end_accuracies(points)
    return tuple(bool(end > 0 and end >= share * ends.max()) for end in ends)
