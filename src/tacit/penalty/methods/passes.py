"""The inner and the outer pass over a closure's layer uses, and ‖∇Ĉ‖² between them.

What the passes do to a single layer use is drawn in `layer_use`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from tacit._util.errors import InputError
from tacit._util.tree import real, total
from tacit.layers.kinds import LinearUse
from tacit.layers.layer_use import LayerUse
from tacit.layers.penalty_part import GradientWatch, PenaltyPart, RowWatch
from tacit.layers.squared_norms import bias_squared_norm, weight_squared_norm
from tacit.penalty.objective import Objective, gradients_of
from tacit.penalty.surroundings.refusals import NOTHING_REACHED


@dataclass
class View:
    """One closure's loss with everything the inner pass left behind: uses, and gradients of all other parameters."""

    loss: Tensor
    uses: list[LayerUse]
    common_leaf: Tensor  # the capture's leaf that every use depends on: asking for its gradient visits them all
    gradients: dict[
        int, Tensor
    ]  # id(parameter) → differentiable gradient, for parameters that layer uses alone do not tell
    copies: dict[int, Tensor] = field(default_factory=dict)  # id(parameter) → a copy for each micro-batch


def count_uses(uses: Sequence[LayerUse]) -> dict[int, int]:
    """How often each parameter is used by these layers, by id."""
    counts: dict[int, int] = {}
    for use in uses:
        for parameter in (use.weight, use.bias):
            if parameter is not None:
                counts[id(parameter)] = counts.get(id(parameter), 0) + 1
    return counts


def inner_pass(view: View, parameters: Sequence[nn.Parameter], scale: float | Tensor) -> None:
    """One backward pass that fills the uses and finds differentiable gradients for all other parameters.

    Parameters known by their uses are not asked for, so hooks on them see the final gradient only.
    """
    known = {id(use.weight) for use in view.uses if not use.weight_by_autograd}
    known |= {id(use.bias) for use in view.uses if not use.bias_by_autograd}
    others = [parameter for parameter in parameters if id(parameter) not in known]
    wanted = [view.common_leaf, *(view.copies.get(id(parameter), parameter) for parameter in others)]
    loss = view.loss if isinstance(scale, float) and scale == 1 else scale * view.loss
    gradients = gradients_of(loss, wanted, create_graph=True)
    for parameter, gradient in zip(others, gradients[1:], strict=True):
        if gradient is not None:
            view.gradients[id(parameter)] = gradient


def uses_of(
    view: View, parameters: Sequence[nn.Parameter]
) -> tuple[dict[int, list[LayerUse]], dict[int, list[LayerUse]]]:
    """The uses that the inner pass reached, by the weight and by the bias that is known by them alone."""
    wanted = {id(parameter) for parameter in parameters}
    by_weight: dict[int, list[LayerUse]] = {}
    by_bias: dict[int, list[LayerUse]] = {}
    for use in (use for use in view.uses if use.output_gradient is not None):
        if id(use.weight) in wanted and not use.weight_by_autograd:
            by_weight.setdefault(id(use.weight), []).append(use)
        if use.bias is not None and id(use.bias) in wanted and not use.bias_by_autograd:
            by_bias.setdefault(id(use.bias), []).append(use)
    return by_weight, by_bias


def squared_norm(view: View, parameters: Sequence[nn.Parameter]) -> Tensor:
    """scale² ‖∇Ĉ‖² over the parameters."""
    by_weight, by_bias = uses_of(view, parameters)
    terms: list[Tensor] = []
    for uses in by_weight.values():
        bias = bias_of(uses, by_bias)
        if bias is not None:
            del by_bias[id(bias)]
        terms.append(weight_squared_norm(uses, with_bias=bias is not None))
    terms += [bias_squared_norm(uses) for uses in by_bias.values()]
    gradients = [view.gradients[id(parameter)] for parameter in parameters if id(parameter) in view.gradients]
    terms += [real(gradient).square().sum() for gradient in gradients]
    if not terms:
        raise InputError(NOTHING_REACHED)
    return total(term.to(terms[0].dtype) for term in terms)


def bias_of(uses: Sequence[LayerUse], by_bias: dict[int, list[LayerUse]]) -> Tensor | None:
    """The bias whose norm is taken with that of the weight of these uses: it is used just there."""
    bias = uses[0].bias
    one_orientation = len({isinstance(use, LinearUse) and use.transposed for use in uses}) == 1
    return bias if bias is not None and one_orientation and by_bias.get(id(bias)) == uses else None


def outer_pass(
    objective: Objective,
    value: Tensor,
    uses: Sequence[LayerUse],
    factored: Sequence[LayerUse],
    watch: GradientWatch | None = None,
) -> None:
    for use in uses:
        use.inner = False
        use.start_outer_pass()
    for use in factored:
        use.keep_factors = True
    objective.finish(value, watch, factor=objective.factor)
    if any(use.tangents is not None for use in uses):
        raise InputError(
            "autograd did not visit all parts of a layer, so a term of the penalty's gradient is missing. "
            "Use method='double_backward'."
        )


def row_watch(objective: Objective, part: PenaltyPart, *, micro_batches: int = 1) -> RowWatch:
    """For one use: adds ⟨g, λ/2 H g⟩ of its weight, and of the bias whose norm is taken with the weight's."""
    factor = objective.factor / micro_batches
    share = factor * objective.strength / 4 / objective.scale**2
    plain = objective.weight * objective.loss_weight / micro_batches
    return RowWatch(part, factor=factor, share=share, scale=objective.scale, plain=plain)


def can_keep_factors(use: LayerUse) -> bool:
    return isinstance(use, LinearUse) and not use.weight_by_autograd
