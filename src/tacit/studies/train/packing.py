"""Which runs train together: a function of the study alone, never of workers or of what is already done."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tacit.studies.describe.spec import RunSpec, canonical, digest
from tacit.studies.train import operations

# Fleet sizes that are tried. Fewer runs than 8 waste time on calls, more than 24 leave the cache of one core
# (tried 1 to 64 at width 64, B=32: 18 thousand run-updates per second at 24 runs, 15 at 8 or 48, 9 at 64).
CAPS = range(24, 7, -1)
# Beyond this many multiply-adds per example a run trains alone: its products are large enough by themselves
# (Fashion-MNIST, benchmarks/results/packing.json: a fleet halves the time per run at width 64, saves about
# a quarter at 128, and from 256 on less than it scatters).
ALONE = 2**18
REFERENCE_WORKERS = 2  # packing balances two workers, whatever number of them comes


@dataclass(frozen=True)
class Fleet:
    """Runs of one shape, trained as one program."""

    runs: tuple[RunSpec, ...]

    @cached_property
    def id(self) -> str:
        return digest([run.hash for run in self.runs])

    @property
    def model(self) -> str:
        return self.runs[0].model

    @cached_property
    def cost(self) -> float:
        """Expected work in millions of operations, calls included."""
        first, counted = self.runs[0], operations.count(self.runs[0])
        weights = counted.multiply_adds / 1e6
        # A plain update is three products per layer, two operations per multiply-add. The price of calling was fitted
        # once (2.1 million operations per layer), the exact penalty at 2.5 plain updates, 3.5 with convolutions, 2.8
        # with those of a Wide-ResNet (`benchmarks/results/wrn_update.json`: 2.63 at 16x16, 2.95 at 32x32).
        update = 2.1 * counted.layers + 6 * first.batch_size * weights * len(self.runs)
        update *= operations.step_factor(first, {"mlp": 2.5, "wide_resnet": 2.8}.get(first.model, 3.5))
        test_size = first.test_size or operations.expected_test_size(first)
        evaluation = 2 * (first.train_size + test_size) * weights * len(self.runs)
        return first.total_updates * update + first.evaluations * evaluation


def has_run_axis(run: RunSpec) -> bool:
    """Whether such runs can train as one program with a run axis; others have a model of their own."""
    return run.model in ("mlp", "conv1d") and run.precision == "float32"


def trains_alone(run: RunSpec) -> bool:
    """Whether a fleet of several such runs would be no faster than one after the other."""
    return not has_run_axis(run) or operations.count(run).multiply_adds > ALONE


def shape(run: RunSpec) -> tuple[object, ...]:
    """Runs of equal shape can share a fleet; λ = 0 and λ > 0 do not, because the first needs no penalty's passes."""
    return (
        run.dataset, run.model, run.method, run.augmentation, run.train_size, run.width, run.depth,
        run.batch_size, run.inner_steps, run.minibatches, run.evaluations, run.strength > 0,
        run.image_size, run.test_size, run.weight_decay_penalized, run.precision, run.augmentation_amount,
        run.optimizer, run.momentum, canonical([run.model_arguments, run.own_code]),
        run.label_smoothing, run.label_noise, run.micro_batch_size, run.sampled, run.relative > 0, run.penalty_until,
        run.sam_radius > 0, run.sam_rows,
    )  # fmt: skip


def pack(runs: Sequence[RunSpec]) -> list[Fleet]:
    """The fleets of a study: the packing, among `CAPS`, that two workers are expected to finish first."""
    groups: dict[tuple[object, ...], list[RunSpec]] = {}
    for run in sorted(runs, key=lambda run: run.hash):  # the order of a file's lists must not matter
        groups.setdefault(shape(run), []).append(run)
    packings = [[fleet for group in groups.values() for fleet in _split(group, cap)] for cap in CAPS]
    best = min(packings, key=lambda fleets: finishing_time([fleet.cost for fleet in fleets], REFERENCE_WORKERS))
    return sorted(best, key=lambda fleet: (-fleet.cost, fleet.id))


def finishing_time(costs: Sequence[float], workers: int) -> float:
    """When the last of `workers` ends if each, when free, takes the longest job left."""
    ends = [0.0] * workers
    for cost in sorted(costs, reverse=True):
        heapq.heapreplace(ends, ends[0] + cost)
    return max(ends)


def _split(group: list[RunSpec], cap: int) -> list[Fleet]:
    """As few fleets as `cap` allows, their sizes differing by at most one."""
    parts = math.ceil(len(group) / (1 if trains_alone(group[0]) else cap))
    bounds = [len(group) * part // parts for part in range(parts + 1)]
    return [Fleet(tuple(group[low:high])) for low, high in itertools.pairwise(bounds)]
