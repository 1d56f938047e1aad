"""`search_strength`: it finds the best of a few, within its budget, and stops what is hopeless."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from test_matching import MOVE, seen, with_spectrum

import tacit
from tacit.advice.search import planned_cost, search_strength


class Trainer:
    """Scores that approach −(log λ − log best)²; counts what was trained, and whether arms were closed."""

    def __init__(self, best: float, *, diverges_from: float = math.inf, evaluations: int = 12) -> None:
        self.best, self.diverges_from, self.evaluations = best, diverges_from, evaluations
        self.trained, self.closed = 0, 0

    def __call__(self, strength: float) -> Iterator[float]:
        try:
            for at in range(1, self.evaluations + 1):
                self.trained += 1
                if strength >= self.diverges_from:
                    yield math.nan
                distance = 3.0 if strength == 0 else math.log(strength / self.best)
                yield -(distance**2) + at / self.evaluations
        finally:
            self.closed += 1


@pytest.mark.parametrize("best", [0.05, 0.1, 0.2, 0.4])
def test_the_best_strength_is_found(best: float) -> None:
    assert search_strength(Trainer(best), start=0.1).strength == best


def test_the_cost_is_what_was_trained_and_stays_within_the_budget() -> None:
    trainer = Trainer(0.1)
    found = search_strength(trainer, start=0.1)
    assert found.cost == pytest.approx(trainer.trained / 12)
    assert found.cost == pytest.approx(planned_cost(5, 12))
    assert found.cost == 3.75  # 5/2 + 3/4 + 2/4; every arm to its end would be 5
    assert trainer.closed == 5


def test_a_small_budget_leaves_out_the_farthest_arms() -> None:
    trainer = Trainer(0.1)
    found = search_strength(trainer, start=0.1, budget=2.5)
    assert found.cost <= 2.5
    assert {arm.strength for arm in found.arms} <= {0.0, 0.05, 0.1, 0.2}
    assert any("were left out" in note for note in found.notes)
    with pytest.raises(tacit.InputError, match=r"budget=0\.5 trainings; expected at least"):
        search_strength(trainer, start=0.1, budget=0.5)


def test_a_diverged_arm_is_stopped_at_once_and_never_chosen() -> None:
    trainer = Trainer(0.4, diverges_from=0.4)
    found = search_strength(trainer, start=0.1)
    assert found.strength == 0.2
    (arm,) = (arm for arm in found.arms if arm.strength == 0.4)
    assert (arm.status, arm.scores) == ("diverged", ())


def test_no_strength_beyond_the_edge_is_tried() -> None:
    found = search_strength(Trainer(0.4), start=0.1, largest=0.3)
    assert max(arm.strength for arm in found.arms) == 0.2
    assert "largest that was tried" in found.notes[-1]


def test_a_search_starts_from_the_advised_strength_and_stays_below_its_edge() -> None:
    advice = tacit.match(with_spectrum(seen(3.0, 500.0, eigenvalue=5.0), values=(5.0,)), **MOVE)
    trainer = Trainer(advice.strength)
    assert search_strength(trainer, advice=advice).strength == advice.strength
    assert max(arm.strength for arm in search_strength(trainer, advice=advice).arms) < advice.largest_stable_strength


@pytest.mark.parametrize("new_rate", [50.0, 0.1])
def test_a_search_from_an_advice_without_a_penalty_is_one_sentence(new_rate: float) -> None:
    """No penalty is needed at the first rate; at the second none is stable."""
    point = with_spectrum(seen(3.0, 500.0, eigenvalue=25.0), values=(25.0,))
    with pytest.raises(tacit.InputError, match="Give start to search all the same"):
        search_strength(Trainer(0.1), advice=tacit.match(point, **MOVE, new_learning_rate=new_rate))


def test_a_penalty_that_does_not_help_is_not_chosen() -> None:
    def train(strength: float) -> Iterator[float]:
        for _ in range(12):
            yield -strength

    assert search_strength(train, start=0.1).strength == 0.0


def test_bad_arguments_are_one_sentence() -> None:
    with pytest.raises(tacit.InputError, match="one of advice and start"):
        search_strength(Trainer(0.1))
    with pytest.raises(tacit.InputError, match="ended after 4 scores; expected 12"):
        search_strength(Trainer(0.1, evaluations=4), start=0.1)
    with pytest.raises(tacit.InputError, match="every strength diverged"):
        search_strength(Trainer(0.1, diverges_from=0.0), start=0.1)
    with pytest.raises(tacit.InputError, match="train is a int; expected a function"):
        search_strength(3, start=0.1)  # type: ignore[arg-type]


def test_of_equal_scores_the_smaller_strength_is_taken_in_any_order_and_called_a_tie() -> None:
    """0.1 leads at half time, so it stands before 0.05 when the two come to be equal."""
    later = {0.0: 0.0, 0.05: 1.0, 0.1: 1.0, 0.2: 0.0, 0.4: 0.0}

    def train(strength: float) -> Iterator[float]:
        for at in range(12):
            yield 2.0 if strength == 0.1 and at < 6 else later[strength]

    for factors in ((0, 0.5, 1, 2, 4), (4, 2, 1, 0.5, 0)):
        found = search_strength(train, start=0.1, factors=factors)
        assert found.strength == 0.05
        assert any("a tie: λ = 0.05 and 0.1" in note for note in found.notes)


def test_a_tie_at_a_stage_is_said() -> None:
    def train(strength: float) -> Iterator[float]:
        for _ in range(12):
            yield 1.0

    found = search_strength(train, start=0.1)
    assert found.strength == 0.0
    assert any("a tie after 50% of the training" in note for note in found.notes)
