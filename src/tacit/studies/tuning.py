"""Strengths of one point of a study, trained as fleets and scored on training examples that are not trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tacit._util.errors import InputError
from tacit.studies.data.facts import Data
from tacit.studies.data.load import load
from tacit.studies.describe.spec import RunSpec
from tacit.studies.describe.study import Study
from tacit.studies.train.packing import pack
from tacit.studies.train.training import Training

FEWEST = 200  # validation examples: at 50 % accuracy their mean deviates by 3.5 points


class StrengthArms:
    """The runs of one point at several strengths, λ > 0 packed into as few fleets as possible.

    `scores(strength)` yields the validation accuracy, mean over seeds, at every evaluation; the fleets behind it train
    only as far as some arm has been asked. That is the `train` of `tacit.search_strength`.
    """

    def __init__(self, study: Study, strengths: Sequence[float], *, evaluations: int) -> None:
        self.point = point_of(study)
        first = self.point[0]
        self.evaluations = min(evaluations, first.minibatches)
        data = with_validation(load(first.dataset), first)
        changed = {"evaluations": self.evaluations, "test_size": None}
        self.runs = {
            strength: [RunSpec(**{**run.model_dump(), **changed, "strength": strength}) for run in self.point]
            for strength in strengths
        }
        fleets = pack([run for runs in self.runs.values() for run in runs])
        self.trainings = [Training(fleet, data) for fleet in fleets]

    def scores(self, strength: float) -> Iterator[float]:
        wanted = {run.hash for run in self.runs[strength]}
        for at in range(1, self.evaluations + 1):
            found = []
            for training in self.trainings:
                numbers = [number for number, run in enumerate(training.runs) if run.hash in wanted]
                if numbers:
                    training.advance(until=_position(training, at))
                found += [_score(training, number, at) for number in numbers]
            yield sum(found) / len(found)


def point_of(study: Study) -> tuple[RunSpec, ...]:
    """The study's runs, which must differ in seed and strength only, once per seed."""
    by_seed = {run.seed: run for run in study.runs}
    rest = {run.model_copy(update={"seed": 0, "strength": 0.0}).model_dump_json() for run in study.runs}
    if len(rest) != 1:
        raise InputError(
            f"study {study.name} has {len(rest)} points apart from seed and strength; expected one. Fix the others, "
            "such as learning_rate=2^-3."
        )
    return tuple(by_seed.values())


def with_validation(data: Data, run: RunSpec) -> Data:
    """The dataset with the training examples after the first `train_size` in the place of its test set."""
    left = len(data.train_inputs) - run.train_size
    if left < FEWEST:
        most = (len(data.train_inputs) - FEWEST) // run.batch_size * run.batch_size
        raise InputError(
            f"train_size {run.train_size} leaves {max(0, left)} of {len(data.train_inputs)} training examples to "
            f"choose a strength on; expected at least {FEWEST}. Use train_size={most}."
        )
    held_out = (data.train_inputs[run.train_size :], data.train_targets[run.train_size :])
    return Data(data.train_inputs, data.train_targets, *held_out)


def _position(training: Training, evaluation: int) -> int:
    return sorted(training.evaluate_at)[evaluation - 1]


def _score(training: Training, number: int, evaluation: int) -> float:
    """The accuracy at an evaluation; not a number once the run has diverged."""
    seen = training.history[number]["test_accuracy"]
    return seen[evaluation - 1] if len(seen) >= evaluation else float("nan")
