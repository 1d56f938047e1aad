"""Operations whose second derivative torch 2.13 lacks or gets wrong, as formulas that autograd differentiates twice.

Exact methods run under `TwiceDifferentiable`: fused attention takes its MATH backend, and the functions listed at the
end of this file are replaced by sums, products and maxima with the same value and the same first derivative. All
activations of `torch.nn` were tried: hardsigmoid alone has no second derivative. Fused weight norm has a wrong one, and
so has PReLU at exactly 0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from tacit._util.errors import InputError
from tacit.layers.modes import ModesOff

_log = logging.getLogger("tacit")
_FAR = 1e30  # stands for −∞ in log-space sums: its exponential is 0, and its gradient is not nan


def check_attention(value: str) -> str:
    if value not in ("math", "as_is"):
        raise InputError(f"attention={value!r} is unknown; use 'math' or 'as_is'.")
    return value


class AttentionNotice:
    """Says once per penalty that attention runs without its fused kernels."""

    def __init__(self) -> None:
        self.given = False

    def give(self) -> None:
        if not self.given:
            self.given = True
            _log.warning(
                "attention runs under the MATH backend of scaled_dot_product_attention in penalised steps: its fused "
                "kernels have no second derivative. attention='as_is' leaves it alone."
            )


class TwiceDifferentiable:
    """Inside, every replaced function has its second derivative; attention too, unless `attention` is "as_is".

    It must surround backward passes as well: checkpointed blocks run their forward pass again there. It acts where
    `modes_on` is called for, which is around closures and backward passes. Attention is switched as by
    `sdpa_kernel(SDPBackend.MATH)`, whose lists of names take ten times as long.
    """

    def __init__(self, attention: str, notice: AttentionNotice) -> None:
        self.math = attention == "math"
        self.replacing = Replacing(notice.give if self.math else None)
        self.modes_off = ModesOff()

    def __enter__(self) -> None:
        if self.math:
            self.before = [is_on() for is_on, _ in _BACKENDS]
            for (_, switch), on in zip(_BACKENDS, (True, False, False, False, False), strict=True):
                switch(on)
        self.replacing.__enter__()
        self.modes_off.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.modes_off.__exit__(*error)
        self.replacing.__exit__(*error)
        if self.math:
            for (_, switch), on in zip(_BACKENDS, self.before, strict=True):
                switch(on)


_BACKENDS: tuple[tuple[Callable[[], bool], Callable[[bool], None]], ...] = (
    (torch._C._get_math_sdp_enabled, torch._C._set_sdp_use_math),
    (torch._C._get_flash_sdp_enabled, torch._C._set_sdp_use_flash),
    (torch._C._get_mem_efficient_sdp_enabled, torch._C._set_sdp_use_mem_efficient),
    (torch._C._get_cudnn_sdp_enabled, torch._C._set_sdp_use_cudnn),
    (torch._C._get_overrideable_sdp_enabled, torch._C._set_sdp_use_overrideable),
)


class Replacing(TorchFunctionMode):
    def __init__(self, on_attention: Callable[[], None] | None) -> None:
        super().__init__()
        self.on_attention = on_attention
        self.edges: dict[Tensor, GradientEdge] = {}  # of leaves: several passes ask for the same ones
        self.recomputes = False  # whether some tensors are not kept: a checkpoint makes them again in a backward pass

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _ATTENTION and self.on_attention is not None:
            self.on_attention()
        if func in _ENGINE:
            return self._run_engine(func, *args, **(kwargs or {})) if self.recomputes else func(*args, **(kwargs or {}))
        if not self.recomputes:
            self.recomputes = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        replacement = _REPLACEMENTS.get(func) if torch.is_grad_enabled() else None
        result = None if replacement is None else replacement(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if result is None else result

    def _run_engine(self, func: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        """A backward pass with this mode on: a checkpoint runs its forward pass again there, and must save the same.

        A mode is off while it handles a function, and handles a backward pass by its tensors: edges of the graph stand
        for them, which no mode looks at.
        """
        if func is Tensor.backward:
            names = ("gradient", "retain_graph", "create_graph", "inputs")
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            func, args, kwargs = torch.autograd.backward, (given.pop("gradient", None),), given
        if func is torch.autograd.grad:
            inputs, *rest = args
            args = (self._edges(inputs), *rest)
        elif kwargs.get("inputs") is not None:
            kwargs = {**kwargs, "inputs": self._edges(kwargs["inputs"])}
        with self:
            return func(self._edges(tensors), *args, **kwargs)

    def _edges(self, tensors: Any) -> Any:
        if isinstance(tensors, Tensor):
            tensors = (tensors,)
        elif isinstance(tensors, dict):
            tensors = tuple(tensors.values())
        return tuple(self._edge(each) if isinstance(each, Tensor) else each for each in tensors)

    def _edge(self, tensor: Tensor) -> GradientEdge:
        with ModesOff():  # a subclass of Tensor would make a view of itself here, with an edge of its own
            if not tensor.is_leaf:
                return get_gradient_edge(tensor)
            if tensor not in self.edges:
                self.edges[tensor] = get_gradient_edge(tensor)
            return self.edges[tensor]


def _hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """min(max(x + 3, 0), 6) / 6."""
    if not inplace:
        return F.relu6(input + 3) / 6
    return input.copy_(F.relu6(input.clone() + 3) / 6)


def _hardsigmoid_in_place(input: Tensor) -> Tensor:
    return _hardsigmoid(input, inplace=True)


def _prelu(input: Tensor, weight: Tensor) -> Tensor:
    """x where it is positive, w x elsewhere; torch's own second derivative takes another side at exactly 0."""
    if weight.numel() > 1:
        weight = weight.reshape(1, -1, *[1] * (input.dim() - 2))
    return torch.where(input > 0, input, weight * input)


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """g v / ‖v‖, the norm over every axis but `dim`; over all of them where `dim` is −1."""
    axes = [axis for axis in range(v.dim()) if axis != dim]
    return v * (g / v.square().sum(axes, keepdim=dim != -1).sqrt())


def _cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: Any = None) -> Tensor:
    return _lengths(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)


def _pdist(input: Tensor, p: float = 2.0) -> Tensor:
    first, second = torch.triu_indices(len(input), len(input), 1, device=input.device)
    return _lengths(input[first] - input[second], p)


def _lengths(differences: Tensor, p: float) -> Tensor:
    """‖d‖ₚ over the last axis; for p = 2 with derivative 0 at d = 0, as torch has it."""
    if p != 2:
        return torch.linalg.vector_norm(differences, ord=p, dim=-1)
    squares = differences.square().sum(-1)
    zero = squares == 0
    return torch.where(zero, 0.0, torch.where(zero, 1.0, squares).sqrt())


def _embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor | None:
    """Σ, mean or maximum of the rows of each bag; bags without rows are 0."""
    if max_norm is not None or scale_grad_by_freq or sparse:
        return None
    if input.dim() == 2:
        count, length = input.shape
        bags = torch.arange(count, device=input.device).repeat_interleave(length)
        indices = input.reshape(-1)
    else:
        assert offsets is not None
        ends = offsets[1:] if include_last_offset else torch.cat([offsets[1:], offsets.new_tensor([len(input)])])
        count, indices = len(ends), input
        bags = torch.searchsorted(ends, torch.arange(len(input), device=input.device), right=True)
    rows = weight[indices]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.reshape(-1, 1)
    if padding_idx is not None:
        kept = indices != padding_idx % weight.shape[0]
        rows, bags = rows[kept], bags[kept]
    if mode == "max":
        chosen = [rows[bags == bag] for bag in range(count)]
        return torch.stack([part.max(0).values if len(part) else weight.new_zeros(weight.shape[1]) for part in chosen])
    sums = torch.zeros(count, weight.shape[1], dtype=rows.dtype, device=rows.device).index_add(0, bags, rows)
    if mode == "sum":
        return sums
    return sums / torch.bincount(bags, minlength=count).clamp_min(1).unsqueeze(1)


def _multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor | None:
    """Σ over classes j ≠ y of max(0, margin − x_y + x_j)ᵖ w_y / C."""
    if size_average is not None or reduce is not None:
        return None
    scores, labels = torch.atleast_2d(input), target.reshape(-1, 1)
    terms = (margin - scores.gather(1, labels) + scores).clamp_min(0) ** p
    if weight is not None:
        terms = terms * weight[labels]
    losses = terms.masked_fill(torch.zeros_like(terms, dtype=torch.bool).scatter(1, labels, True), 0).mean(1)
    return _reduced(losses if input.dim() == 2 else losses[0], reduction)


def _multilabel_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor | None:
    """Σ over labels y and classes i that are no label of max(0, 1 − x_y + x_i) / C; labels end before the first −1."""
    if size_average is not None or reduce is not None:
        return None
    scores, labels = torch.atleast_2d(input), torch.atleast_2d(target)
    valid = (labels < 0).cumsum(1) == 0
    labels = labels.clamp_min(0)
    is_label = torch.zeros_like(scores).scatter_add(1, labels, valid.to(scores.dtype)) > 0
    terms = (1 - scores.gather(1, labels).unsqueeze(2) + scores.unsqueeze(1)).clamp_min(0)
    losses = terms.masked_fill(~valid.unsqueeze(2) | is_label.unsqueeze(1), 0).sum((1, 2)) / scores.shape[1]
    return _reduced(losses if input.dim() == 2 else losses[0], reduction)


def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """−log of the sum over alignments of the product of their probabilities, by the forward recursion in log space."""
    single = log_probs.dim() == 2
    steps = log_probs.unsqueeze(1) if single else log_probs
    device, count = steps.device, steps.shape[1]
    lengths = torch.as_tensor(input_lengths, device=device).reshape(-1)
    sizes = torch.as_tensor(target_lengths, device=device).reshape(-1)
    labels = _padded(targets.to(device), sizes, count, blank)
    # States are blank, label, blank, label, …, blank; a label may skip the blank before it unless it repeats.
    states = torch.full((count, 2 * labels.shape[1] + 1), blank, device=device, dtype=torch.long)
    states[:, 1::2] = labels
    may_skip = (states != blank) & (states != states.roll(2, 1))
    may_skip[:, :2] = False
    emitted = steps.clamp_min(-_FAR).gather(2, states.unsqueeze(0).expand(len(steps), -1, -1))
    alpha = torch.full_like(emitted[0], -_FAR)
    alpha = torch.cat([emitted[0, :, :2], alpha[:, 2:]], dim=1)
    for step in range(1, len(steps)):
        one, two = F.pad(alpha, (1, 0), value=-_FAR)[:, :-1], F.pad(alpha, (2, 0), value=-_FAR)[:, :-2]
        ways = torch.stack([alpha, one, torch.where(may_skip, two, -_FAR)])
        moved = (torch.logsumexp(ways, 0) + emitted[step]).clamp_min(-_FAR)
        alpha = torch.where((step < lengths).unsqueeze(1), moved, alpha)
    last = alpha.gather(1, (2 * sizes).unsqueeze(1)).squeeze(1)
    before = alpha.gather(1, (2 * sizes - 1).clamp_min(0).unsqueeze(1)).squeeze(1)
    losses = -torch.where(sizes > 0, torch.logaddexp(last, before), last)
    impossible = losses > _FAR / 2
    losses = torch.where(impossible, 0.0 if zero_infinity else torch.inf, losses)
    if reduction == "mean":
        return (losses / sizes.clamp_min(1)).mean()
    return losses.sum() if reduction == "sum" else losses[0] if single else losses


def _padded(targets: Tensor, sizes: Tensor, count: int, fill: int) -> Tensor:
    """Targets as one row per example: torch takes them padded, or one after another."""
    if targets.dim() == 2:
        return targets.long()
    longest = int(sizes.max()) if len(sizes) else 0
    rows = torch.full((count, longest), fill, device=targets.device, dtype=torch.long)
    for row, part in zip(rows, targets.split(sizes.tolist()), strict=True):
        row[: len(part)] = part
    return rows


def _reduced(losses: Tensor, reduction: str) -> Tensor:
    return losses.mean() if reduction == "mean" else losses.sum() if reduction == "sum" else losses


_ATTENTION = {F.scaled_dot_product_attention, F.multi_head_attention_forward}

_ENGINE = {Tensor.backward, torch.autograd.backward, torch.autograd.grad}

# A replacement may return None for arguments that it does not know; the original function then runs.
_REPLACEMENTS: dict[Any, Callable[..., Tensor | None]] = {
    F.hardsigmoid: _hardsigmoid,
    torch._C._nn.hardsigmoid: _hardsigmoid,
    torch._C._nn.hardsigmoid_: _hardsigmoid_in_place,
    torch.prelu: _prelu,
    Tensor.prelu: _prelu,
    torch._weight_norm: _weight_norm,
    torch.cdist: _cdist,
    F.pdist: _pdist,
    torch.pdist: _pdist,
    F.embedding_bag: _embedding_bag,
    F.multi_margin_loss: _multi_margin_loss,
    F.multilabel_margin_loss: _multilabel_margin_loss,
    F.ctc_loss: _ctc_loss,
}
