"""Many runs of one MLP as one program, each with its own rate, strength or SAM radius: what `advice.py` trains with.

The penalty is that of `tacit.GradientPenalty(micro_batch_size=b)`; `difference_from_package` compares one step of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from large_batch_tasks import Arrays, Task
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

import tacit
from tacit._util.random_generators import generator
from tacit.batching import epoch_batches
from tacit.penalty.strength import RatioLimit
from tacit.studies.train import batched_mlp
from tacit.studies.train.batched_mlp import Layers
from tacit.studies.train.models import mlp

ADAM = (0.9, 0.999, 1e-8)
NOTHING_LEARNED = 0.98  # of log(classes), the loss of a network that always answers the same


@dataclass(frozen=True)
class Run:
    """One run of a fleet: rate ε, penalty strength λ on every k-th step with weight k, or SAM's radius ρ likewise."""

    seed: int
    learning_rate: float
    strength: float = 0.0
    radius: float = 0.0
    every: int = 1
    largest_ratio: float | None = None  # of `tacit.GradientPenalty`: the step's own λ is at most 2r/s


@dataclass(frozen=True)
class Fleet:
    """Runs that train together: one batch size, one optimizer, one kind of step (plain, penalty or SAM)."""

    runs: tuple[Run, ...]
    batch_size: int
    micro_batch_size: int
    updates: int
    optimizer: str = "sgd"  # sgd, momentum (heavy ball, `momentum`) or adamw
    momentum: float = 0.9
    evaluate_at: tuple[int, ...] = ()

    @property
    def every(self) -> int:
        (every,) = {run.every for run in self.runs}
        return every


def training(task: Task, arrays: Arrays, fleet: Fleet) -> Iterator[tuple[int, Layers]]:
    """Trains; yields (update, parameters) at half time, at every update of `evaluate_at`, and at the end."""
    layers = batched_mlp.initialise(task.sizes, [run.seed for run in fleet.runs])
    rates, strengths, radii = (
        torch.tensor([getattr(run, name) for run in fleet.runs]).view(-1, 1, 1)
        for name in ("learning_rate", "strength", "radius")
    )
    limits = [None if run.largest_ratio is None else RatioLimit(run.largest_ratio) for run in fleet.runs]
    step = make_optimizer(fleet, layers, rates)
    batches = Minibatches(task, arrays, fleet)
    stops = {*fleet.evaluate_at, fleet.updates // 2, fleet.updates}
    for update in range(fleet.updates):
        inputs, targets = batches(update)
        on = update % fleet.every == 0
        if on and bool(radii.any()):
            parts = sam_gradient(layers, inputs, targets, radii)
        elif on and bool(strengths.any()):
            strength = held(fleet.every * strengths, limits)
            found: list[Tensor] = []
            parts = gradient(
                layers, inputs, targets, strength=strength, micro=fleet.micro_batch_size, batch_sharpness=found
            )
            see(limits, found)
        else:
            parts = gradient(layers, inputs, targets, strength=None, micro=fleet.micro_batch_size)
        step(parts)
        if update + 1 in stops:
            yield update + 1, layers


def held(strengths: Tensor, limits: Sequence[RatioLimit | None]) -> Tensor:
    """Each run's strength of this step, by the package's own rule."""
    wanted = strengths.flatten().tolist()
    now = [given if limit is None else float(limit.limited(given)) for given, limit in zip(wanted, limits, strict=True)]
    return torch.tensor(now).view(-1, 1, 1)


def see(limits: Sequence[RatioLimit | None], batch_sharpness: Sequence[Tensor]) -> None:
    (found,) = batch_sharpness
    for limit, sharpness in zip(limits, found, strict=True):
        if limit is not None:
            limit.see(sharpness, lambda own: own)


def train(
    task: Task, arrays: Arrays, fleet: Fleet, *, pause: Callable[[Layers], None] | None = None
) -> list[dict[str, Any]]:
    """One row per run: its settings, accuracies at every update of `evaluate_at`, and whether it diverged.

    `pause(layers)` is called at half time.
    """
    history: dict[str, list[list[float]]] = {"updates": [], "test": [], "validation": []}
    for update, layers in training(task, arrays, fleet):
        if pause is not None and update == fleet.updates // 2:
            pause(layers)
        if update in fleet.evaluate_at or update == fleet.updates:
            history["updates"].append([update] * len(fleet.runs))
            history["test"].append(accuracies(layers, *arrays.test))
            history["validation"].append(accuracies(layers, *arrays.validation))
    trained, losses = accuracies(layers, *arrays.train), mean_losses(layers, *arrays.train)
    return [
        {
            **asdict(run),
            **{name: [at[number] for at in rows] for name, rows in history.items()},
            "train_accuracy": trained[number],
            "train_loss": losses[number] if math.isfinite(losses[number]) else None,
            "diverged": has_diverged(task, losses[number]),
        }
        for number, run in enumerate(fleet.runs)
    ]


def has_diverged(task: Task, train_loss: float) -> bool:
    """Whether the training loss is that of a network which always answers the same, or worse, or not a number."""
    return not train_loss < NOTHING_LEARNED * math.log(task.sizes[-1])


class Minibatches:
    """The minibatches of all runs at an update, each run's own order and shifts."""

    def __init__(self, task: Task, arrays: Arrays, fleet: Fleet) -> None:
        self.task, self.fleet = task, fleet
        inputs, targets = arrays.train
        self.shifted = torch.stack([inputs.roll(by, dims=1) for by in range(-task.shift, task.shift + 1)])
        self.targets = one_hot(targets, task.sizes[-1]).float()
        self.draws = {run.seed: generator(run.seed, "augment") for run in fleet.runs}
        self.per_epoch = task.train_size // fleet.batch_size

    def __call__(self, update: int) -> tuple[Tensor, Tensor]:
        epoch, position = divmod(update, self.per_epoch)
        seeds = [run.seed for run in self.fleet.runs]
        if position == 0:
            size, batch = self.task.train_size, self.fleet.batch_size
            self.orders = {
                seed: epoch_batches(size, batch, order="shuffled", seed=seed, epoch=epoch) for seed in self.draws
            }
        chosen = {seed: order[position] for seed, order in self.orders.items()}
        examples = torch.stack([chosen[seed] for seed in seeds])
        if not self.task.shift:
            return self.shifted[0][examples], self.targets[examples]
        count = 2 * self.task.shift + 1
        shifts = {
            seed: torch.randint(count, (self.fleet.batch_size,), generator=draws) for seed, draws in self.draws.items()
        }
        return self.shifted[torch.stack([shifts[seed] for seed in seeds]), examples], self.targets[examples]


def make_optimizer(fleet: Fleet, layers: Layers, rates: Tensor) -> Callable[[list[Tensor]], None]:
    """An update of all runs from their gradients, as torch.optim.SGD and AdamW (weight decay 0) have it."""
    tensors = layers.tensors()
    first, second = ([torch.zeros_like(tensor) for tensor in tensors] for _ in range(2))
    count = 0

    def step(parts: list[Tensor]) -> None:
        nonlocal count
        count += 1
        for tensor, part, m, v in zip(tensors, parts, first, second, strict=True):
            if fleet.optimizer == "adamw":
                a, b, floor = ADAM
                m.mul_(a).add_(part, alpha=1 - a)
                v.mul_(b).addcmul_(part, part, value=1 - b)
                part = m / (1 - a**count) / ((v / (1 - b**count)).sqrt() + floor)
            elif fleet.optimizer == "momentum":
                m.mul_(fleet.momentum).add_(part)
                part = m
            tensor.sub_(rates * part)

    return step


def gradient(
    layers: Layers,
    inputs: Tensor,
    targets: Tensor,
    *,
    strength: Tensor | None,
    micro: int,
    batch_sharpness: list[Tensor] | None = None,
) -> list[Tensor]:
    """∇ of the mean over micro-batches of Ĉₖ + (λ/4)‖∇Ĉₖ‖², for all runs: weights first, then biases.

    The algebra of `tacit.studies.train.batched_mlp`, with the rows of the minibatch folded into micro-batches where
    rows meet rows. `strength` has one λ per run. `batch_sharpness` receives Σₖ⟨gₖ, Hₖ gₖ⟩/Σₖ‖gₖ‖² of each run.
    """
    runs, rows, _ = inputs.shape

    def fold(tensor: Tensor) -> Tensor:
        return tensor.reshape(-1, micro, tensor.shape[2])

    X, logits = _forward(layers, inputs)
    probabilities = logits.softmax(2)
    D = _backward(layers, X, (probabilities - targets) / micro)
    T: list[Tensor | None] = [None] * len(X)
    S = D
    if strength is not None:
        half, A, Q = strength / 2, [], []
        for at, (x, d) in enumerate(zip(map(fold, X), map(fold, D), strict=True)):
            moved = (torch.bmm(torch.bmm(x, x.mT), d) + d.sum(1, keepdim=True)).reshape(runs, rows, -1)
            A.append(moved)
            if at > 0:
                moved = torch.baddbmm(moved, T[at], layers.weights[at])
            if at + 1 < len(X):
                T[at + 1] = _where_active(moved, X[at + 1])
        turned = probabilities * moved
        turned = turned - probabilities * turned.sum(2, keepdim=True)
        S = [D[-1] + half / micro * turned]
        for at in range(len(X) - 1, 0, -1):
            x, d = fold(X[at]), fold(D[at])
            s = half * torch.bmm(torch.bmm(d, d.mT), x).reshape(runs, rows, -1)
            Q.insert(0, s)
            S.insert(0, _where_active(torch.baddbmm(s, S[0], layers.weights[at].mT), X[at]))
        if batch_sharpness is not None:
            # gₖ = XᵀD and (λ/2) Hₖ gₖ = Xᵀ(S − D) + (λ/2) TᵀD, A = X Xᵀ D and Q = (λ/2) D Dᵀ X within micro-batches.
            norms = sum((a * d).sum((1, 2)) for a, d in zip(A, D, strict=True))
            along = sum((a * (s - d)).sum((1, 2)) for a, s, d in zip(A, S, D, strict=True))
            along = along + sum((q * t).sum((1, 2)) for q, t in zip(Q, T[1:], strict=True))
            batch_sharpness.append(along / half.flatten() / norms)
    weights = [torch.bmm(x.mT, s) for x, s in zip(X, S, strict=True)]
    for at, (t, d) in enumerate(zip(T, D, strict=True)):
        if t is not None:
            weights[at] += half * torch.bmm(t.mT, d)
    return [part * (micro / rows) for part in [*weights, *[s.sum(1, keepdim=True) for s in S]]]


def _forward(layers: Layers, inputs: Tensor) -> tuple[list[Tensor], Tensor]:
    """The inputs X of every layer, and the logits."""
    X = [inputs]
    for weight, bias in zip(layers.weights[:-1], layers.biases[:-1], strict=True):
        X.append(torch.baddbmm(bias, X[-1], weight).relu_())
    return X, torch.baddbmm(layers.biases[-1], X[-1], layers.weights[-1])


def _backward(layers: Layers, X: list[Tensor], last: Tensor) -> list[Tensor]:
    """D = ∂Ĉ/∂Z of every layer, from that of the last."""
    D = [last]
    for at in range(len(X) - 1, 0, -1):
        D.append(_where_active(torch.bmm(D[-1], layers.weights[at].mT), X[at]))
    return D[::-1]


def _where_active(gradient: Tensor, activations: Tensor) -> Tensor:
    """The gradient where the activation is positive, 0 elsewhere."""
    return torch.ops.aten.threshold_backward(gradient, activations, 0)


def sam_gradient(layers: Layers, inputs: Tensor, targets: Tensor, radii: Tensor) -> list[Tensor]:
    """∇Ĉ(ω + ρ ∇Ĉ/‖∇Ĉ‖) of the whole minibatch: sharpness-aware minimization (Foret et al., 2021)."""
    rows = inputs.shape[1]
    first = gradient(layers, inputs, targets, strength=None, micro=rows)
    norms = torch.stack([part.square().sum((1, 2)) for part in first]).sum(0).sqrt().clamp_min(1e-12).view(-1, 1, 1)
    moved = [tensor + radii / norms * part for tensor, part in zip(layers.tensors(), first, strict=True)]
    count = len(layers)
    return gradient(Layers(moved[:count], moved[count:]), inputs, targets, strength=None, micro=rows)


def _outputs(layers: Layers, inputs: Tensor) -> Tensor:
    return torch.cat(
        [batched_mlp.outputs(layers, part.expand(len(layers.weights[0]), -1, -1)) for part in inputs.split(500)], dim=1
    )


def accuracies(layers: Layers, inputs: Tensor, targets: Tensor) -> list[float]:
    return (_outputs(layers, inputs).argmax(2) == targets).double().mean(1).tolist()


def mean_losses(layers: Layers, inputs: Tensor, targets: Tensor) -> list[float]:
    found = _outputs(layers, inputs).double().log_softmax(2)
    return (-found.gather(2, targets.expand(len(found), -1).unsqueeze(2)).mean((1, 2))).tolist()


def as_model(task: Task, layers: Layers, number: int = 0) -> nn.Module:
    """One run's network as a module."""
    model = mlp(task.sizes)
    linear = [module for module in model if isinstance(module, nn.Linear)]
    with torch.no_grad():
        for module, weight, bias in zip(linear, layers.weights, layers.biases, strict=True):
            module.weight.copy_(weight[number].T)
            module.bias.copy_(bias[number, 0])
    return model


def difference_from_package(task: Task, arrays: Arrays, *, strength: float, micro: int) -> float:
    """The largest relative difference from `tacit.GradientPenalty`, over parameters, on the first minibatch."""
    model = mlp(task.sizes, generator(0, "init"))
    inputs, targets = (part[: task.new_batch_size] for part in arrays.train)
    penalty = tacit.GradientPenalty(model, strength, micro_batch_size=micro)
    penalty.backward(lambda x, y: cross_entropy(model(x), y), inputs, targets)
    layers = batched_mlp.initialise(task.sizes, [0])
    hot = one_hot(targets, task.sizes[-1]).float()
    found = gradient(layers, inputs[None], hot[None], strength=torch.tensor([[[strength]]]), micro=micro)
    linear = [module for module in model if isinstance(module, nn.Linear)]
    expected = [*[layer.weight.grad.T for layer in linear], *[layer.bias.grad[None] for layer in linear]]
    return max(float((a[0] - b).norm() / b.norm()) for a, b in zip(found, expected, strict=True))


def strengths_from_package(task: Task, arrays: Arrays, run: Run, *, micro: int, steps: int = 4) -> float:
    """The largest relative difference between the strengths of a limited run here and in the package, step by step."""
    fleet = Fleet((run,), task.new_batch_size, micro, steps)
    batches, layers = Minibatches(task, arrays, fleet), batched_mlp.initialise(task.sizes, [run.seed])
    model = as_model(task, layers)
    penalty = tacit.GradientPenalty(model, run.strength, micro_batch_size=micro, largest_ratio=run.largest_ratio)
    limits, apart = [RatioLimit(run.largest_ratio or 1.0)], 0.0
    move = make_optimizer(fleet, layers, torch.full((1, 1, 1), run.learning_rate))
    for update in range(steps):
        inputs, targets = batches(update)
        strength, found = held(torch.full((1, 1, 1), run.strength), limits), []
        parts = gradient(layers, inputs, targets, strength=strength, micro=micro, batch_sharpness=found)
        see(limits, found)
        penalty.backward(lambda x, y: cross_entropy(model(x), y), inputs[0], targets[0].argmax(1))
        apart = max(apart, abs(float(strength) / penalty.last.strength - 1))
        model.zero_grad()
        move(parts)
        model.load_state_dict(as_model(task, layers).state_dict())
    return apart


def evenly(updates: int, count: int) -> tuple[int, ...]:
    """`count` updates at equal distances, the last included."""
    return tuple(sorted({round(updates * k / count) for k in range(1, count + 1)}))


def fleets(runs: Sequence[Run], **common: Any) -> list[Fleet]:
    """Runs of the same kind of step share a fleet."""
    kinds: dict[tuple[bool, bool, int], list[Run]] = {}
    for run in runs:
        kinds.setdefault((run.strength > 0, run.radius > 0, run.every), []).append(run)
    return [Fleet(tuple(some), **common) for some in kinds.values()]
