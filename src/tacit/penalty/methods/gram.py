"""The exact penalty from layer factors: no weight gradient of a linear layer is formed inside the graph.

1. The closure runs once; linear, convolution and embedding calls become sites (`capture`).
2. The inner pass asks for the gradient once; sites record input rows X and output-gradient rows D (`layer_use`).
3. R = ‖∇Ĉ‖² is added up from the factors, in the Gram or the direct form, whichever is cheaper (`squared_norms`);
   every other parameter (norms, scalars, bare ones) contributes its own gradient.
4. Ĉ + (λ/4) R is differentiated once.

Six matrix products per linear layer in the Gram form, nine in the direct form; a plain gradient has three.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tacit._errors import InputError
from tacit._graph import leaf_uses
from tacit.layers.capture import Capture
from tacit.layers.kinds import EmbeddingSite, LinearSite
from tacit.layers.layer_use import Site
from tacit.layers.penalty_part import GradientWatch, PenaltyPart, gram_matrices_are_cheap
from tacit.layers.squared_norms import uses_gram
from tacit.penalty.methods.check import check_against_double_backward
from tacit.penalty.methods.passes import (
    View,
    bias_of,
    can_keep_factors,
    inner_pass,
    outer_pass,
    row_watch,
    site_uses,
    squared_norm,
    uses_of,
)
from tacit.penalty.objective import Closure, Outcome, Task
from tacit.penalty.surroundings.buffers import BufferVersions, buffers_kept
from tacit.penalty.surroundings.state import RandomState, second_pass


def backward(task: Task) -> Outcome:
    """Exact; the cheapest exact way for models of linear layers, and never dearer than double backward by much."""
    outcome, _ = run(task, keep_factors=False)
    return outcome


def run(task: Task, *, keep_factors: bool) -> tuple[Outcome, list[LinearSite]]:
    """`backward`; with `keep_factors` linear weights get no `.grad` but leave their factors on the returned sites."""
    if len(task.closures) > 1:
        raise InputError("second_view with method='gram'; expected a single view. Use method='double_backward'.")
    assert task.mean is None  # `GradientPenalty` refuses of='global_batch'
    parameters = list(task.parameters.values())
    view = _capture(task, task.closures[0])
    factored = [site for site in view.sites if keep_factors and can_keep_factors(site)]
    norm, checked, part = torch.zeros_like(view.loss), False, None
    with torch.autocast(parameters[0].device.type, enabled=False):
        if not task.penalised:  # one backward pass is enough, and sites need no D
            outer_pass(task, view.loss, view.sites, factored)
        else:
            before = BufferVersions(task.modules)
            inner_pass(view, parameters, task.scale)
            norm = squared_norm(view, parameters) / task.scale**2
            with before.keep_from_here():
                if task.check_sites:
                    with buffers_kept(task.model):  # it runs checkpointed blocks once more
                        checked = check_against_double_backward(
                            view.loss, view.sites, parameters, norm=norm, scale=task.scale
                        )
                part, watch = _watch_part(task, view, factored)
                objective = task.plain_part(view.loss) + task.strength / 4 * norm
                outer_pass(task, objective, view.sites, factored, watch)
    outcome = Outcome(view.loss.detach(), norm.detach(), checked=checked, part=part)
    return outcome, [site for site in factored if isinstance(site, LinearSite)]


def _watch_part(task: Task, view: View, factored: Sequence[Site]) -> tuple[PenaltyPart, GradientWatch]:
    """Lets the outer pass add up the penalty's part of the gradient (`penalty_part`).

    Where g is formed, by the inner pass, by the direct form or as a sum of rows, the finished gradient is compared with
    it. Any other weight has ⟨g, H g⟩ by its rows, and ‖(λ/2) H g‖ if they are few and of one use, or not at all.
    """
    part, parameters = PenaltyPart(task.strength), list(task.parameters.values())
    by_weight, by_bias = uses_of(view, parameters)
    plain: dict[Tensor, Tensor] = {}
    by_rows: set[Tensor | None] = set()
    for parameter in parameters:
        formed = [site.bias_gradient(site.recorded_gradient()) for site in by_bias.get(id(parameter), ())]
        if id(parameter) in view.gradients:
            formed.append(view.gradients[id(parameter)].detach())
        sites = by_weight.get(id(parameter), [])
        of_weight = None if any(site in factored for site in sites) else _formed(sites)
        formed += of_weight or []
        if of_weight is None:
            by_rows |= {parameter, bias_of(sites, by_bias)}
            for site in sites:
                site.row_watch = row_watch(task, part)
                site.row_watch.few_rows = few_rows = len(sites) == 1 and _has_few_rows(site)
                part.squares_missing |= not few_rows
        if formed:
            whole = sum(formed[1:], formed[0])
            plain[parameter] = whole / task.scale if task.scaled else whole
    for site in view.sites:
        site.weight_gradient_of_norm = None
    return part, GradientWatch(part, plain, task.factor, task.loss_weight, by_rows=by_rows)


def _formed(sites: Sequence[Site]) -> list[Tensor] | None:
    """A weight's gradient, in parts, where the direct form has it or it is a sum of rows by index."""
    if sites and all(isinstance(site, EmbeddingSite) for site in sites):
        return [site.weight_gradient(site.recorded_inputs(), site.recorded_gradient()) for site in sites]
    formed = [site.weight_gradient_of_norm for site in sites if site.weight_gradient_of_norm is not None]
    return formed if formed or not sites else None


def _has_few_rows(site: Site) -> bool:
    gradient = site.recorded_gradient()
    fan_out = gradient.shape[-1]
    count, fan_in = gradient.numel() // max(1, fan_out), site.weight.numel() // max(1, fan_out)
    return isinstance(site, LinearSite) and gram_matrices_are_cheap(count, fan_in, fan_out)


def plan(task: Task) -> dict[str, str]:
    """How each parameter's part of ‖∇Ĉ‖² is computed: `gram`, `factors` (direct) or `gradient`; runs the closure."""
    device = next(iter(task.parameters.values())).device.type
    start = RandomState.now(task.model, task.generators)
    with second_pass(task.model, start, task.generators):  # a look, not a step: buffers and generators come back
        view = _capture(task, task.closures[0])
        with torch.autocast(device, enabled=False):
            inner_pass(view, list(task.parameters.values()), task.scale)
    made = {}
    for name, parameter in task.parameters.items():
        reached = [site for site in view.sites if site.output_gradient is not None]
        sites = [site for site in reached if site.weight is parameter]
        of_bias = [site for site in reached if site.bias is parameter]
        if id(parameter) in view.gradients or not (sites or of_bias):
            made[name] = "gradient"
        else:
            made[name] = "gram" if sites and uses_gram(sites) else "factors"
    return made


def _capture(task: Task, closure: Closure) -> View:
    trainable = [parameter for parameter in task.model.parameters() if parameter.requires_grad]
    capture = Capture(trainable)
    with capture:
        loss = task.loss(closure)
    _find_other_uses(capture, loss)
    return View(loss, capture.sites, capture.anchor, {})


def _find_other_uses(capture: Capture, loss: Tensor) -> None:
    """Parameters used anywhere but at sites get ordinary gradients.

    The capture sees torch functions; the graph also shows uses inside custom autograd functions, as extra edges.
    """
    edges = leaf_uses(loss)
    uses = site_uses(capture.sites)
    hidden = {id(leaf) for leaf, count in edges.items() if count != uses.get(id(leaf), count)}
    by_autograd = capture.used_otherwise | hidden
    for site in capture.sites:
        site.weight_by_autograd = id(site.weight) in by_autograd
        site.bias_by_autograd = site.bias is not None and id(site.bias) in by_autograd
