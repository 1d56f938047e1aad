"""The inner and the outer pass over a closure's sites, and ‖∇Ĉ‖² between them.

What the passes do to a single site is drawn in `layer_use`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from tacit._errors import InputError
from tacit._tree import real, total
from tacit.layers.kinds import LinearSite
from tacit.layers.layer_use import Site
from tacit.layers.modes import modes_on
from tacit.layers.penalty_part import GradientWatch, PenaltyPart, RowWatch
from tacit.layers.squared_norms import bias_squared_norm, weight_squared_norm
from tacit.penalty.objective import Task
from tacit.penalty.surroundings.refusals import NOTHING_REACHED
from tacit.penalty.surroundings.state import without_hooks


@dataclass
class View:
    """One closure's loss with everything the inner pass left behind: sites, and gradients of all other parameters."""

    loss: Tensor
    sites: list[Site]
    anchor: Tensor  # a leaf that every site hangs on: asking for its gradient visits them all
    gradients: dict[int, Tensor]  # id(parameter) → differentiable gradient, for parameters not known by sites alone
    copies: dict[int, Tensor] = field(default_factory=dict)  # id(parameter) → a copy for each micro-batch


def site_uses(sites: Sequence[Site]) -> dict[int, int]:
    uses: dict[int, int] = {}
    for site in sites:
        for parameter in (site.weight, site.bias):
            if parameter is not None:
                uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    return uses


def inner_pass(view: View, parameters: Sequence[nn.Parameter], scale: float | Tensor) -> None:
    """One backward pass that fills the sites and finds differentiable gradients for all other parameters.

    Parameters known by their sites are not asked for, so hooks on them see the final gradient only.
    """
    known = {id(site.weight) for site in view.sites if not site.weight_by_autograd}
    known |= {id(site.bias) for site in view.sites if not site.bias_by_autograd}
    others = [parameter for parameter in parameters if id(parameter) not in known]
    with without_hooks(others), modes_on():
        wanted = [view.copies.get(id(parameter), parameter) for parameter in others]
        gradients = torch.autograd.grad(scale * view.loss, [view.anchor, *wanted], create_graph=True, allow_unused=True)
    for parameter, gradient in zip(others, gradients[1:], strict=True):
        if gradient is not None:
            view.gradients[id(parameter)] = gradient


def uses_of(view: View, parameters: Sequence[nn.Parameter]) -> tuple[dict[int, list[Site]], dict[int, list[Site]]]:
    """The sites that the inner pass reached, by the weight and by the bias that is known by them alone."""
    wanted = {id(parameter) for parameter in parameters}
    by_weight: dict[int, list[Site]] = {}
    by_bias: dict[int, list[Site]] = {}
    for site in (site for site in view.sites if site.output_gradient is not None):
        if id(site.weight) in wanted and not site.weight_by_autograd:
            by_weight.setdefault(id(site.weight), []).append(site)
        if site.bias is not None and id(site.bias) in wanted and not site.bias_by_autograd:
            by_bias.setdefault(id(site.bias), []).append(site)
    return by_weight, by_bias


def squared_norm(view: View, parameters: Sequence[nn.Parameter]) -> Tensor:
    """scale² ‖∇Ĉ‖² over the parameters."""
    by_weight, by_bias = uses_of(view, parameters)
    terms: list[Tensor] = []
    for sites in by_weight.values():
        bias = bias_of(sites, by_bias)
        if bias is not None:
            del by_bias[id(bias)]
        terms.append(weight_squared_norm(sites, with_bias=bias is not None))
    terms += [bias_squared_norm(sites) for sites in by_bias.values()]
    gradients = [view.gradients[id(parameter)] for parameter in parameters if id(parameter) in view.gradients]
    terms += [real(gradient).square().sum() for gradient in gradients]
    if not terms:
        raise InputError(NOTHING_REACHED)
    return total(term.to(terms[0].dtype) for term in terms)


def bias_of(sites: Sequence[Site], by_bias: dict[int, list[Site]]) -> Tensor | None:
    """The bias whose norm is taken with that of the weight of these sites: it is used just there."""
    bias = sites[0].bias
    one_orientation = len({isinstance(site, LinearSite) and site.transposed for site in sites}) == 1
    return bias if bias is not None and one_orientation and by_bias.get(id(bias)) == sites else None


def outer_pass(
    task: Task,
    objective: Tensor,
    sites: Sequence[Site],
    factored: Sequence[Site],
    watch: GradientWatch | None = None,
) -> None:
    for site in sites:
        site.inner = False
        site.start_outer_pass()
    for site in factored:
        site.keep_factors = True
    task.finish(objective, watch, factor=task.factor)
    if any(site.tangents is not None for site in sites):
        raise InputError(
            "autograd did not visit all parts of a layer, so a term of the penalty's gradient is missing. "
            "Use method='double_backward'."
        )


def row_watch(task: Task, part: PenaltyPart, *, micro_batches: int = 1) -> RowWatch:
    """For one site: adds ⟨g, λ/2 H g⟩ of its weight, and of the bias whose norm is taken with the weight's."""
    factor = task.factor / micro_batches
    share = factor * task.strength / 4 / task.scale**2
    plain = task.weight * task.loss_weight / micro_batches
    return RowWatch(part, factor=factor, share=share, scale=task.scale, plain=plain)


def can_keep_factors(site: Site) -> bool:
    return isinstance(site, LinearSite) and not site.weight_by_autograd
