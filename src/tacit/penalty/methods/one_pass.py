"""All micro-batches of a batch at once, up to the outer pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from tacit._graph import leaf_uses
from tacit.layers.kinds import LinearSite
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
    inner_pass,
    outer_pass,
    row_watch,
    site_uses,
    squared_norm,
    uses_of,
)
from tacit.penalty.objective import Outcome, Task
from tacit.penalty.surroundings.compiled import uncompiled
from tacit.penalty.surroundings.refusals import refuse_wrong_graphs

LARGEST_COPIES = 2**24  # numbers: 64 MB in float32, beside four times the model


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
        with torch.enable_grad(), uncompiled(task.compiled):
            losses = micro_batch_losses(closure, batch, capture, task.model, may_overflow=task.may_overflow)
        if task.look is not None:
            task.look(losses)
        refuse_wrong_graphs(losses, exact=True)
        _refuse_mixed_uses(capture, losses, never_sites)
        self.sites, self.device = capture.sites, parameters[0].device.type
        self.factored = [site for site in self.sites if keep_factors and can_keep_factors(site)]
        view = View(losses.sum(), self.sites, capture.anchor, {}, capture.copies)
        with torch.autocast(self.device, enabled=False):
            self.loss = losses.mean()
            inner_pass(view, parameters, task.scale)
            _refuse_large_copies(view, parameters, count)
            part, self.copies_watch = _watch_part(task, view, count)
            self.norm = squared_norm(view, parameters) / (count * task.scale**2)
        self.coarsest = max(
            (site.output_gradient.dtype for site in self.sites if site.output_gradient is not None),
            key=lambda dtype: torch.finfo(dtype).eps,
            default=self.loss.dtype,
        )
        self.outcome = Outcome(self.loss.detach(), self.norm.detach(), part=part)

    def finish(self, task: Task, *, form_weight_gradients: bool = False) -> list[LinearSite]:
        """The outer pass; returns sites with factors where the caller wants them, unless all gradients are formed."""
        factored = [] if form_weight_gradients else self.factored
        with torch.autocast(self.device, enabled=False), self.copies_watch.watching():
            objective = task.plain_part(self.loss) + task.strength / 4 * self.norm
            outer_pass(task, objective, self.sites, factored)
        return [site for site in factored if isinstance(site, LinearSite)]


def _watch_part(task: Task, view: View, count: int) -> tuple[PenaltyPart, GradientWatch]:
    """Lets the outer pass add up ⟨gₖ, Hₖ gₖ⟩: sites by their rows, every other parameter by its copies' gradients."""
    part = PenaltyPart(task.strength, micro_batches=count)
    for site in (site for site in view.sites if site.output_gradient is not None):
        site.row_watch = row_watch(task, part, micro_batches=count)
    plain = {view.copies[key]: gradient.detach() / task.scale for key, gradient in view.gradients.items()}
    return part, GradientWatch(part, plain, task.weight * task.scale / count, task.loss_weight)


def _refuse_mixed_uses(capture: MicroBatchCapture, losses: Tensor, never_sites: set[int]) -> None:
    """Every use of a parameter of the norm is a site or goes through its copies, and no parameter has both."""
    at_sites = site_uses(capture.sites)
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
    numbers = sum(copy.numel() for copy in view.copies.values())
    by_weight, _ = uses_of(view, parameters)
    direct = [sites for sites in by_weight.values() if not (uses_gram(sites) or by_index(sites))]
    numbers += count * sum(sites[0].weight.numel() for sites in direct)
    if numbers > LARGEST_COPIES + 4 * sum(parameter.numel() for parameter in parameters):
        raise NotInOnePassError("the weights are too many to have a gradient for each micro-batch")
