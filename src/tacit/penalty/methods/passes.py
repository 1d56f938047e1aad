"""The inner and the outer pass over a closure's sites, and ‖∇Ĉ‖² between them.

What the passes do to a single site is drawn in `layer_use`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tacit._errors import InputError
from tacit._graph import nodes
from tacit._tree import total
from tacit.layers.kinds import LinearSite
from tacit.layers.layer_use import Site
from tacit.layers.modes import modes_on
from tacit.layers.penalty_part import GradientWatch
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


def inner_pass(view: View, parameters: Sequence[nn.Parameter], scale: float) -> None:
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


def squared_norm(views: Sequence[View], parameters: Sequence[nn.Parameter]) -> Tensor:
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
        rides_along = bias is not None and by_bias.get(id(bias)) == sites and _one_orientation(sites)
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


def _one_orientation(sites: Sequence[Site]) -> bool:
    return len({isinstance(site, LinearSite) and site.transposed for site in sites}) == 1


def input_gradients_to_come(sites: Sequence[Site], share: Tensor) -> list[bool]:
    """For each site whether the outer pass will visit its input gradient: whether the penalty depends on it.

    An input may need a gradient that the norm has no use for: the batch itself, an encoder outside the model, layers
    below that are excluded. Only the direct form leaves something for that visit, so only its sites need to know.
    """
    reached: set[Any] = set()
    if any(site.direct and site.input_gradient_node is not None for site in sites):
        reached = set(nodes(share))
    found = [site.input_gradient_node in reached for site in sites]
    for site in sites:
        site.input_gradient_node = None  # the node knows its site, too: a cycle would keep both alive
    return found


def outer_pass(
    task: Task,
    objective: Tensor,
    sites: Sequence[Site],
    comes: Sequence[bool],
    factored: Sequence[Site],
    watch: GradientWatch | None = None,
) -> None:
    for site, input_gradient_comes in zip(sites, comes, strict=True):
        site.inner = False
        site.start_outer_pass(input_gradient_comes=input_gradient_comes)
    for site in factored:
        site.keep_factors = True
    task.finish(task.weight * task.scale * objective, watch)
    if not all(site.complete for site in sites):
        raise InputError(
            "autograd did not visit all parts of a layer, so a term of the penalty's gradient is missing. "
            "Use method='double_backward'."
        )


def can_keep_factors(site: Site) -> bool:
    return isinstance(site, LinearSite) and not site.weight_by_autograd
