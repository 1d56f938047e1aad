"""The exact penalty from layer factors: no weight gradient of a linear layer is formed inside the graph.

1. The closure runs once; linear, convolution and embedding calls become sites (`_capture`).
2. The inner pass asks for the gradient once; sites record input rows X and output-gradient rows D (`_sites`).
3. R = ‖∇Ĉ‖² is added up from the factors, in the Gram or the direct form, whichever is cheaper (`_squared_norms`);
   every other parameter (norms, scalars, bare ones) contributes its own gradient.
4. Ĉ + (λ/4) R is differentiated once.

Six matrix products per linear layer in the Gram form, nine in the direct form; a plain gradient has three.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tacit._errors import InputError
from tacit._tree import total
from tacit.penalty._capture import Capture, leaf_uses
from tacit.penalty._refusals import NOTHING_REACHED
from tacit.penalty._sites import LinearSite, Site
from tacit.penalty._squared_norms import (
    bias_squared_norm,
    inner_product,
    parameter_gradients,
    uses_gram,
    weight_squared_norm,
)
from tacit.penalty._state import RandomState, second_pass, without_hooks
from tacit.penalty._task import Closure, Outcome, Task


@dataclass
class View:
    """One closure's loss with everything the inner pass left behind: sites, and gradients of all other parameters."""

    loss: Tensor
    sites: list[Site]
    anchor: Tensor  # a leaf that every site hangs on: asking for its gradient visits them all
    gradients: dict[int, Tensor]  # id(parameter) → differentiable gradient, for parameters not known by sites alone


def backward(task: Task) -> Outcome:
    """Exact; the cheapest exact way for models of linear layers, and never dearer than double backward by much."""
    outcome, _ = run(task, keep_factors=False)
    return outcome


def run(task: Task, *, keep_factors: bool) -> tuple[Outcome, list[LinearSite]]:
    """`backward`; with `keep_factors` linear weights get no `.grad` but leave their factors on the returned sites."""
    device = next(iter(task.parameters.values())).device.type
    views = [_capture(task, closure) for closure in task.closures]
    parameters = list(task.parameters.values())
    checked = False
    with torch.autocast(device, enabled=False):
        norm = share = torch.zeros_like(views[0].loss)
        if task.strength:  # without a penalty one backward pass is enough, and sites need no D
            for view in views:
                _inner_pass(view, parameters, task.scale)
            if task.mean is None:
                norm = share = _inner_product(views, parameters) / task.scale**2
            else:
                norm, share = _share(task, views, parameters)
            if task.options.get("check_sites") and len(views) == 1 and task.mean is None:
                checked = _check(views[0], parameters, norm.detach(), task.scale)
        loss = torch.stack([view.loss for view in views]).mean()
        sites = [site for view in views for site in view.sites]
        factored = [site for site in sites if keep_factors and _can_keep_factors(site)]
        for site in sites:
            site.inner = False
        for site in factored:
            site.keep_factors = True
        task.finish(task.weight * task.scale * (loss + task.strength / 4 * share))
    outcome = Outcome(loss.detach(), norm.detach(), checked=checked)
    return outcome, [site for site in factored if isinstance(site, LinearSite)]


def _check(view: View, parameters: Sequence[nn.Parameter], norm: Tensor, scale: float) -> bool:
    """‖∇Ĉ‖² from the sites against that of a plain backward pass: a use that no site saw cannot go unnoticed.

    Returns whether the two could be compared. Where one is not finite the check is left to a later step: half precision
    overflows in the first steps of a GradScaler, which expects that, and a run that diverges has no norm either.
    """
    for site in view.sites:
        site.ordinary = lambda: True
    with without_hooks(parameters):  # scaled as the sites' pass was, or half precision rounds the two differently
        gradients = torch.autograd.grad(scale * view.loss, parameters, retain_graph=True, allow_unused=True)
    for site in view.sites:
        site.ordinary = lambda: False
    squares = [gradient.detach().float().square().sum() for gradient in gradients if gradient is not None]
    plain = total(squares) / scale**2
    if not (norm.isfinite() and plain.isfinite()):
        return False
    if not torch.isclose(norm.float(), plain, rtol=0.02):  # two roundings of half precision; a missed use is larger
        raise InputError(
            f"the layers seen in the closure give ‖∇Ĉ‖² = {norm.item():.6g}, a plain backward pass {plain.item():.6g}; "
            "some use of a parameter was not seen. Use method='double_backward'."
        )
    return True


def plan(task: Task) -> dict[str, str]:
    """How each parameter's part of ‖∇Ĉ‖² is computed: `gram`, `factors` (direct) or `gradient`; runs the closure."""
    device = next(iter(task.parameters.values())).device.type
    start = RandomState.now(task.model, task.generators)
    with second_pass(task.model, start, task.generators):  # a look, not a step: buffers and generators come back
        view = _capture(task, task.closures[0])
        with torch.autocast(device, enabled=False):
            _inner_pass(view, list(task.parameters.values()), task.scale)
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
    _settle(capture, loss)
    return View(loss, capture.sites, capture.anchor, {})


def _settle(capture: Capture, loss: Tensor) -> None:
    """Parameters used anywhere but at sites get ordinary gradients.

    The capture sees torch functions; the graph also shows uses inside custom autograd functions, as extra edges.
    """
    edges = leaf_uses(loss)
    uses: dict[int, int] = {}
    for site in capture.sites:
        for parameter in (site.weight, site.bias):
            if parameter is not None:
                uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    hidden = {id(leaf) for leaf, count in edges.items() if count != uses.get(id(leaf), count)}
    by_autograd = capture.elsewhere | hidden
    for site in capture.sites:
        site.weight_by_autograd = id(site.weight) in by_autograd
        site.bias_by_autograd = site.bias is not None and id(site.bias) in by_autograd


def _inner_pass(view: View, parameters: Sequence[nn.Parameter], scale: float) -> None:
    """One backward pass that fills the sites and finds differentiable gradients for all other parameters.

    Parameters known by their sites are not asked for, so hooks on them see the final gradient only.
    """
    known = {id(site.weight) for site in view.sites if not site.weight_by_autograd}
    known |= {id(site.bias) for site in view.sites if not site.bias_by_autograd}
    asked = [parameter for parameter in parameters if id(parameter) not in known]
    with without_hooks(asked):
        gradients = torch.autograd.grad(scale * view.loss, [view.anchor, *asked], create_graph=True, allow_unused=True)
    for parameter, gradient in zip(asked, gradients[1:], strict=True):
        if gradient is not None:
            view.gradients[id(parameter)] = gradient


def _inner_product(views: Sequence[View], parameters: Sequence[nn.Parameter]) -> Tensor:
    """⟨∇Ĉᵃ, ∇Ĉᵇ⟩ over the parameters; ‖∇Ĉ‖² for one view.

    Two views: ½(‖a+b‖² − ‖a‖² − ‖b‖²), because uses of a weight add up whichever view they come from.
    """
    if len(views) == 1:
        return _squared_norm(views, parameters)
    both, *each = [_squared_norm(chosen, parameters) for chosen in (views, views[:1], views[1:])]
    return 0.5 * (both - each[0] - each[1])


def _share(task: Task, views: Sequence[View], parameters: Sequence[nn.Parameter]) -> tuple[Tensor, Tensor]:
    """‖ḡ‖² of the gradient's mean over workers, and this worker's share of it, 2⟨g, ḡ⟩ − ‖ḡ‖² (see `Task`).

    ḡ has to be formed to be averaged, so every layer takes the direct form here.
    """
    assert task.mean is not None
    own = [_formed(view, parameters) for view in views]
    means = [task.mean([gradient / task.scale for gradient in gradients]) for gradients in own]
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
    return norm, 2 * torch.stack(along).mean() / task.scale - norm


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


def _squared_norm(views: Sequence[View], parameters: Sequence[nn.Parameter]) -> Tensor:
    wanted = {id(parameter) for parameter in parameters}
    by_weight: dict[int, list[Site]] = {}
    by_bias: dict[int, list[Site]] = {}
    for view in views:
        for site in (site for site in view.sites if site.output_gradient is not None):
            if id(site.weight) in wanted and not site.weight_by_autograd:
                by_weight.setdefault(id(site.weight), []).append(site)
            if site.bias is not None and id(site.bias) in wanted and not site.bias_by_autograd:
                by_bias.setdefault(id(site.bias), []).append(site)
    terms: list[Tensor] = []
    for sites in by_weight.values():
        bias = sites[0].bias
        rides_along = bias is not None and by_bias.get(id(bias)) == sites
        if rides_along:
            del by_bias[id(bias)]
        terms.append(weight_squared_norm(sites, with_bias=rides_along))
    terms += [bias_squared_norm(sites) for sites in by_bias.values()]
    for parameter in parameters:
        gradients = [view.gradients[id(parameter)] for view in views if id(parameter) in view.gradients]
        if gradients:
            terms.append(sum(gradients[1:], gradients[0]).square().sum())
    if not terms:
        raise InputError(NOTHING_REACHED)
    return total(term.to(terms[0].dtype) for term in terms)


def _can_keep_factors(site: Site) -> bool:
    return isinstance(site, LinearSite) and not site.weight_by_autograd
