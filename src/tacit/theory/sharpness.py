"""Batch sharpness: the curvature that SGD's own steps meet, and the values at which it is reported to settle.

⟨g_B, H_B g_B⟩ averaged over minibatches, divided by the average ‖g_B‖². One step changes the loss of its own minibatch
by −ε‖g_B‖² + (ε²/2)⟨g_B, H_B g_B⟩ + …, so at 2/ε a step no longer lowers, on average, the loss that it descends.
SGD is reported to settle there (Andreyev and Beneventano, arXiv 2412.20553), as full-batch gradient descent settles
where its largest curvature is 2/ε. With momentum β the reports are 2(1−β)/ε for small batches and 2(1+β)/ε for large
ones (arXiv 2604.14108).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tacit._arguments import finite_number
from tacit._errors import InputError
from tacit.problem import Problem
from tacit.theory.landscape import Landscape, Parameters, view

Verdict = Literal["confirmed", "below", "above", "diverged"]
TOLERANCE = 0.1  # of the limit: what the study calls settled at it


def batch_sharpness(problem: Problem | Landscape, parameters: Parameters = None) -> float:
    """E⟨g_B, H_B g_B⟩/E‖g_B‖² over the problem's minibatches, in float64.

    >>> from tacit.theory import problems
    >>> 0 < batch_sharpness(problems.logistic()) < 2
    True
    """
    scape, w = view(problem, parameters)
    gradients = scape.minibatch_gradients(w)
    return ((scape.minibatch_products(w, gradients) * gradients).sum() / gradients.square().sum()).item()


def batch_sharpness_of(losses: Sequence[Callable[[], Tensor]], parameters: Sequence[Tensor]) -> float:
    """The same for a model in training: each function returns the loss of one minibatch at the current parameters.

    One Hessian product per minibatch, by double backward; nothing is changed, `.grad` neither.
    """
    if not losses:
        raise InputError("losses is empty; expected at least one function that returns the loss of a minibatch.")
    above, below = 0.0, 0.0
    for loss in losses:
        with torch.enable_grad():
            gradients = torch.autograd.grad(loss(), list(parameters), create_graph=True, materialize_grads=True)
            squared = torch.stack([g.square().sum() for g in gradients]).sum()
            held = [g.detach() for g in gradients]
            if squared.requires_grad:  # else the loss is linear, and its curvature zero
                # ∇(½‖g‖²) = H g.
                products = torch.autograd.grad(squared / 2, list(parameters), materialize_grads=True)
                above += sum((p * g).sum().item() for p, g in zip(products, held, strict=True))
        below += squared.item()
    return above / below if below else 0.0


def reported_limit(learning_rate: float, *, momentum: float = 0.0, full_batch: bool = False) -> float:
    """The value at which batch sharpness is reported to settle: 2/ε, 2(1−β)/ε small batches, 2(1+β)/ε full batch.

    >>> reported_limit(0.1), reported_limit(0.1, momentum=0.5), reported_limit(0.1, momentum=0.5, full_batch=True)
    (20.0, 10.0, 30.0)
    """
    rate = finite_number("learning_rate", learning_rate, positive=True)
    beta = finite_number("momentum", momentum)
    return 2 * (1 + beta if full_batch else 1 - beta) / rate


@dataclass(frozen=True)
class Settling:
    """Where batch sharpness settled in one run, beside the reported limit."""

    limit: float
    settled: float  # the median over the last quarter of the run
    lowest: float
    highest: float

    @property
    def ratio(self) -> float:
        return self.settled / self.limit

    @property
    def verdict(self) -> Verdict:
        if not self.ratio < float("inf"):
            return "diverged"
        return "confirmed" if abs(self.ratio - 1) <= TOLERANCE else "below" if self.ratio < 1 else "above"


def settling(values: Sequence[float], *, limit: float) -> Settling:
    """The last quarter of a run's values beside the limit.

    >>> settling([1.0, 5.0, 9.0, 10.0, 10.5, 9.8, 10.1, 9.9], limit=10.0).verdict
    'confirmed'
    """
    last = sorted(values[-max(1, len(values) // 4) :])
    if not last:
        raise InputError("values is empty; expected the batch sharpness along a run.")
    return Settling(limit, last[len(last) // 2], last[0], last[-1])
