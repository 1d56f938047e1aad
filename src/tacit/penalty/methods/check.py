"""One step of `gram` compared with a plain double backward on the same graph: norms, and gradients of the penalty.

A use of a parameter that was not captured changes the norm. A term that the outer pass lost leaves the norm as it is
and changes its gradient, so both are compared. The comparison costs one double backward, once per penalty.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tacit._util.errors import InputError
from tacit._util.graph import leaf_uses
from tacit._util.tree import real, total
from tacit.layers.layer_use import LayerUse
from tacit.penalty.objective import gradients_of

TOLERANCE = 1e-3  # a hundred times the rounding of float32, and less than what λ is ever known to
HALF_PRECISION_NORM = 0.02  # a few roundings; a use that was not seen is larger, as a rule
# So many in a row, of the least precise layer: 0.125 in bfloat16, 0.016 in float16. A missing term is of order 1.
ROUNDINGS = 16
# Rounding may be all there is of a gradient (half precision, a loss near 0). It is measured where it matters, and twice
# the measured size, for each of the two gradients compared, times 5, for its scatter, is called rounding.
NOISE_FACTOR = 20


def check_against_double_backward(
    loss: Tensor,
    uses: Sequence[LayerUse],
    parameters: Sequence[nn.Parameter],
    *,
    norm: Tensor,
    scale: float | Tensor,
) -> bool:
    """Raises where `norm` or its gradient differs from double backward's; returns whether they could be compared.

    Where one is not finite the check is left to a later step: half precision overflows in the first steps of a
    GradScaler, which expects that, and a run that diverges has no norm either. So it is where rounding hides the
    difference, and where torch has no second derivative for a plain double backward.
    """
    if loss.device.type == "meta":  # without numbers
        return False
    leaves = list(leaf_uses(loss))
    by_layers = _gradients_by_layers(loss, uses, norm, leaves)
    try:
        plain_norm, plain = _by_double_backward(loss, uses, parameters, leaves, scale)
    except RuntimeError:
        return False
    if not (norm.isfinite() and plain_norm.isfinite()):
        return False
    unit = _coarsest_unit(uses)
    # A gradient of 0, by symmetry or at the end of training, is the rounding of numbers of the loss's size.
    if plain_norm <= (100 * max(unit, torch.finfo(norm.dtype).eps) * float(loss.detach().abs())) ** 2:
        return False
    norm_tolerance = TOLERANCE if unit < TOLERANCE / ROUNDINGS else HALF_PRECISION_NORM
    if (norm.detach() - plain_norm).abs() > norm_tolerance * plain_norm:
        raise InputError(
            f"the layers seen in the closure give ‖∇Ĉ‖² = {norm.item():.6g}, a plain backward pass "
            f"{plain_norm.item():.6g}; some use of a parameter was not seen. Use method='double_backward'."
        )
    apart, size = _distance(by_layers, plain), _length(plain)
    if not (apart.isfinite() and size.isfinite()):
        return False
    if apart <= max(TOLERANCE, ROUNDINGS * unit) * size:
        return True
    # Scaled by 3, which is no power of two, all products round differently: what that changes is rounding.
    _, again = _by_double_backward(loss, uses, parameters, leaves, 3 * scale)
    noise = _distance(again, plain)
    if not noise.isfinite() or apart <= NOISE_FACTOR * noise:
        return False
    raise InputError(
        f"the gradient of ‖∇Ĉ‖² from the layers seen in the closure differs from double backward's by "
        f"{float(apart / size):.2g} of its length; a term is missing. Use method='double_backward'."
    )


def _coarsest_unit(uses: Sequence[LayerUse]) -> float:
    gradients = [use.output_gradient for use in uses if use.output_gradient is not None]
    return max((torch.finfo(gradient.dtype).eps for gradient in gradients), default=0.0)


def _gradients_by_layers(
    loss: Tensor,
    uses: Sequence[LayerUse],
    norm: Tensor,
    leaves: Sequence[Tensor],
) -> list[Tensor]:
    """∇R as the outer pass finds it. The loss takes part with weight 0, so that every layer is visited."""
    for use in uses:
        use.inner, use.keep_for_another_pass = False, True
        use.start_outer_pass()
    try:
        return _gradients(norm + 0 * loss, leaves)
    finally:
        for use in uses:
            use.keep_for_another_pass = False


def _by_double_backward(
    loss: Tensor,
    uses: Sequence[LayerUse],
    parameters: Sequence[nn.Parameter],
    leaves: Sequence[Tensor],
    scale: float | Tensor,
) -> tuple[Tensor, list[Tensor]]:
    """R and ∇R, with every use an ordinary layer."""
    were = [use.ordinary for use in uses]
    for use in uses:
        use.ordinary = lambda: True
    try:
        # Scaled as the uses' pass was, or half precision rounds the two differently.
        gradients = gradients_of(scale * loss, parameters, create_graph=True)
        norm = total(_wide(gradient).square().sum() for gradient in gradients if gradient is not None) / scale**2
        return norm.detach(), _gradients(norm, leaves)
    finally:
        for use, ordinary in zip(uses, were, strict=True):
            use.ordinary = ordinary


def _gradients(value: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    if not (leaves and value.requires_grad):
        return [torch.zeros_like(leaf) for leaf in leaves]
    parts = gradients_of(value, leaves, retain_graph=True)
    return [torch.zeros_like(leaf) if part is None else part for part, leaf in zip(parts, leaves, strict=True)]


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to_dense().float() if tensor.dtype in (torch.float16, torch.bfloat16) else real(tensor.to_dense())


def _distance(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    return _length([_wide(a) - _wide(b) for a, b in zip(left, right, strict=True)])


def _length(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([_wide(tensor).norm().double().cpu() for tensor in tensors] or [torch.zeros(())]).norm()
