"""`Relative`: λ chosen in the steps themselves, so that the penalty's part of a step is r times the gradient.

    λ = r · mean‖∇Ĉ‖ / mean‖½ H∇Ĉ‖,    means over the last steps, 1/smoothing of them

The step applies ∇Ĉ + λ · ½H∇Ĉ, so both norms are known from it, and λ never follows a guess of the curvature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from tacit._util.arguments import finite_number
from tacit._util.errors import InputError
from tacit.layers.penalty_part import inner_product

RISE = 16.0  # times the last λ, at most, is the next: a product that rounded to 0 must not throw λ to its cap
FLOOR = 2.0**-20  # of the start: λ = 0 would measure nothing and stay
# Of r: a part below r/16 is that of a first λ which was far too small, and mostly rounding in half precision. It gives
# the next λ, and is then forgotten.
FELT = 16.0
Deliver = Callable[[Sequence[Tensor], Sequence[Tensor]], None]


@dataclass(frozen=True)
class Relative:
    """A strength given by its effect: λ holds the penalty's part of a step at r times the gradient.

    λ_t = r · mean‖∇Ĉ‖ / mean‖½ mean_k Hₖgₖ‖

    The first norm is that of the plain gradient of the whole batch; the second that of the vector which the step adds,
    divided by λ. Both run over the parameters in the norm, and both are averaged over penalised steps: a new one has
    the weight `smoothing`, and the average of the first few is that of what there is. λ belongs to the step after them.

    The share r is by definition that of the mean which is applied, for any number of micro-batches. λ itself does
    depend on it: a mean of fewer Hₖgₖ is longer, because they differ, so fewer micro-batches have a smaller λ.

    - `ratio`: r, a number, or a function of the step (`tacit.schedules.early(0.4, steps)`). Pilots gained up to 0.8.
      After 1/smoothing steps at 0 the averages are forgotten, and λ begins again.
    - `cap`: λ is never larger, and where `last.strength` is at it the part is below r. In pilots no strength above 1
      helped, and with r = 0.8 and a cap of 4 a new network stayed on its first plateau. λ has the unit of 1/curvature:
      a loss times c needs the cap times 1/c.
    - `start`: λ of the first penalised step, where nothing is known. λ then rises by 16 times a step at most.

    It is no bound on a single step: where curvature jumps, λ follows within some steps. From r = 1 on the penalty
    can turn a step round along a direction of negative curvature, so that a saddle keeps the run. With `every=k` and
    `probability=p` the penalised step has kλ or λ/p, so its part is k·r there (keep it below 1) and r on average; other
    steps measure nothing.

    A norm that is not finite (an overflow that a GradScaler skips) never counts, nor does a step without a gradient. On
    W workers both norms are root mean squares over workers; while calls accumulate one update, only the one that
    synchronises counts. With half-precision parameters the part's norm includes its rounding, which makes λ smaller.

    >>> from tacit import GradientPenalty
    >>> model, x = torch.nn.Linear(2, 1), torch.ones(4, 2)
    >>> penalty = GradientPenalty(model, Relative(0.4))
    >>> for _ in range(8):
    ...     loss = penalty.backward(lambda: model(x).square().mean())
    >>> share = penalty.last.penalty_gradient_norm / penalty.last.gradient_squared_norm.sqrt()
    >>> round(float(share), 3)
    0.4
    """

    ratio: float | Callable[[int], float]
    _: KW_ONLY
    smoothing: float = 0.02
    cap: float = 1.0
    start: float = 2.0**-14

    def __post_init__(self) -> None:
        if not callable(self.ratio):
            finite_number("ratio", self.ratio, positive=True)
        if finite_number("smoothing", self.smoothing, positive=True) > 1:
            raise InputError(f"smoothing={self.smoothing}; expected 0 < smoothing <= 1, the weight of a new step.")
        finite_number("cap", self.cap, positive=True)
        if finite_number("start", self.start, positive=True) > self.cap:
            raise InputError(f"start={self.start} with cap={self.cap}; expected a start of at most the cap.")

    def __repr__(self) -> str:
        given = {field.name: getattr(self, field.name) for field in fields(self)[1:]}
        other = [
            f"{field.name}={given[field.name]:g}" for field in fields(self)[1:] if given[field.name] != field.default
        ]
        ratio = "a schedule" if callable(self.ratio) else f"{self.ratio:g}"
        return f"Relative({', '.join([ratio, *other])})"

    def ratio_at(self, step: int) -> float:
        return finite_number("ratio", self.ratio(step)) if callable(self.ratio) else float(self.ratio)


class RelativeStrength:
    """λ of the next step from the norms of those before. On the device: nothing waits for it."""

    def __init__(self, facts: Relative) -> None:
        self.facts = facts
        self.means: Tensor | None = None  # of ‖∇Ĉ‖ and ‖½ H∇Ĉ‖
        self.weight: Tensor | None = None  # that the averages sum up to: 1 − (1 − smoothing)ⁿ; 0 while they are a guess
        self.applied: float | Tensor = facts.start  # λ of the last step that counted
        self.handed: float | Tensor = facts.start
        self.ratio = 1.0
        self.pause = 0  # how many calls had the ratio 0 since the last that had not

    def now(self, step: int) -> float | Tensor:
        """λ of this step; the float 0.0 where the ratio is 0."""
        self.ratio = self.facts.ratio_at(step)
        self.pause = self.pause + 1 if self.ratio == 0 else 0
        if self.ratio == 0:
            if self.pause * self.facts.smoothing >= 1:  # what is averaged is of another place by now
                self.means, self.weight, self.applied = None, None, self.facts.start
            return 0.0
        facts, means = self.facts, self.means
        if means is None:
            self.handed = facts.start
        else:
            wanted = (self.ratio * means[0] / means[1]).clamp(FLOOR * facts.start, facts.cap)
            last = torch.as_tensor(self.applied, dtype=means.dtype, device=means.device)
            self.handed = torch.where(means.any(), wanted.minimum(RISE * last.clamp(min=facts.start)), last)
        return self.handed

    def see(self, gradient_norm: Tensor, product_norm: Tensor) -> None:
        """Take note of the step that `now` was asked for: ‖∇Ĉ‖, and the norm of what was applied, divided by λ."""
        norms = torch.stack([gradient_norm.detach(), product_norm.detach()])
        if norms.device.type != "mps":  # in float64, which MPS does not have, a stored state has all bits
            norms = norms.double()
        old = torch.zeros_like(norms) if self.means is None else self.means.to(norms)
        weight = norms.new_zeros(()) if self.weight is None else self.weight.to(norms)
        handed, applied = (torch.as_tensor(value).to(norms) for value in (self.handed, self.applied))
        w = self.facts.smoothing
        counts = norms.isfinite().all() & (norms.amax() > 0)  # 0/0 says nothing
        trusted = (weight > 0) | (FELT * handed * norms[1] >= self.ratio * norms[0])
        grown = torch.where(trusted, (1 - w) * weight + w, 0.0)
        gain = torch.where(trusted, w / grown, 1.0)
        # With the first gain of 1 nothing of a guess is left, however large it was.
        self.means = torch.where(counts, (1 - gain) * old + gain * norms, old)
        self.weight = torch.where(counts, grown, weight)
        self.applied = torch.where(counts, handed, applied)

    def with_facts(self, facts: Relative) -> RelativeStrength:
        """Another ratio on the same averages."""
        self.facts = facts
        return self

    def state_dict(self) -> dict[str, Any] | None:
        """Both averages, the weight that counts their steps, the last λ; None before the first step that counted."""
        if self.means is None or self.weight is None:
            return None
        gradient, product = self.means.tolist()
        return {
            "gradient_norm": gradient,
            "product_norm": product,
            "weight": float(self.weight),
            "applied": float(self.applied),
            "pause": self.pause,
        }

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        self.pause = 0 if state is None else int(state["pause"])
        if state is None:
            self.means, self.weight, self.applied = None, None, self.facts.start
            return
        numbers = [state[name] for name in ("gradient_norm", "product_norm", "weight", "applied")]
        means, (self.weight, self.applied) = numbers[:2], torch.tensor(numbers[2:], dtype=torch.float64)
        self.means = torch.tensor(means, dtype=torch.float64)


class AppliedSum:
    """The two vectors that a step of several pieces applies, ∇Ĉ and (λ/2) H∇Ĉ, by parameter in the norm.

    They are added up from the pieces' own (`add`), or seen on their way where the step delivers them apart (`seeing`).
    Of a single piece that is the whole batch the step's own record has their norms, and nothing is kept here.
    """

    def __init__(self, parameters: Iterable[Tensor], weight: float, *, several: bool) -> None:
        self.parameters, self.weight, self.several = set(parameters), weight, several
        self.plain: dict[Tensor, Tensor] = {}
        self.penalty: dict[Tensor, Tensor] = {}
        self.divisor: float | Tensor = 1.0
        self.missing = False

    def add(self, weight: float, leaf: Tensor, gradient: Tensor, part: Tensor) -> None:
        """One piece's g and (λ/2) H g; `weight` is that of the piece, where the whole step has `self.weight`."""
        if gradient.is_sparse or part.is_sparse:
            self.missing = True
            return
        share = weight / self.weight
        for sums, vector in ((self.plain, gradient), (self.penalty, part)):
            wide = _wide(vector.detach())
            known = sums.get(leaf)
            sums[leaf] = share * wide if known is None else known.add_(wide, alpha=share)

    def seeing(self, deliver: Deliver, factor: float | Tensor) -> tuple[Deliver, Deliver]:
        """`deliver` for the penalty's part, and for the gradient of the whole batch; both arrive times `factor`."""
        self.divisor = factor

        def into(sums: dict[Tensor, Tensor]) -> Deliver:
            def see(leaves: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
                for leaf, gradient in zip(leaves, gradients, strict=True):
                    if leaf in self.parameters:
                        self.missing |= gradient.is_sparse
                        known = sums.get(leaf)  # the same tensors are kept elsewhere: nothing is changed in place
                        sums[leaf] = gradient.detach() if known is None else known + gradient.detach()
                deliver(leaves, gradients)

            return see

        return into(self.penalty), into(self.plain)

    def squared_norms(self) -> tuple[Tensor, Tensor] | None:
        """‖∇Ĉ‖² and ‖(λ/2) H∇Ĉ‖²; None where a gradient is sparse."""
        if self.missing or not self.plain:
            return None
        plain = squared_norm(self.plain.values())
        penalty = squared_norm(self.penalty.values()) if self.penalty else torch.zeros_like(plain)
        if isinstance(self.divisor, float) and self.divisor == 1:
            return plain, penalty
        return plain / self.divisor**2, penalty / self.divisor**2


def squared_norm(vectors: Iterable[Tensor]) -> Tensor:
    """‖v‖² of one vector in parts, in float32 at least."""
    parts = [vector.detach() for vector in vectors]
    return inner_product(parts, parts)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
