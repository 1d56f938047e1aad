"""`AdaptiveStrength`: a penalty whose strength follows the advice along training, measured again now and then.

The ratio that `match` solves for, (ε C_reg(B) − ε' C_reg(B'))/C_reg(b), changes along training, and so does the edge:
near zero training loss the curvature of micro-batches scatters and λ* falls, so a strength that was stable at half time
need not be stable later.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tacit._arguments import finite_number, whole_number
from tacit._errors import InputError
from tacit.advice.matching import SHARE_OF_EDGE, match
from tacit.advice.optimizers import read_optimizer
from tacit.diagnostics.measurement import Measurement
from tacit.diagnostics.recorder import Recorder
from tacit.penalty import GradientPenalty


@dataclass(frozen=True)
class StrengthChange:
    """One measurement: the strength from then on, what matching asked for, λ*, and whether the sample settled it."""

    step: int
    strength: float
    matched: float
    largest_stable_strength: float | None
    decided: bool


class AdaptiveStrength:
    """Sets `penalty.strength` to the advice of every full measurement of a `Recorder`.

        λ ← min(λ_match, ¾ λ*),        λ_match and λ* from `tacit.match` at the newest measurement

    `batch_size` is the small B whose regularization is kept. The large B' is the recorder's, rate and momentum those
    of `optimizer` at the time, so a schedule of the rate is followed: it is taken to be that of the small batch too.
    Micro-batches and `every` are the penalty's. Where a sample does not settle the advice the strength stays, but is
    held below the new ¾ λ*. At a rate of 0 (a warm-up's first steps, the end of a cosine) the strength stays, and the
    newest measurement waits for a rate above 0. Call `step()` after `recorder.after_backward()`; `changes` has an entry
    per measurement that was used. Store `state_dict()` with a checkpoint: a resumed run goes on with the strength.

    >>> import torch
    >>> draws = torch.Generator().manual_seed(0)
    >>> data = torch.randn(64, 3, generator=draws), torch.randn(64, 1, generator=draws)
    >>> model, loss_fn = torch.nn.Linear(3, 1), torch.nn.functional.mse_loss
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    >>> penalty = GradientPenalty(model, 0.0, micro_batch_size=4)
    >>> recorder = Recorder(model, batch_size=32, train_size=64, window=2, full=10, curvature=True,
    ...                     loss_fn=loss_fn, dataset=data)
    >>> adaptive = AdaptiveStrength(penalty, recorder, optimizer=optimizer, batch_size=4)
    >>> for _ in range(2):
    ...     optimizer.zero_grad()
    ...     _ = penalty.backward(lambda x, y: loss_fn(model(x), y), data[0][:32], data[1][:32])
    ...     recorder.after_backward()
    ...     adaptive.step()
    ...     optimizer.step()
    >>> penalty.strength == adaptive.changes[0].strength > 0
    True
    """

    def __init__(self, penalty: GradientPenalty, recorder: Recorder, *, optimizer: Any, batch_size: int) -> None:
        if not isinstance(penalty, GradientPenalty) or not isinstance(recorder, Recorder):
            found = f"{type(penalty).__name__} and {type(recorder).__name__}"
            raise InputError(f"found a {found}; expected a tacit.GradientPenalty and a tacit.Recorder.")
        if recorder.full is None or not recorder.curvature:
            raise InputError(
                "the recorder makes no full measurements with curvature, from which the edge is known; expected "
                "Recorder(…, full=…, curvature=True, loss_fn=…, dataset=…)."
            )
        if callable(penalty.strength):
            raise InputError("the penalty's strength is a schedule; expected a number, which this object changes.")
        if penalty.probability is not None:
            raise InputError(
                f"the penalty has probability={penalty.probability}; expected every=k, whose edge is known."
            )
        read_optimizer(optimizer)
        whole_number("batch_size", batch_size, at_least=1)
        if batch_size > recorder.batch_size:
            raise InputError(f"batch_size={batch_size}; expected at most the recorder's {recorder.batch_size}.")
        self.penalty, self.recorder, self.optimizer, self.batch_size = penalty, recorder, optimizer, batch_size
        self.changes: list[StrengthChange] = []
        self._used: Measurement | None = recorder.measurement

    def step(self) -> None:
        """Changes the strength if the recorder has measured since the last call; nothing else happens."""
        seen = self.recorder.measurement
        if seen is None or seen is self._used or read_optimizer(self.optimizer).learning_rate == 0:
            return
        self._used = seen
        advice = match(
            seen, optimizer=self.optimizer, batch_size=self.batch_size, new_batch_size=self.recorder.batch_size,
            micro_batch_size=self.penalty.micro_batch_size or self.recorder.batch_size, every=self.penalty.every,
        )  # fmt: skip
        assert advice.strength is not None
        matched, edge = advice.strength.value, advice.largest_stable_strength
        now = self.penalty.strength
        assert not callable(now)
        strength = max(0.0, matched) if advice.decided else now
        if edge is not None:
            strength = min(strength, SHARE_OF_EDGE * edge)
        self.penalty.strength = strength
        self.changes.append(StrengthChange(self.recorder.steps - 1, strength, matched, edge, advice.decided))

    def state_dict(self) -> dict[str, Any]:
        """The strength, and the changes that led to it."""
        return {"strength": self.penalty.strength, "changes": [asdict(change) for change in self.changes]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Also sets the strength of the penalty."""
        missing = {"strength", "changes"} - set(state)
        if missing:
            raise InputError(
                f"the state has no {', '.join(sorted(missing))}; expected that of AdaptiveStrength.state_dict()."
            )
        self.penalty.strength = finite_number("strength", state["strength"])
        self.changes = [StrengthChange(**change) for change in state["changes"]]
