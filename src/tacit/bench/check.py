"""One model and one batch of the user's: is the penalty exact on it, what do penalty and SAM cost, which strength."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tacit._util.errors import InputError
from tacit._util.timing import time_interleaved, waits_for
from tacit.bench.accuracy import gradient_and_product, norm
from tacit.bench.memory import allocated_bytes
from tacit.bench.paired import median_with_interval
from tacit.bench.run import machine
from tacit.bench.steps import STRENGTH
from tacit.edges import largest_stable_strength
from tacit.penalty import GradientPenalty, Relative, SharpnessAware
from tacit.penalty.pieces import count_rows, row_tensors, rows_of, with_tensors

ROUNDS = 11
COMPARED_ROWS = 64  # of the batch, with the gradient in float64, which GPUs form slowly
SETTLING_STEPS = 32  # of `Relative`: its λ rises by 16 times a step, then is a mean over draws
RADIUS, RATIO = 0.05, 0.4
SEED = 0
Closure = Callable[..., Tensor]


def check_model(
    model: nn.Module,
    closure: Closure,
    batch: tuple[Any, ...],
    *,
    rows: int | None = None,
    rounds: int = ROUNDS,
    learning_rate: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Every number of `tacit check`; `closure(*batch)` is the mean loss. The model ends as it began, bitwise.

    Where one part fails its entry is {"error": a sentence, "refused": whether this package said it}. Only a closure
    that has no plain gradient is an error.
    """
    size = count_rows(batch)
    drawn = max(size // 16, 1) if rows is None else rows
    if drawn > size:
        raise InputError(f"{drawn} rows of a batch of {size}; expected at most all of them.")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if any(map(nn.parameter.is_lazy, [*model.parameters(), *model.buffers()])):
        raise InputError("the model has lazy parameters; expected their shapes. Call the model once in the factory.")
    if not parameters:
        raise InputError("the model has no trainable parameters; expected at least one with requires_grad=True.")
    with _put_back(model):
        _check_closure(closure, batch)
        compared = min(size, COMPARED_ROWS)
        say(f"comparing with float64 on {compared} rows")
        exact = _tried(_exactness, model, closure, rows_of(batch, torch.arange(compared)))
        prices = _prices(model, closure, batch, drawn, rounds, say)
        say("measuring strengths")
        strengths = _tried(_strengths, model, closure, batch, learning_rate)
        relative = _tried(_settled, model, closure, batch, drawn)
    return {
        "schema": "tacit-check/1",
        "model": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in parameters),
        "dtype": str(parameters[0].dtype).removeprefix("torch."),
        "batch_size": size,
        "rows": drawn,
        "rounds": rounds,
        "machine": machine(parameters[0].device),
        "exact": exact,
        "steps": prices,
        "strengths": strengths,
        "relative": relative,
    }


def _check_closure(closure: Closure, batch: tuple[Any, ...]) -> None:
    loss = _tried(closure, *batch)
    if isinstance(loss, dict) and "error" in loss:
        raise InputError(f"the closure raised: {loss['error']}")
    if not isinstance(loss, Tensor) or loss.shape != () or not loss.requires_grad:
        found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"type {type(loss).__name__}"
        raise InputError(f"the closure's loss has {found}; expected a scalar tensor that backward can be called on.")
    loss.backward()


def _exactness(model: nn.Module, closure: Closure, batch: tuple[Any, ...]) -> dict[str, Any]:
    """‖G − G₆₄‖ / ‖(λ/2) ∇²Ĉ ∇Ĉ‖ at the λ whose part is as long as ∇Ĉ, and the same for ∇Ĉ itself."""
    penalty = GradientPenalty(model, STRENGTH)
    penalty.backward(closure, *batch)  # a refusal comes before anything else
    plain, product = _float64_gradients(model, closure, batch)
    length, product_length = norm(plain), norm(product)
    penalty.strength = strength = 2 * length / product_length if product_length else 1.0
    pairs = []
    for backward in (lambda: closure(*batch).backward(), lambda: penalty.backward(closure, *batch)):
        model.zero_grad()
        torch.manual_seed(SEED)
        backward()
        pairs.append([_gradient(parameter) for parameter in model.parameters() if parameter.requires_grad])
    expected = [g + strength / 2 * product_part for g, product_part in zip(plain, product, strict=True)]
    own, ours = (
        norm(found.double() - right for found, right in zip(pair, wanted, strict=True)) / (length or 1.0)
        for pair, wanted in zip(pairs, (plain, expected), strict=True)
    )
    return {
        "method": penalty.method,
        "rows": count_rows(batch),
        "relative_error": ours,
        "plain_relative_error": own,
        "tolerance": torch.finfo(pairs[0][0].dtype).eps ** 0.5,  # half of the digits
    }


def _float64_gradients(model: nn.Module, closure: Closure, batch: tuple[Any, ...]) -> tuple[list[Tensor], list[Tensor]]:
    """∇Ĉ and ∇²Ĉ ∇Ĉ of the model in float64."""
    tensors = [tensor.double() if tensor.is_floating_point() else tensor for tensor in row_tensors(batch)]
    with _put_back(model), sdpa_kernel(SDPBackend.MATH):
        model.double()
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        torch.manual_seed(SEED)
        return gradient_and_product(closure(*with_tensors(batch, tensors)), parameters)


class _Plain:
    def backward(self, closure: Closure, *batch: Any) -> None:
        closure(*batch).backward()


def _prices(
    model: nn.Module, closure: Closure, batch: tuple[Any, ...], drawn: int, rounds: int, say: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """Time and peak memory of each step, with `torch.optim.SGD` at rate 0, in plain steps of the same rounds."""
    made: dict[str, Any] = {
        "plain": _Plain(),
        "penalty": _tried(GradientPenalty, model, STRENGTH),
        "penalty, sampled": _tried(partial(GradientPenalty, model, STRENGTH, micro_batch_size=drawn, sampled=1)),
        "sam": _tried(SharpnessAware, model, RADIUS),
        "sam, sampled": _tried(partial(SharpnessAware, model, RADIUS, sampled=drawn)),
    }
    rows: dict[str, dict[str, Any]] = {name: maker if isinstance(maker, dict) else {} for name, maker in made.items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def step(name: str) -> None:
        optimizer.zero_grad()
        failed = _tried(made[name].backward, closure, *batch)
        if isinstance(failed, dict):  # of one row; the others are measured all the same
            rows[name] = failed
        optimizer.step()

    for name in made:
        if not rows[name]:
            step(name)
    steps = {name: partial(step, name) for name in made if not rows[name]}
    device = next(model.parameters()).device
    say(f"timing {len(steps)} steps in {rounds} rounds")
    seconds = time_interleaved(steps, rounds=rounds, synchronise=waits_for(device))
    tensors = [*model.parameters(), *model.buffers(), *row_tensors(batch)]
    held = sum(each.numel() * each.element_size() for each in tensors)
    say("measuring memory")
    for name in [name for name in steps if not rows[name]]:
        optimizer.zero_grad()
        peak = held + allocated_bytes(steps[name], device)
        ratios = [ours / plain for ours, plain in zip(seconds[name], seconds["plain"], strict=True)]
        median, interval = median_with_interval(ratios)
        rows[name] = {
            "milliseconds": 1e3 * median_with_interval(seconds[name])[0],
            "times_plain": median,
            "times_plain_interval": interval,
            "peak_bytes": peak,
            "peak_times_plain": peak / rows["plain"].get("peak_bytes", peak),
            **({"method": made[name].method} if isinstance(made[name], GradientPenalty) else {}),
        }
    return rows


def _strengths(
    model: nn.Module, closure: Closure, batch: tuple[Any, ...], learning_rate: float | None
) -> dict[str, float | None]:
    """The whole batch's penalty at λ = 2⁻⁶ beside the gradient, its batch sharpness s, and the limits that s gives.

    s is the curvature along ∇Ĉ, at most the largest one, so λ* is at most what it allows.
    """
    model.zero_grad()
    penalty = GradientPenalty(model, STRENGTH)
    penalty.add(closure, *batch)
    assert penalty.last is not None
    assert penalty.last.gradient_squared_norm is not None
    length = float(penalty.last.gradient_squared_norm) ** 0.5
    part = norm(_gradient(parameter) for parameter in model.parameters() if parameter.requires_grad)
    sharpness = None if penalty.last.batch_sharpness is None else float(penalty.last.batch_sharpness)
    found: dict[str, float | None] = {"strength": STRENGTH, "share": part / length if length else None}
    found |= {"batch_sharpness": sharpness, "strength_at_ratio_1": None, "largest_stable_strength": None}
    if sharpness is not None and math.isfinite(sharpness) and sharpness > 0:
        found["strength_at_ratio_1"] = 2 / sharpness
        if learning_rate is not None:
            found["largest_stable_strength"] = largest_stable_strength(learning_rate, sharpness)
    return found


def _settled(model: nn.Module, closure: Closure, batch: tuple[Any, ...], drawn: int) -> dict[str, float]:
    """λ of `Relative` on drawn micro-batches after some calls without an update."""
    penalty = GradientPenalty(model, Relative(RATIO), micro_batch_size=drawn, sampled=1)
    for _ in range(SETTLING_STEPS):
        model.zero_grad()
        penalty.backward(closure, *batch)
    assert penalty.last is not None
    return {"ratio": RATIO, "calls": SETTLING_STEPS, "strength": penalty.last.strength, "cap": Relative(RATIO).cap}


def _tried(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:  # the model is the user's: whatever it raises becomes one sentence in its place
        return _failure(error)


def _failure(error: Exception) -> dict[str, Any]:
    return {"error": _sentence(error), "refused": isinstance(error, InputError)}


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split()) or "no message"
    return text if isinstance(error, InputError) else f"{type(error).__name__}: {text}"


@contextmanager
def _put_back(model: nn.Module) -> Iterator[None]:
    """Parameters, buffers, gradients, modes and random numbers afterwards are those from before, bitwise.

    The very tensors too, should the model have been converted to float64 in between: the closure holds this model.
    """
    parameters = [(each, each.grad, each.data, each.detach().clone()) for each in model.parameters()]
    buffers = [
        (module, name, each, each.clone())
        for module in model.modules()
        for name, each in module._buffers.items()
        if each is not None
    ]
    modes = [(module, module.training) for module in model.modules()]
    cuda = sorted({each.device for each in model.parameters() if each.device.type == "cuda"}, key=str)
    with torch.random.fork_rng(cuda):
        try:
            model.zero_grad(set_to_none=True)
            yield
        finally:
            for parameter, gradient, data, value in parameters:
                parameter.data, parameter.grad = data.copy_(value), gradient
            for module, name, buffer, value in buffers:
                module._buffers[name] = buffer.copy_(value)
            for module, training in modes:
                module.training = training


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
