"""All micro-batches of a batch at once, up to the outer pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from tacit._util.graph import leaf_uses, suspects
from tacit.layers.kinds import LinearUse
from tacit.layers.micro_batch_capture import (
    MicroBatchCapture,
    NotInOnePassError,
    UsesChangedError,
    micro_batch_losses,
)
from tacit.layers.penalty_part import GradientWatch, PenaltyPart
from tacit.layers.squared_norms import by_index, uses_gram
from tacit.penalty.methods.passes import (
    View,
    can_keep_factors,
    count_uses,
    inner_pass,
    outer_pass,
    row_watch,
    squared_norm,
    uses_of,
)
from tacit.penalty.objective import Objective, Outcome
from tacit.penalty.surroundings.refusals import refuse_suspects
from tacit.penalty.surroundings.switches import uncompiled

LARGEST_COPIES = 2**24  # numbers: 64 MB in float32, beside four times the model


class OnePass:
    """All micro-batches at once, (1/K) Σₖ (Ĉₖ + (λ/4)‖∇Ĉₖ‖²), up to the outer pass; they are the batch's first axis.

    Raises `NotInOnePassError`, or whatever torch raises, where that cannot be done. Parameters that are used both by
    known layers and in other ways are added to `never_layers`, and `UsesChangedError` asks for a second attempt.
    """

    def __init__(
        self,
        objective: Objective,
        closure: Callable[..., Tensor],
        batch: Sequence[Tensor],
        *,
        never_layers: set[int],
        keep_factors: bool = False,
    ) -> None:
        parameters = list(objective.parameters.values())
        count = len(batch[0])
        capture = MicroBatchCapture(
            [parameter for parameter in objective.model.parameters() if parameter.requires_grad],
            micro_batches=count,
            penalised={id(parameter) for parameter in parameters},
            never_layers=never_layers,
            buffers=objective.model.buffers(),
        )
        with uncompiled(objective.compiled):
            later = objective.may_overflow or objective.deferred is not None
            losses = micro_batch_losses(closure, batch, capture, objective.model, may_overflow=later)
        if objective.deferred is not None and not objective.may_overflow:
            objective.deferred.see(losses)
        if objective.look is not None:
            objective.look(losses)
        refuse_suspects(suspects(losses), exact=True)
        _refuse_mixed_uses(capture, losses, never_layers)
        self.uses = capture.uses
        self.factored = [use for use in self.uses if keep_factors and can_keep_factors(use)]
        view = View(losses.sum(), self.uses, capture.common_leaf, {}, capture.copies)
        self.loss = losses.mean()
        inner_pass(view, parameters, objective.scale)
        _refuse_large_copies(view, parameters, count)
        part, self.copies_watch = _watch_part(objective, view, count)
        self.mean_gradient = None if objective.applied is None else _mean_gradient(objective, view, count)
        self.norm = squared_norm(view, parameters) / (count * objective.scale**2)
        self.coarsest = max(
            (use.output_gradient.dtype for use in self.uses if use.output_gradient is not None),
            key=lambda dtype: torch.finfo(dtype).eps,
            default=self.loss.dtype,
        )
        self.outcome = Outcome(self.loss.detach(), self.norm.detach(), part=part)

    def finish(self, objective: Objective, *, form_weight_gradients: bool = False) -> list[LinearUse]:
        """The outer pass; returns uses with factors where the caller wants them, unless all gradients are formed."""
        factored = [] if form_weight_gradients else self.factored
        watch = None
        if self.mean_gradient is not None and objective.collect is not None:
            watch = GradientWatch(
                PenaltyPart(objective.strength), self.mean_gradient, objective.factor, objective.loss_weight,
                collect=objective.collect,
            )  # fmt: skip
        with self.copies_watch:
            value = objective.plain_part(self.loss) + objective.strength / 4 * self.norm
            outer_pass(objective, value, self.uses, factored, watch)
        return [use for use in factored if isinstance(use, LinearUse)]


def _watch_part(objective: Objective, view: View, count: int) -> tuple[PenaltyPart, GradientWatch]:
    """Lets the outer pass add up ⟨gₖ, Hₖ gₖ⟩: uses by their rows, every other parameter by its copies' gradients."""
    part = PenaltyPart(objective.strength, micro_batches=count)
    for use in (use for use in view.uses if use.output_gradient is not None):
        use.row_watch = row_watch(objective, part, micro_batches=count)
    plain = {view.copies[key]: gradient.detach() / objective.scale for key, gradient in view.gradients.items()}
    return part, GradientWatch(part, plain, objective.weight * objective.scale / count, objective.loss_weight)


def _mean_gradient(objective: Objective, view: View, count: int) -> dict[Tensor, Tensor]:
    """(1/K) Σₖ gₖ of each parameter in the norm: rows of all micro-batches give it in one product."""
    means: dict[Tensor, Tensor] = {}
    by_weight, by_bias = uses_of(view, list(objective.parameters.values()))
    for parameter in objective.parameters.values():
        parts = [
            u.weight_gradient(u.recorded_inputs(), u.recorded_gradient()) for u in by_weight.get(id(parameter), ())
        ]
        parts += [use.bias_gradient(use.recorded_gradient()) for use in by_bias.get(id(parameter), ())]
        if id(parameter) in view.gradients:
            parts.append(view.gradients[id(parameter)].detach().sum(0))
        if parts:
            means[parameter] = sum(parts[1:], parts[0]).to(parameter.dtype) / (count * objective.scale)
    return means


def _refuse_mixed_uses(capture: MicroBatchCapture, losses: Tensor, never_layers: set[int]) -> None:
    """Every use of a parameter of the norm is a use or goes through its copies, and no parameter has both."""
    counts = count_uses(capture.uses)
    mixed = {key for key in counts if key in capture.copies}
    for leaf, count in leaf_uses(losses).items():
        expected = counts.get(id(leaf), 0) + (id(leaf) in capture.copies)
        if id(leaf) in capture.penalised and count != expected:
            raise NotInOnePassError("a parameter is used where its use cannot be seen")
    if mixed:
        never_layers |= mixed
        raise UsesChangedError


def _refuse_large_copies(view: View, parameters: Sequence[nn.Parameter], count: int) -> None:
    """Copies, and weight gradients of single micro-batches, that need more memory than a loop would take time."""
    numbers = sum(copy.numel() for copy in view.copies.values())
    by_weight, _ = uses_of(view, parameters)
    direct = [uses for uses in by_weight.values() if not (uses_gram(uses) or by_index(uses))]
    numbers += count * sum(uses[0].weight.numel() for uses in direct)
    if numbers > LARGEST_COPIES + 4 * sum(parameter.numel() for parameter in parameters):
        raise NotInOnePassError("the weights are too many to have a gradient for each micro-batch")
