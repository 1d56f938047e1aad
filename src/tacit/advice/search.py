"""`search_strength`: a few strengths around the advice, tried on a validation split, hopeless ones stopped early."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from tacit._util.arguments import finite_number, whole_number
from tacit._util.errors import InputError
from tacit.advice.advice import Advice

FACTORS = (0.0, 0.5, 1.0, 2.0, 4.0)  # of the start; 0 is training without a penalty
# (share of a training, share of the arms that go on from there). Strong penalties learn slowly: with stops after a
# quarter and a half the search chose no penalty on MNIST-1D with shifts, where the advised one ends 3.4 points higher.
STAGES = ((0.5, 0.5), (0.75, 0.5))
SEEN = 3  # validation scores that count at a stage: the mean of the last three is steadier than one


@dataclass(frozen=True)
class Arm:
    """One strength: its validation scores so far, and how it ended: `finished`, `stopped` (behind) or `diverged`."""

    strength: float
    scores: tuple[float, ...]
    status: str

    @property
    def score(self) -> float:
        """The mean of the last three scores, −∞ after divergence."""
        recent = self.scores[-SEEN:]
        return sum(recent) / len(recent) if recent and self.status != "diverged" else -math.inf


@dataclass(frozen=True)
class StrengthSearch:
    """What a search found: the best strength, every arm, and the cost in trainings of full length."""

    strength: float
    arms: tuple[Arm, ...]
    cost: float
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False, indent=1)

    def __str__(self) -> str:
        lines = [f"λ = {self.strength:.4g} is the best of {len(self.arms)}, for {self.cost:.3g} trainings."]
        for arm in self.arms:
            score = "" if arm.status == "diverged" else f"{arm.score:.4g} after {len(arm.scores)} evaluations, "
            lines.append(f"  λ = {arm.strength:<10.4g} {score}{arm.status}")
        return "\n".join([*lines, *[f"  note: {note}" for note in self.notes]])


def search_strength(
    train: Callable[[float], Iterator[float]],
    *,
    advice: Advice | None = None,
    start: float | None = None,
    largest: float | None = None,
    factors: Sequence[float] = FACTORS,
    evaluations: int = 12,
    budget: float = 4.0,
) -> StrengthSearch:
    """The strength with the best validation score, of a few from the advice outwards: × 0, ½, 1, 2, 4, below the edge.

    `train(strength)` is a generator: it trains with this strength and yields a validation score, higher is better,
    `evaluations` times at equal distances. All arms advance together. After half and after three quarters of the
    training the better half goes on (successive halving); an arm whose score is not finite is stopped at once. Five
    arms cost 3.75 trainings of full length; arms are left out, the farthest from the start first, when the plan exceeds
    `budget`.

    The start is `advice.strength`, or `start` where there is no advice (Adam, batch norm): a strength of the order of
    the rate that SGD would need. Strengths above `largest`, by default the advice's edge, are not tried.

    Of equal scores the smaller strength goes on, and a note says that it was a tie.

    Scores must come from examples that are neither trained on nor used to judge the result in the end.

    >>> def train(strength):
    ...     for epoch in range(4):
    ...         yield -abs(strength - 0.2)
    >>> search_strength(train, start=0.1, evaluations=4).strength
    0.2
    """
    if not callable(train):
        raise InputError(f"train is a {type(train).__name__}; expected a function of the strength that yields scores.")
    strengths = _strengths(advice, start, largest, factors)
    count = whole_number("evaluations", evaluations, at_least=len(STAGES) + 1)
    limit = finite_number("budget", budget, positive=True)
    strengths, notes = _within_budget(strengths, count, limit, _start(advice, start))
    arms = {strength: _Training(train(strength), strength, count) for strength in strengths}
    going = list(strengths)
    for share, kept in (*STAGES, (1.0, 1.0)):
        for strength in going:
            arms[strength].advance(_evaluation(share, count))
        alive = [strength for strength in going if arms[strength].status != "diverged"]
        ranked = sorted(alive, key=lambda strength: (-arms[strength].arm.score, strength))
        going = ranked[: max(1, math.ceil(kept * len(going)))]
        dropped = ranked[len(going) :]
        if dropped and arms[dropped[0]].arm.score == arms[going[-1]].arm.score:
            notes.append(f"a tie after {share:.0%} of the training: of equal scores the smaller strengths went on.")
        for strength in dropped:
            arms[strength].stop()
    found = tuple(arms[strength].arm for strength in sorted(arms))
    if not going:
        raise InputError(
            f"every strength diverged, from {min(strengths):.3g} to {max(strengths):.3g}; expected one that trains. "
            "Use a smaller start or rate."
        )
    best = max((arm for arm in found if arm.status == "finished"), key=lambda arm: arm.score)
    tied = [arm.strength for arm in found if arm.status == "finished" and arm.score == best.score]
    if len(tied) > 1:
        notes.append(
            f"a tie: λ = {' and '.join(f'{each:.4g}' for each in tied)} score the same; the smallest is taken."
        )
    cost = sum(len(arm.scores) for arm in found) / count
    if best.strength == max(strengths) > 0:
        notes.append("the best strength is the largest that was tried: search again from there.")
    return StrengthSearch(best.strength, found, cost, tuple(notes))


def planned_cost(arms: int, evaluations: int) -> float:
    """Trainings of full length that a search of so many arms takes at most."""
    cost, done, going = 0, 0, arms
    for share, kept in (*STAGES, (1.0, 1.0)):
        at = _evaluation(share, evaluations)
        cost += going * (at - done)
        done, going = at, max(1, math.ceil(kept * going))
    return cost / evaluations


class _Training:
    """One arm while it trains."""

    def __init__(self, scores: Iterator[float], strength: float, evaluations: int) -> None:
        if not isinstance(scores, Iterator):
            raise InputError(
                f"train({strength:g}) returned a {type(scores).__name__}; expected a generator: yield each score."
            )
        self._scores, self._strength, self._evaluations = scores, strength, evaluations
        self._seen: list[float] = []
        self.status = "training"

    @property
    def arm(self) -> Arm:
        return Arm(self._strength, tuple(self._seen), self.status)

    def advance(self, until: int) -> None:
        while len(self._seen) < until and self.status == "training":
            try:
                found = next(self._scores)
            except StopIteration:
                raise InputError(
                    f"train({self._strength:g}) ended after {len(self._seen)} scores; expected {self._evaluations}. "
                    f"Say evaluations={len(self._seen)}, or yield more often."
                ) from None
            score = self._number(found)
            if math.isfinite(score):
                self._seen.append(score)
            else:
                self._end("diverged")
        if len(self._seen) == self._evaluations and self.status == "training":
            self._end("finished")

    def _number(self, found: object) -> float:
        try:
            return float(found)  # type: ignore[arg-type]
        except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor with several elements
            shown = " ".join(repr(found).split())[:60]
            raise InputError(f"train({self._strength:g}) yielded {shown}; expected one number, the score.") from None

    def stop(self) -> None:
        if self.status == "training":
            self._end("stopped")

    def _end(self, status: str) -> None:
        self.status = status
        close = getattr(self._scores, "close", None)
        if close is not None:
            close()  # a generator frees its model here


def _evaluation(share: float, count: int) -> int:
    return max(1, round(share * count))


def _start(advice: Advice | None, start: float | None) -> float:
    if (advice is None) == (start is None):
        raise InputError("expected one of advice and start: where the search begins.")
    if start is not None:
        return finite_number("start", start, positive=True)
    assert advice is not None
    if not advice.strength > 0:
        raise InputError(
            "the advised strength is not above 0; expected a positive one. Give start to search all the same."
        )
    return advice.strength


def _strengths(
    advice: Advice | None, start: float | None, largest: float | None, factors: Sequence[float]
) -> list[float]:
    middle = _start(advice, start)
    if largest is None and advice is not None and advice.largest_stable_strength is not None:
        largest = advice.largest_stable_strength
    if isinstance(factors, str) or not isinstance(factors, Iterable):
        raise InputError(f"factors={factors!r}; expected several numbers.")
    wanted = sorted({finite_number("factors", factor) * middle for factor in factors})
    if len(wanted) < 2:
        raise InputError(f"factors={tuple(factors)} are {len(wanted)} strengths; expected at least two different ones.")
    below = [strength for strength in wanted if largest is None or strength < largest]
    if len(below) < 2:
        raise InputError(
            f"fewer than two strengths are below largest={largest:.3g}; expected a smaller start than {middle:.3g}."
        )
    return below


def _within_budget(
    strengths: list[float], evaluations: int, budget: float, start: float
) -> tuple[list[float], list[str]]:
    """Without the arms that the budget does not allow: the farthest from the start go first, 0 stays."""
    kept, notes = list(strengths), []
    while planned_cost(len(kept), evaluations) > budget:
        tried = [strength for strength in kept if strength > 0]
        if len(kept) <= 2 or not tried:
            needed = planned_cost(2, evaluations)
            raise InputError(f"budget={budget:g} trainings; expected at least {needed:.3g}, which two strengths take.")
        kept.remove(max(tried, key=lambda strength: abs(math.log(strength / start))))
    if len(kept) < len(strengths):
        notes.append(
            f"{len(strengths) - len(kept)} of {len(strengths)} strengths were left out for the budget of {budget:g}."
        )
    return kept, notes
