"""What the theory assumes of a model, checked: smooth losses, and third derivatives that torch computes correctly."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from tacit._util.errors import InputError
from tacit._util.graph import nodes, operation
from tacit.problem import Problem
from tacit.theory.kinks import KinkWatch
from tacit.theory.landscape import Landscape, view

NORMALIZED = ("NativeLayerNorm", "NativeBatchNorm", "CudnnBatchNorm")
THIRD_DERIVATIVE_ERROR = 1e-3  # central differences are good to about 1e-6 here; the known faults are 4-130 %
# A long difference is accurate and crosses kinks, a short one is rough (1e-7) and stays on one smooth piece. A wrong
# derivative agrees with none of them.
STEPS = (1e-4, 1e-6, 1e-8)


def warn_if_not_smooth(problem: Problem | Landscape) -> tuple[str, ...]:
    """Warn when the loss has kinks (ReLU, max pooling, …): the orders assume an analytic loss. Returns their names."""
    found = tuple(_kinks(problem))
    if found:
        warnings.warn(
            f"the loss uses {', '.join(found)}, which is not smooth: the predicted orders may not hold. "
            "Use tanh, GELU or softplus where an order is measured.",
            stacklevel=2,
        )
    return found


def _kinks(problem: Problem | Landscape) -> list[str]:
    scape, w = view(problem)
    leaf = w.detach().clone().requires_grad_()
    with torch.enable_grad(), KinkWatch(of_differentiable=True) as watch:
        scape.loss_of(leaf, scape.batches[0])
    return sorted(watch.in_loss)


def require_third_derivatives(problem: Problem | Landscape) -> None:
    """Refuse models whose third derivatives torch computes wrongly, and silently.

    torch's own layer norm and batch norm in training mode are such; a `Landscape` replaces them by exact forms, so this
    catches what is left. The test is numerical: ∇³C[v, v] by autograd against a difference of Hessian products.
    """
    error = third_derivative_error(problem)
    if error <= THIRD_DERIVATIVE_ERROR:
        return
    normalized, kinks = sorted(operations(problem) & set(NORMALIZED)), _kinks(problem)
    if kinks and not normalized:
        raise InputError(
            f"third derivatives of the loss cannot be checked: the parameters lie on a kink of {', '.join(kinks)}, or "
            f"within {STEPS[-1]:g} of one. Use other parameters (biases that are not exactly zero), or tanh, GELU or "
            "softplus."
        )
    where = ", ".join(normalized) or "the model"
    raise InputError(
        f"third derivatives of the loss are {error:.0%} off through {where}; expected at "
        f"most {THIRD_DERIVATIVE_ERROR:.1%}. Use GroupNorm, RMSNorm, evaluation mode or a hand-written normalization."
    )


def third_derivative_error(problem: Problem | Landscape) -> float:
    """Relative distance between automatic and numerical ∇³C[v, v], v along the gradient plus a fixed generic vector.

    The smallest over differences of several lengths: where the loss has kinks, those on one smooth piece count.
    """
    scape, w = view(problem)
    g = scape.gradient(w)
    generic = torch.cos(torch.arange(scape.size, dtype=torch.float64) + 0.5)
    v = generic / generic.norm() + g / (1e-300 + g.norm())
    automatic = scape.third(w, v, v)
    errors = []
    for step in STEPS:
        errors.append(_distance_to_difference(scape, w, v, automatic, step * (1 + w.abs().max().item())))
        if errors[-1] <= THIRD_DERIVATIVE_ERROR:
            break
    return min(errors)


def _distance_to_difference(scape: Landscape, w: Tensor, v: Tensor, automatic: Tensor, step: float) -> float:
    ahead, behind = (scape.hessian_product(w + side * step * v, v) for side in (1, -1))
    numerical = (ahead - behind) / (2 * step)
    # A vanishing third derivative (a quadratic) is compared with the second instead: its error is absolute.
    size = max(numerical.norm().item(), automatic.norm().item(), 1e-3 * ahead.norm().item(), 1e-300)
    return (automatic - numerical).norm().item() / size


def operations(problem: Problem | Landscape) -> set[str]:
    """Names of the differentiable operations in one minibatch loss, without torch's 'Backward0'."""
    scape, w = view(problem)
    leaf = w.detach().clone().requires_grad_()
    with torch.enable_grad():
        loss = scape.loss_of(leaf, scape.batches[0])
    return {operation(node) for node in nodes(loss)}
