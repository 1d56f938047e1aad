"""The exact penalty from layer factors: no weight gradient of a linear layer is formed inside the graph.

1. The closure runs once; linear, convolution and embedding calls become sites (`_capture`).
2. The inner pass asks for the gradient once; sites record input rows X and output-gradient rows D (`_sites`).
3. R = ‖∇Ĉ‖² is added up from the factors, in the Gram or the direct form, whichever is cheaper (`_squared_norms`);
   every other parameter (norms, scalars, bare ones) contributes its own gradient.
4. Ĉ + (λ/4) R is differentiated once.

Six matrix products per linear layer in the Gram form, nine in the direct form; a plain gradient has three.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tacit._errors import InputError
from tacit._graph import leaf_uses, nodes
from tacit._tree import total
from tacit.penalty._buffers import BufferVersions
from tacit.penalty._capture import Capture
from tacit.penalty._check import check_against_double_backward
from tacit.penalty._compiled import uncompiled
from tacit.penalty._layers import LinearSite
from tacit.penalty._one_pass import MicroBatchCapture, NotInOnePassError, UsesChangedError, micro_batch_losses
from tacit.penalty._refusals import NOTHING_REACHED, refuse_wrong_graphs
from tacit.penalty._sites import Site
from tacit.penalty._squared_norms import (
    bias_squared_norm,
    by_index,
    inner_product,
    parameter_gradients,
    uses_gram,
    weight_squared_norm,
)
from tacit.penalty._state import RandomState, second_pass, without_hooks
from tacit.penalty._task import Closure, Outcome, Task

LARGEST_COPIES = 2**24  # numbers: 64 MB in float32, beside four times the model


@dataclass
class View:
    """One closure's loss with everything the inner pass left behind: sites, and gradients of all other parameters."""

    loss: Tensor
    sites: list[Site]
    anchor: Tensor  # a leaf that every site hangs on: asking for its gradient visits them all
    gradients: dict[int, Tensor]  # id(parameter) → differentiable gradient, for parameters not known by sites alone
    copies: dict[int, Tensor] = field(default_factory=dict)  # id(parameter) → a copy for each micro-batch


def backward(task: Task) -> Outcome:
    """Exact; the cheapest exact way for models of linear layers, and never dearer than double backward by much."""
    outcome, _ = run(task, keep_factors=False)
    return outcome


def run(task: Task, *, keep_factors: bool) -> tuple[Outcome, list[LinearSite]]:
    """`backward`; with `keep_factors` linear weights get no `.grad` but leave their factors on the returned sites."""
    device = next(iter(task.parameters.values())).device.type
    views = [_capture(task, closure) for closure in task.closures]
    sites = [site for view in views for site in view.sites]
    factored = [site for site in sites if keep_factors and _can_keep_factors(site)]
    loss = torch.stack([view.loss for view in views]).mean()
    checked = False
    with torch.autocast(device, enabled=False):
        if not task.strength:  # one backward pass is enough, and sites need no D
            norm = torch.zeros_like(loss)
            _outer_pass(task, loss, sites, [False] * len(sites), factored)
        else:
            before = BufferVersions(task.model)
            norm, share, means = _penalty(task, views)
            with before.keep_from_here():
                comes = _input_gradients_to_come(sites, share)
                if task.check_sites:
                    checked = check_against_double_backward(
                        [view.loss for view in views], sites, comes, list(task.parameters.values()),
                        norm=share, scale=task.scale, means=means,
                    )  # fmt: skip
                _outer_pass(task, loss + task.strength / 4 * share, sites, comes, factored)
    outcome = Outcome(loss.detach(), norm.detach(), checked=checked)
    return outcome, [site for site in factored if isinstance(site, LinearSite)]


class OnePass:
    """All micro-batches at once, (1/K) Σₖ (Ĉₖ + (λ/4)‖∇Ĉₖ‖²), up to the outer pass; they are the batch's first axis.

    Raises `NotInOnePassError`, or whatever torch raises, where that cannot be done. Parameters that turn out to be used
    both at sites and in other ways are added to `never_sites`, and `UsesChangedError` asks for a second attempt.
    """

    def __init__(
        self,
        task: Task,
        closure: Callable[..., Tensor],
        batch: Sequence[Tensor],
        *,
        never_sites: set[int],
        keep_factors: bool = False,
    ) -> None:
        parameters = list(task.parameters.values())
        count = len(batch[0])
        capture = MicroBatchCapture(
            [parameter for parameter in task.model.parameters() if parameter.requires_grad],
            micro_batches=count,
            penalised={id(parameter) for parameter in parameters},
            never_sites=never_sites,
            buffers=task.model.buffers(),
        )
        with torch.enable_grad(), uncompiled():
            losses = micro_batch_losses(closure, batch, capture, task.model)
        refuse_wrong_graphs(losses, exact=True)
        _refuse_mixed_uses(capture, losses, never_sites)
        self.sites, self.device = capture.sites, parameters[0].device.type
        self.factored = [site for site in self.sites if keep_factors and _can_keep_factors(site)]
        view = View(losses.sum(), self.sites, capture.anchor, {}, capture.copies)
        with torch.autocast(self.device, enabled=False):
            self.loss = losses.mean()
            _inner_pass(view, parameters, task.scale)
            _refuse_large_copies(view, parameters, count)
            self.norm = _squared_norm([view], parameters) / (count * task.scale**2)
        self.coarsest = max(
            (site.output_gradient.dtype for site in self.sites if site.output_gradient is not None),
            key=lambda dtype: torch.finfo(dtype).eps,
            default=self.loss.dtype,
        )
        self.outcome = Outcome(self.loss.detach(), self.norm.detach())

    def finish(self, task: Task, *, form_weight_gradients: bool = False) -> list[LinearSite]:
        """The outer pass; returns sites with factors where they were asked for, unless all gradients are formed."""
        factored = [] if form_weight_gradients else self.factored
        comes = _input_gradients_to_come(self.sites, self.norm)
        with torch.autocast(self.device, enabled=False):
            _outer_pass(task, self.loss + task.strength / 4 * self.norm, self.sites, comes, factored)
        return [site for site in factored if isinstance(site, LinearSite)]


def _refuse_mixed_uses(capture: MicroBatchCapture, losses: Tensor, never_sites: set[int]) -> None:
    """Every use of a parameter of the norm is a site or goes through its copies, and no parameter has both."""
    at_sites = _site_uses(capture.sites)
    mixed = {key for key in at_sites if key in capture.copies}
    for leaf, count in leaf_uses(losses).items():
        expected = at_sites.get(id(leaf), 0) + (id(leaf) in capture.copies)
        if id(leaf) in capture.penalised and count != expected:
            raise NotInOnePassError("a parameter is used where its use cannot be seen")
    if mixed:
        never_sites |= mixed
        raise UsesChangedError


def _refuse_large_copies(view: View, parameters: Sequence[nn.Parameter], count: int) -> None:
    """Copies, and weight gradients of single micro-batches, that need more memory than a loop would take time."""
    wanted = {id(parameter) for parameter in parameters}
    numbers = sum(copy.numel() for copy in view.copies.values())
    reached = [site for site in view.sites if site.output_gradient is not None and id(site.weight) in wanted]
    by_weight: dict[int, list[Site]] = {}
    for site in reached:
        by_weight.setdefault(id(site.weight), []).append(site)
    direct = [sites for sites in by_weight.values() if not (uses_gram(sites) or by_index(sites))]
    numbers += count * sum(sites[0].weight.numel() for sites in direct)
    if numbers > LARGEST_COPIES + 4 * sum(parameter.numel() for parameter in parameters):
        raise NotInOnePassError("the weights are too many to have a gradient for each micro-batch")


def _penalty(task: Task, views: Sequence[View]) -> tuple[Tensor, Tensor, list[list[Tensor]] | None]:
    """The inner passes, ‖∇Ĉ‖² and the part of it that this task differentiates; with workers also their mean ∇Ĉ."""
    parameters = list(task.parameters.values())
    for view in reversed(views):  # the last first, as one backward pass of the mean of both losses visits them
        _inner_pass(view, parameters, task.scale)
    if task.mean is not None:
        return _share(task, task.mean, views, parameters)
    norm = _inner_product(views, parameters) / task.scale**2
    return norm, norm, None


def _outer_pass(
    task: Task, objective: Tensor, sites: Sequence[Site], comes: Sequence[bool], factored: Sequence[Site]
) -> None:
    for site, input_gradient_comes in zip(sites, comes, strict=True):
        site.inner = False
        site.start_outer_pass(input_gradient_comes=input_gradient_comes)
    for site in factored:
        site.keep_factors = True
    task.finish(task.weight * task.scale * objective)
    if not all(site.complete for site in sites):
        raise InputError(
            "autograd did not visit all parts of a layer, so a term of the penalty's gradient is missing. "
            "Use method='double_backward'."
        )


def _input_gradients_to_come(sites: Sequence[Site], share: Tensor) -> list[bool]:
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
    _find_other_uses(capture, loss)
    return View(loss, capture.sites, capture.anchor, {})


def _find_other_uses(capture: Capture, loss: Tensor) -> None:
    """Parameters used anywhere but at sites get ordinary gradients.

    The capture sees torch functions; the graph also shows uses inside custom autograd functions, as extra edges.
    """
    edges = leaf_uses(loss)
    uses = _site_uses(capture.sites)
    hidden = {id(leaf) for leaf, count in edges.items() if count != uses.get(id(leaf), count)}
    by_autograd = capture.used_otherwise | hidden
    for site in capture.sites:
        site.weight_by_autograd = id(site.weight) in by_autograd
        site.bias_by_autograd = site.bias is not None and id(site.bias) in by_autograd


def _site_uses(sites: Sequence[Site]) -> dict[int, int]:
    uses: dict[int, int] = {}
    for site in sites:
        for parameter in (site.weight, site.bias):
            if parameter is not None:
                uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    return uses


def _inner_pass(view: View, parameters: Sequence[nn.Parameter], scale: float) -> None:
    """One backward pass that fills the sites and finds differentiable gradients for all other parameters.

    Parameters known by their sites are not asked for, so hooks on them see the final gradient only.
    """
    known = {id(site.weight) for site in view.sites if not site.weight_by_autograd}
    known |= {id(site.bias) for site in view.sites if not site.bias_by_autograd}
    asked = [parameter for parameter in parameters if id(parameter) not in known]
    with without_hooks(asked):
        wanted = [view.copies.get(id(parameter), parameter) for parameter in asked]
        gradients = torch.autograd.grad(scale * view.loss, [view.anchor, *wanted], create_graph=True, allow_unused=True)
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


def _can_keep_factors(site: Site) -> bool:
    return isinstance(site, LinearSite) and not site.weight_by_autograd
