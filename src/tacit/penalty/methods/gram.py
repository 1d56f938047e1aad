"""The exact penalty from layer factors: no weight gradient of a linear layer is formed inside the graph.

1. The closure runs once; linear, convolution and embedding calls become layer uses (`capture`).
2. The inner pass asks for the gradient once; uses record input rows X and output-gradient rows D (`layer_use`).
3. R = ‖∇Ĉ‖² is added up from the factors, in the Gram or the direct form, whichever is cheaper (`squared_norms`);
   every other parameter (norms, scalars, bare ones) contributes its own gradient.
4. Ĉ + (λ/4) R is differentiated once.

Six matrix products per linear layer in the Gram form, nine in the direct form; a plain gradient has three.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tacit._util.errors import InputError
from tacit._util.graph import leaf_uses
from tacit.layers.capture import Capture
from tacit.layers.kinds import EmbeddingUse, LinearUse
from tacit.layers.layer_use import LayerUse
from tacit.layers.penalty_part import GradientWatch, PenaltyPart, gram_matrices_are_cheap
from tacit.layers.squared_norms import uses_gram
from tacit.penalty.methods.check import check_against_double_backward
from tacit.penalty.methods.passes import (
    View,
    bias_of,
    can_keep_factors,
    count_uses,
    inner_pass,
    outer_pass,
    row_watch,
    squared_norm,
    uses_of,
)
from tacit.penalty.objective import Closure, Objective, Outcome
from tacit.penalty.surroundings.buffers import BufferVersions, buffers_kept
from tacit.penalty.surroundings.state import RandomState, second_pass


def backward(objective: Objective) -> Outcome:
    """Exact; the cheapest exact way for models of linear layers, and never dearer than double backward by much."""
    outcome, _ = run(objective, keep_factors=False)
    return outcome


def run(objective: Objective, *, keep_factors: bool) -> tuple[Outcome, list[LinearUse]]:
    """`backward`; with `keep_factors` linear weights get no `.grad` but leave their factors on the returned uses."""
    if len(objective.closures) > 1:
        raise InputError("second_view with method='gram'; expected a single view. Use method='double_backward'.")
    assert objective.mean is None  # `GradientPenalty` refuses norm_of='global_batch'
    parameters = list(objective.parameters.values())
    view = _capture(objective, objective.closures[0])
    factored = [use for use in view.uses if keep_factors and can_keep_factors(use)]
    norm, checked, part = torch.zeros_like(view.loss), False, None
    if not objective.penalised:  # one backward pass is enough, and uses need no D
        outer_pass(objective, view.loss, view.uses, factored)
    else:
        before = BufferVersions(objective.modules)
        inner_pass(view, parameters, objective.scale)
        norm = squared_norm(view, parameters) / objective.scale**2
        with before.keep_from_here():
            if objective.check_layers:
                with buffers_kept(objective.modules):  # it runs checkpointed blocks once more
                    checked = check_against_double_backward(
                        view.loss, view.uses, parameters, norm=norm, scale=objective.scale
                    )
            part, watch = _watch_part(objective, view, factored)
            value = objective.plain_part(view.loss) + objective.strength / 4 * norm
            outer_pass(objective, value, view.uses, factored, watch)
    outcome = Outcome(view.loss.detach(), norm.detach(), checked=checked, part=part)
    return outcome, [use for use in factored if isinstance(use, LinearUse)]


def _watch_part(objective: Objective, view: View, factored: Sequence[LayerUse]) -> tuple[PenaltyPart, GradientWatch]:
    """Lets the outer pass add up the penalty's part of the gradient (`penalty_part`).

    Where g is formed, by the inner pass, by the direct form or as a sum of rows, the finished gradient is compared with
    it. Any other weight has ⟨g, H g⟩ by its rows, and ‖(λ/2) H g‖ if they are few and of one use, or not at all.
    """
    part, parameters = PenaltyPart(objective.strength), list(objective.parameters.values())
    by_weight, by_bias = uses_of(view, parameters)
    plain: dict[Tensor, Tensor] = {}
    by_rows: set[Tensor | None] = set()
    for parameter in parameters:
        formed = [use.bias_gradient(use.recorded_gradient()) for use in by_bias.get(id(parameter), ())]
        if id(parameter) in view.gradients:
            formed.append(view.gradients[id(parameter)].detach())
        uses = by_weight.get(id(parameter), [])
        of_weight = None if any(use in factored for use in uses) else _formed(uses)
        if of_weight is None and objective.applied is not None:
            few_rows = len(uses) == 1 and _has_few_rows(uses[0])
            if objective.collect is not None or not few_rows:  # one product more, for ‖(λ/2) H g‖
                of_weight = [use.weight_gradient(use.recorded_inputs(), use.recorded_gradient()) for use in uses]
        formed += of_weight or []
        if of_weight is None:
            by_rows |= {parameter, bias_of(uses, by_bias)}
            for use in uses:
                use.row_watch = row_watch(objective, part)
                use.row_watch.few_rows = few_rows = len(uses) == 1 and _has_few_rows(use)
                part.squares_missing |= not few_rows
        if formed:
            whole = sum(formed[1:], formed[0])
            plain[parameter] = whole / objective.scale if objective.scaled else whole
    for use in view.uses:
        use.weight_gradient_of_norm = None
    return part, GradientWatch(
        part, plain, objective.factor, objective.loss_weight, by_rows=by_rows, collect=objective.collect
    )


def _formed(uses: Sequence[LayerUse]) -> list[Tensor] | None:
    """A weight's gradient, in parts, where the direct form has it or it is a sum of rows by index."""
    if uses and all(isinstance(use, EmbeddingUse) for use in uses):
        return [use.weight_gradient(use.recorded_inputs(), use.recorded_gradient()) for use in uses]
    formed = [use.weight_gradient_of_norm for use in uses if use.weight_gradient_of_norm is not None]
    return formed if formed or not uses else None


def _has_few_rows(use: LayerUse) -> bool:
    gradient = use.recorded_gradient()
    fan_out = gradient.shape[-1]
    count, fan_in = gradient.numel() // max(1, fan_out), use.weight.numel() // max(1, fan_out)
    return isinstance(use, LinearUse) and gram_matrices_are_cheap(count, fan_in, fan_out)


def plan(objective: Objective) -> dict[str, str]:
    """How each parameter's part of ‖∇Ĉ‖² is computed: `gram`, `factors` (direct) or `gradient`; runs the closure."""
    device = next(iter(objective.parameters.values())).device.type
    start = RandomState.now(objective.model, objective.generators)
    with second_pass(
        objective.model, start, objective.generators
    ):  # a look, not a step: buffers and generators come back
        view = _capture(objective, objective.closures[0])
        with torch.autocast(device, enabled=False):
            inner_pass(view, list(objective.parameters.values()), objective.scale)
    made = {}
    for name, parameter in objective.parameters.items():
        reached = [use for use in view.uses if use.output_gradient is not None]
        uses = [use for use in reached if use.weight is parameter]
        of_bias = [use for use in reached if use.bias is parameter]
        if id(parameter) in view.gradients or not (uses or of_bias):
            made[name] = "gradient"
        else:
            made[name] = "gram" if uses and uses_gram(uses) else "factors"
    return made


def _capture(objective: Objective, closure: Closure) -> View:
    trainable = [parameter for parameter in objective.model.parameters() if parameter.requires_grad]
    capture = Capture(trainable)
    with capture:
        loss = objective.loss(closure)
    _find_other_uses(capture, loss)
    return View(loss, capture.uses, capture.common_leaf, {})


def _find_other_uses(capture: Capture, loss: Tensor) -> None:
    """Parameters used anywhere but in known layers get ordinary gradients.

    The capture sees torch functions; the graph also shows uses inside custom autograd functions, as extra edges.
    """
    edges = leaf_uses(loss)
    counts = count_uses(capture.uses)
    hidden = {id(leaf) for leaf, count in edges.items() if count != counts.get(id(leaf), count)}
    by_autograd = capture.used_otherwise | hidden
    for use in capture.uses:
        use.weight_by_autograd = id(use.weight) in by_autograd
        use.bias_by_autograd = use.bias is not None and id(use.bias) in by_autograd
