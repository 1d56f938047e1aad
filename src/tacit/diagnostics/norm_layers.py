"""The noise scale from norm layers alone: per-example gradients that an ordinary backward pass gives almost for free.

A norm layer computes z = n(x) ∘ w + b. With D = ∂Ĉ/∂z of a minibatch of B examples, example j has the gradients

    Gⱼ = Σ D ∘ n(x)  for w,      Σ D  for b,      summed over its own rows (tokens, places)

so one product and one sum per layer, of B x features numbers, where other layers need a product of matrices (nanoGNS,
Gray et al., arXiv 2411.00999). Each single step then has an unbiased estimate of ‖∇C‖² and of the variance V of these
parameters' gradients, as in `estimates`. Their ratio is not the noise scale of all parameters. It was 0.6 to 1.4 times
that in a small transformer that classifies signals (`benchmarks/norm_layers.py`), and 0.2 to 0.7 times that in one of
the same size with a loss for every token.

The loss counts as it was given to `backward`. With c times the loss (torch's GradScaler, also where `.grad` was
unscaled since) ‖∇C‖² and V are c² times as large, and their ratio is the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from tacit._util.errors import InputError
from tacit.diagnostics.estimates import Estimate, inverse
from tacit.layers.calls import layer_call
from tacit.layers.example_uses import BroadcastUse
from tacit.layers.example_watch import broadcast_parameters

BIAS = "the noise scale of the norm layers' parameters alone; in two small transformers 0.2 to 1.4 times that of all"
# Each layer as the call of torch's function that it makes.
CALLS: dict[type[nn.Module], Callable[[Any, Tensor], tuple[Any, tuple[Any, ...]]]] = {
    nn.LayerNorm: lambda layer, x: (F.layer_norm, (x, layer.normalized_shape, layer.weight, layer.bias, layer.eps)),
    nn.RMSNorm: lambda layer, x: (F.rms_norm, (x, layer.normalized_shape, layer.weight, layer.eps)),
    nn.GroupNorm: lambda layer, x: (F.group_norm, (x, layer.num_groups, layer.weight, layer.bias, layer.eps)),
}


class NormLayerGradients:
    """Gathers Gⱼ of all norm layers of a model between `open` and `close`, in the backward passes of the training loop.

    Layers are torch's LayerNorm, RMSNorm and GroupNorm with parameters that are trained. Examples lie along the first
    axis of their inputs, or are the rows of a matrix (examples x tokens, features). Hooks stay on the model only while
    it is open, and only read.
    """

    def __init__(self, model: nn.Module) -> None:
        self.layers = {name: layer for name, layer in model.named_modules() if _is_trained_norm(layer)}
        if not self.layers:
            raise InputError(
                f"layers='norms' and {type(model).__name__} has no LayerNorm, RMSNorm or GroupNorm with trained "
                "parameters; expected one at least. Use layers='all'."
            )
        self._handles: list[RemovableHandle] = []
        self._calls: dict[str, list[tuple[Tensor, bool]]] = {}

    def open(self) -> None:
        """Nothing of an earlier step is kept."""
        self.close()
        for name, layer in self.layers.items():
            self._handles.append(layer.register_forward_hook(ForwardHook(name, self), with_kwargs=True))

    def close(self) -> None:
        self._calls = {}
        while self._handles:
            self._handles.pop().remove()

    @property
    def is_open(self) -> bool:
        return bool(self._handles)

    def discard(self) -> None:
        self._calls = {}

    def take(self, batch_size: int) -> Tensor:
        """Gⱼ of all layers since the last call, (examples, parameters): they add up to `.grad` of these parameters."""
        calls, self._calls = self._calls, {}
        if not calls:
            raise InputError(
                "no norm layer was seen in this step; expected a backward pass of the model itself. Hooks do not run "
                "in a model that was compiled before: give the recorder the model that is called."
            )
        return torch.cat([self._of_examples(name, parts, batch_size) for name, parts in calls.items()], dim=1)

    def add(self, name: str, inputs: Tensor, D: Tensor) -> None:
        """One use of a layer in a backward pass."""
        made = example_gradients(self.layers[name], inputs, D.detach())
        self._calls.setdefault(name, []).append((made, D.dim() == 2))

    @staticmethod
    def _of_examples(name: str, calls: list[tuple[Tensor, bool]], batch_size: int) -> Tensor:
        """One row per example: of micro-batches one after the other, of several uses their sum, of a matrix its rows'.

        A first axis that is neither is refused: tokens before examples would give wrong numbers silently.
        """
        parts = [part for part, _ in calls]
        found = sum(map(len, parts))
        if found == batch_size:
            return torch.cat(parts)
        if all(len(part) == batch_size for part in parts):
            return torch.stack(parts).sum(0)
        if len(calls) == 1 and calls[0][1] and found % batch_size == 0:
            return parts[0].reshape(batch_size, -1, parts[0].shape[1]).sum(1)
        raise InputError(
            f"the norm layer {name!r} saw {found} rows in a step; expected batch_size={batch_size} examples along the "
            "first axis. Give the number of examples in a step, and put examples before tokens (batch_first=True)."
        )


class ForwardHook:
    """Keeps a norm layer's inputs until its backward pass. In a copy of the model, or a stored one, it does nothing.

    Those are other models (an average of weights, a checkpoint): their passes are no part of the training loop.
    """

    def __init__(self, name: str = "", gathered: NormLayerGradients | None = None) -> None:
        self.name, self.gathered = name, gathered

    def __reduce__(self) -> tuple[type[ForwardHook], tuple[()]]:
        return ForwardHook, ()  # of copy.deepcopy and of pickle

    def __call__(self, layer: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
        # Penalised steps run the model inside torch.vmap, where hooks on tensors have no meaning.
        inside_vmap = torch._C._functorch.peek_interpreter_stack() is not None
        if self.gathered is None or inside_vmap or not isinstance(output, Tensor) or not output.requires_grad:
            return
        # Norm layers have one argument, which LayerNorm calls `input` and RMSNorm `x`.
        (inputs,) = (*arguments, *keywords.values())
        output.register_hook(partial(self.gathered.add, self.name, inputs.detach()))


def example_gradients(layer: Any, inputs: Tensor, D: Tensor) -> Tensor:
    """The gradients of a norm layer's parameters, one row per entry of the first axis, weight first, then bias."""
    kind = _kind(layer)
    assert kind is not None
    call = layer_call(*CALLS[kind](layer, inputs), {}, lambda tensor: isinstance(tensor, nn.Parameter))
    assert call is not None
    uses = [
        BroadcastUse("", parameter, None, len(D), aligned, factor)
        for parameter, aligned, factor in broadcast_parameters(call, D.dim())
        if parameter is not None and parameter.requires_grad
    ]
    return torch.cat([use.gradients(D).flatten(1) for use in uses], dim=1)


def step_moments(gradients: Tensor, *, train_size: int) -> tuple[float, float]:
    """(‖∇C‖², V) of one minibatch, both without bias, from Gⱼ (rows): parts of the gradient of its mean loss.

    V = Σⱼ‖gⱼ − ḡ‖²/(B−1) with gⱼ = B Gⱼ, and ‖∇C‖² = ‖ḡ‖² − (1/B − 1/N) V.
    """
    count, rows = len(gradients), gradients.double()
    mean = rows.sum(0)
    variance = float((count * rows - mean).square().sum()) / (count - 1)
    return float(mean.square().sum()) - (1 / count - 1 / train_size) * variance, variance


def norms_row(moments: list[tuple[float, float]], *, batch_size: int, train_size: int) -> dict[str, Any]:
    """The row of a window: means over its steps, and the noise scale with a 95 % interval by leaving out one step."""
    each = np.array(moments)
    squared_norm, variance = each.mean(0)
    gamma = (train_size - 1) / train_size * variance
    scale = inverse(_signal(each, train_size=train_size))
    return {
        "kind": "norms",
        "window": len(moments),
        "batch_size": batch_size,
        "gradient_covariance_trace": float(gamma),
        "full_gradient_squared_norm": float(squared_norm),
        "noise_scale": scale.value,
        "noise_scale_low": scale.low,
        "noise_scale_high": scale.high,
        "note": BIAS,
    }


def _signal(each: np.ndarray, *, train_size: int) -> Estimate:
    """‖∇C‖²/Γ of the window's means, with Student's interval around it by the jackknife over steps."""
    count = len(each)

    def ratio(sums: np.ndarray) -> np.ndarray:
        return sums[..., 0] / np.maximum((train_size - 1) / train_size * sums[..., 1], 1e-300)

    value, left_out = float(ratio(each.sum(0))), ratio(each.sum(0) - each)
    error = math.sqrt((count - 1) / count * float(np.square(left_out - left_out.mean()).sum()))
    half = float(stats.t.ppf(0.975, count - 1)) * error
    return Estimate(value, value - half, value + half)


def _kind(layer: nn.Module) -> type[nn.Module] | None:
    """Which norm a module computes; a subclass with a forward pass of its own computes something else."""
    return next((kind for kind in CALLS if isinstance(layer, kind) and type(layer).forward is kind.forward), None)


def _is_trained_norm(layer: nn.Module) -> bool:
    return _kind(layer) is not None and any(parameter.requires_grad for parameter in layer.parameters(recurse=False))
