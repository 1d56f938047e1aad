"""The exact penalty from layer factors: no weight gradient of a linear layer is formed inside the graph.

1. The closure runs once; linear, convolution and embedding calls become sites (`capture`).
2. The inner pass asks for the gradient once; sites record input rows X and output-gradient rows D (`layer_use`).
3. R = ‖∇Ĉ‖² is added up from the factors, in the Gram or the direct form, whichever is cheaper (`squared_norms`);
   every other parameter (norms, scalars, bare ones) contributes its own gradient.
4. Ĉ + (λ/4) R is differentiated once.

Six matrix products per linear layer in the Gram form, nine in the direct form; a plain gradient has three.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from tacit._errors import InputError
from tacit._graph import leaf_uses
from tacit._tree import total
from tacit.layers.capture import Capture
from tacit.layers.kinds import EmbeddingSite, LinearSite
from tacit.layers.layer_use import Site
from tacit.layers.penalty_part import FactorWatch, GradientWatch, PenaltyPart
from tacit.layers.squared_norms import inner_product, parameter_gradients, uses_gram
from tacit.penalty.methods.check import check_against_double_backward
from tacit.penalty.methods.passes import (
    View,
    can_keep_factors,
    inner_pass,
    input_gradients_to_come,
    outer_pass,
    site_uses,
    squared_norm,
)
from tacit.penalty.objective import Closure, Outcome, Task
from tacit.penalty.surroundings.buffers import BufferVersions
from tacit.penalty.surroundings.refusals import NOTHING_REACHED
from tacit.penalty.surroundings.state import RandomState, second_pass


def backward(task: Task) -> Outcome:
    """Exact; the cheapest exact way for models of linear layers, and never dearer than double backward by much."""
    outcome, _ = run(task, keep_factors=False)
    return outcome


def run(task: Task, *, keep_factors: bool) -> tuple[Outcome, list[LinearSite]]:
    """`backward`; with `keep_factors` linear weights get no `.grad` but leave their factors on the returned sites."""
    device = next(iter(task.parameters.values())).device.type
    views = [_capture(task, closure) for closure in task.closures]
    sites = [site for view in views for site in view.sites]
    factored = [site for site in sites if keep_factors and can_keep_factors(site)]
    loss = torch.stack([view.loss for view in views]).mean()
    checked, part = False, None
    with torch.autocast(device, enabled=False):
        if not task.strength:  # one backward pass is enough, and sites need no D
            norm = torch.zeros_like(loss)
            outer_pass(task, loss, sites, [False] * len(sites), factored)
        else:
            before = BufferVersions(task.model)
            norm, share, means = _penalty(task, views)
            with before.keep_from_here():
                comes = input_gradients_to_come(sites, share)
                if task.check_sites:
                    checked = check_against_double_backward(
                        [view.loss for view in views], sites, comes, list(task.parameters.values()),
                        norm=share, scale=task.scale, means=means,
                    )  # fmt: skip
                part, watch = _watch_part(task, views, factored)
                outer_pass(task, task.plain_part(loss) + task.strength / 4 * share, sites, comes, factored, watch)
    outcome = Outcome(loss.detach(), norm.detach(), checked=checked, part=part)
    return outcome, [site for site in factored if isinstance(site, LinearSite)]


def _watch_part(
    task: Task, views: Sequence[View], factored: Sequence[Site]
) -> tuple[PenaltyPart | None, GradientWatch | None]:
    """Lets the outer pass add up the penalty's part of the gradient (`penalty_part`), where one view has it all.

    A weight in the Gram form is watched by its factors; every other parameter by its gradient g, which the inner pass
    or the direct form has formed. What would cost a product (a weight in the Gram form with many rows, or with several
    uses) leaves both numbers unknown.
    """
    if len(views) > 1 or task.mean is not None:
        return None, None
    (view,), factor = views, task.weight * task.scale
    part = PenaltyPart(task.strength)
    plain: dict[Tensor, Tensor] = {}

    def add(parameter: Tensor, gradient: Tensor) -> None:
        known = plain.get(parameter)
        plain[parameter] = gradient.detach() if known is None else known + gradient.detach()

    uses: dict[int, list[Site]] = {}
    for site in (site for site in view.sites if site.output_gradient is not None):
        uses.setdefault(id(site.weight), []).append(site)
    for parameter in task.parameters.values():
        if id(parameter) in view.gradients:
            add(parameter, view.gradients[id(parameter)])
            continue
        for site in (site for site in view.sites if site.bias is parameter and site.output_gradient is not None):
            add(parameter, site.bias_gradient(site.recorded_gradient()))
        sites = uses.get(id(parameter), [])
        formed = next(
            (site.weight_gradient_of_norm for site in sites if site.weight_gradient_of_norm is not None), None
        )
        if formed is not None and not any(site in factored for site in sites):
            add(parameter, formed)
        elif len(sites) == 1 and isinstance(sites[0], LinearSite) and _has_few_rows(sites[0]):
            sites[0].factor_watch = FactorWatch(part, factor, task.scale, task.loss_weight)
        elif all(isinstance(site, EmbeddingSite) for site in sites):
            for site in sites:  # a sum of rows by index, no product
                assert site.inputs is not None
                add(parameter, site.weight_gradient(site.inputs, site.recorded_gradient()))
        elif sites:
            part.missing = True
    for site in view.sites:
        site.weight_gradient_of_norm = None
    scaled = {parameter: gradient / task.scale for parameter, gradient in plain.items()} if task.scale != 1 else plain
    return part, GradientWatch(part, scaled, factor, task.loss_weight)


def _has_few_rows(site: LinearSite) -> bool:
    gradient = site.recorded_gradient()
    fan_out = gradient.shape[-1]
    return FactorWatch.is_cheap(gradient.numel() // max(1, fan_out), site.weight.numel() // max(1, fan_out), fan_out)


def _penalty(task: Task, views: Sequence[View]) -> tuple[Tensor, Tensor, list[list[Tensor]] | None]:
    """The inner passes, ‖∇Ĉ‖² and the part of it that this task differentiates; with workers also their mean ∇Ĉ."""
    parameters = list(task.parameters.values())
    for view in reversed(views):  # the last first, as one backward pass of the mean of both losses visits them
        inner_pass(view, parameters, task.scale)
    if task.mean is not None:
        return _share(task, task.mean, views, parameters)
    norm = _inner_product(views, parameters) / task.scale**2
    return norm, norm, None


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


def _inner_product(views: Sequence[View], parameters: Sequence[nn.Parameter]) -> Tensor:
    """⟨∇Ĉᵃ, ∇Ĉᵇ⟩ over the parameters; ‖∇Ĉ‖² for one view.

    Two views: ½(‖a+b‖² − ‖a‖² − ‖b‖²), because uses of a weight add up whichever view they come from.
    """
    if len(views) == 1:
        return squared_norm(views, parameters)
    both, *each = [squared_norm(chosen, parameters) for chosen in (views, views[:1], views[1:])]
    return 0.5 * (both - each[0] - each[1])


def _share(
    task: Task,
    mean: Callable[[Sequence[Tensor]], list[Tensor]],
    views: Sequence[View],
    parameters: Sequence[nn.Parameter],
) -> tuple[Tensor, Tensor, list[list[Tensor]]]:
    """‖ḡ‖² of the gradient's mean over workers, this worker's share of it, 2⟨g, ḡ⟩ − ‖ḡ‖² (see `Task`), and the ḡ.

    ḡ has to be formed to be averaged, so every layer takes the direct form here.
    """
    own = [_formed(view, parameters) for view in views]
    means = [mean([gradient / task.scale for gradient in gradients]) for gradients in own]
    norm = total((a * b).sum() for a, b in zip(means[0], means[-1], strict=True))
    along = []
    for view, other in zip(views, reversed(means), strict=True):
        direction = {id(parameter): part for parameter, part in zip(parameters, other, strict=True)}
        terms = [(view.gradients[key] * direction[key]).sum() for key in view.gradients if key in direction]
        for site in (site for site in view.sites if site.output_gradient is not None):
            of_weight = None if site.weight_by_autograd else direction.get(id(site.weight))
            of_bias = None if site.bias is None or site.bias_by_autograd else direction.get(id(site.bias))
            if of_weight is not None or of_bias is not None:
                terms.append(inner_product(site, of_weight, of_bias))
        if not terms:
            raise InputError(NOTHING_REACHED)
        along.append(total(term.to(terms[0].dtype) for term in terms))
    return norm, 2 * torch.stack(along).mean() / task.scale - norm, means


def _formed(view: View, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """The gradient of each parameter as a tensor: zeros where the loss does not reach."""
    formed = {id(parameter): torch.zeros_like(parameter) for parameter in parameters}
    for key, gradient in view.gradients.items():
        if key in formed:
            formed[key] += gradient.detach()
    for site in (site for site in view.sites if site.output_gradient is not None):
        of_weight, of_bias = parameter_gradients(site)
        if id(site.weight) in formed and not site.weight_by_autograd:
            formed[id(site.weight)] += of_weight
        if of_bias is not None and id(site.bias) in formed and not site.bias_by_autograd:
            formed[id(site.bias)] += of_bias
    return [formed[id(parameter)] for parameter in parameters]
