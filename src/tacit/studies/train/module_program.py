"""The program of one run: any `nn.Module`, trained by autograd, its penalty by `tacit.GradientPenalty`.

The paper's Wide-ResNets have their penalised gradient written out instead (`residual_derivatives`): the same numbers
but for rounding, in fewer calls.

Without a penalty an update is ω ← (1 − εμ) ω − ε∇Ĉ, two passes over all parameters at once. With one it is

    ω ← ω − ε ∇( Ĉ + (μ/2)‖ω‖² + (λ/4)‖∇Ĉ + μω‖² )                                                (section 2.3)

or, with weight decay outside the penalised norm, ω ← (1 − εμ) ω − ε ∇( Ĉ + (λ/4)‖∇Ĉ‖² ). L2 covers all parameters:
weights, biases and SkipInit scalars. Other optimizers get the same gradient, with μω in it (AdamW decays by itself).

A model of the user's own may have buffers and draw random numbers: buffers are part of a checkpoint, and each update
draws from a generator made of (seed, update), so that a resumed run repeats what an uninterrupted one draws.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit._util.errors import InputError
from tacit._util.own_code import call, is_own
from tacit._util.random_generators import derive_seed, generator
from tacit.penalty import GradientPenalty, Relative, SharpnessAware
from tacit.studies.data.facts import Facts
from tacit.studies.describe.spec import RunSpec
from tacit.studies.train import devices
from tacit.studies.train.models import WideResNet, conv1d, mlp, signal_length, wide_resnet
from tacit.studies.train.operations import count
from tacit.studies.train.optimizers import make_optimizer, state_tensors, step
from tacit.studies.train.residual_derivatives import Derivatives

EVALUATED_ACTIVATIONS = 4_500_000  # WRN-10-1 on 32x32 images: 50 rows at a time are 1.2 to 1.6 times as fast as 250
# The method is exact and fixed by the model, so that rounding never depends on the machine. The Gram form gains nothing
# on convolutions of few channels (`benchmarks/results/wrn_update.json`).
# One pass for all micro-batches is taken where it was timed to be faster, so they are looped over instead.
# Of Wide-ResNets only those in bfloat16 need a method.
NORMS = ("gradient_norm", "product_norm", "weight", "applied", "pause")  # of `GradientPenalty.state_dict()["relative"]`
CONVOLUTIONS = ("wide_resnet", "conv1d")


def build(run: RunSpec, facts: Facts) -> nn.Module:
    """The model of a run, where its seed puts it: float32, on the CPU."""
    draws = generator(run.seed, "init")
    if is_own(run.model):
        return _build_own(run)
    if run.model == "mlp":
        features = facts.features if run.image_size is None else facts.shape[0] * run.image_size**2
        return FlatInputs(*mlp([features, *[run.width] * run.depth, facts.classes], draws))
    if run.model == "conv1d":
        return conv1d(signal_length(facts), width=run.width, depth=run.depth, classes=facts.classes, generator=draws)
    return wide_resnet(run.depth, run.width, classes=facts.classes, channels=facts.shape[0], generator=draws)


class FlatInputs(nn.Sequential):
    """Layers on images as rows of numbers. The names of parameters are those of the layers alone."""

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = super().forward(inputs.flatten(1))
        return outputs


def _build_own(run: RunSpec) -> nn.Module:
    """What the user's function makes, with torch's global generator at the run's seed while it does."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(run.seed, "init"))
        model = call(run.model, **(run.model_arguments or {}))
    if not isinstance(model, nn.Module):
        raise InputError(f"{run.model} returned a {type(model).__name__}; expected a torch.nn.Module.")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError(f"{run.model} returned a model without trainable parameters; expected at least one.")
    return model


def make_stepper(run: RunSpec, model: nn.Module) -> GradientPenalty | SharpnessAware:
    """The package's own step of a run: that of SAM, or of the penalty."""
    if run.sam_radius:
        return SharpnessAware(model, run.sam_radius, sampled=run.sam_rows, seed=run.seed)
    loops = run.model in CONVOLUTIONS or run.micro_batch_size is not None
    return GradientPenalty(
        model, Relative(run.relative) if run.relative else run.strength,
        method="double_backward" if loops else "gram",
        micro_batch_size=run.micro_batch_size, sampled=run.sampled, seed=run.seed,
    )  # fmt: skip


def has_derivatives(run: RunSpec) -> bool:
    """Whether `residual_derivatives` is its gradient: in float32, a fixed λ, whole minibatches, labels as they are."""
    return run.precision == "float32" and not (run.label_smoothing or run.micro_batch_size or run.relative)


class _LostError(Exception):
    """The loss of a minibatch is not finite."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits.detach()


class Single:
    """One model and its run."""

    pause_every = 1  # a step of a large model takes a while

    def __init__(self, runs: Sequence[RunSpec], facts: Facts, *, device: torch.device, dtype: torch.dtype) -> None:
        (run,) = runs  # packing gives these models a fleet of their own
        self.run, self.device = run, device
        self.images = run.model == "wide_resnet" and devices.prefers_channels_last(device)
        self.layout = torch.channels_last if self.images else torch.contiguous_format
        self.own = is_own(run.model)
        self.model = build(run, facts).to(device=device, dtype=dtype)
        self.model.to(memory_format=self.layout)  # type: ignore[call-overload]
        self.trainable = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.parameters: list[Tensor] = list(self.trainable)
        self.evaluation_rows = 250 if self.own else min(250, max(1, EVALUATED_ACTIVATIONS // count(run).activations))
        self.stepper = make_stepper(run, self.model)
        self.derivatives: Derivatives | None = None
        # Not for a user's own subclass: its forward pass may be another.
        if isinstance(self.model, WideResNet) and not self.own and has_derivatives(run):
            self.derivatives = Derivatives(self.model)
        self.optimizer = None if run.optimizer == "sgd" else make_optimizer(run, self.trainable)
        self.updates = 0
        self.norms = torch.zeros(len(NORMS), dtype=torch.float64)  # what a relative strength goes on with; 0: nothing

    def update(self, inputs: Tensor, labels: Tensor, *, rates: Sequence[float]) -> Tensor:
        (rate,) = rates
        inputs = self._laid_out(inputs)
        with self._draws():
            try:
                decayed = self._decay_in_graph
                logits, gradients = self._gradients(inputs, labels)
            except _LostError as lost:
                return self._lose(lost.logits)
        self.updates += 1
        self._apply(gradients, rate, decayed=decayed)
        return logits.detach()[None]

    def _gradients(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, list[Tensor]]:
        if self._penalty_is_on:
            return self._penalized(inputs, labels)
        if self.run.sam_radius:
            return self._stepped(inputs, labels, decay=0.0)
        logits = self._logits(inputs)
        loss = self._loss(logits, labels)
        return logits, list(torch.autograd.grad(loss, self.parameters, materialize_grads=self.own))

    def _apply(self, gradients: list[Tensor], rate: float, *, decayed: bool) -> None:
        decay = 0.0 if decayed or self.run.optimizer == "adamw" else self.run.weight_decay
        with torch.no_grad():
            if self.optimizer is not None:
                if decay:
                    torch._foreach_add_(gradients, self.parameters, alpha=decay)
                step(self.optimizer, gradients, rate=rate)
                return
            if decay:
                torch._foreach_mul_(self.parameters, 1 - rate * decay)
            torch._foreach_add_(self.parameters, gradients, alpha=-rate)

    def outputs(self, inputs: Tensor) -> Tensor:
        self.model.eval()
        try:
            with torch.no_grad():
                return self._logits(self._laid_out(inputs))[None]
        finally:
            self.model.train()

    def squared_gradient_norms(self, inputs: Tensor, labels: Tensor) -> Tensor:
        buffers = [buffer.clone() for buffer in self.model.buffers()]  # this is no update: batch norm must not count it
        with self._draws():
            loss = self._loss(self._logits(self._laid_out(inputs)), labels)
            gradients = list(torch.autograd.grad(loss, self.parameters, materialize_grads=self.own))
        with torch.no_grad():
            for buffer, value in zip(self.model.buffers(), buffers, strict=True):
                buffer.copy_(value)
            if self.run.optimizer != "adamw":
                torch._foreach_add_(gradients, self.parameters, alpha=self.run.weight_decay)
            return _squares(gradients)

    def decay_losses(self) -> Tensor:
        decay = 0.0 if self.run.optimizer == "adamw" else self.run.weight_decay  # AdamW's is no part of a loss
        with torch.no_grad():
            return decay / 2 * _squares(self.parameters)

    def tensors(self) -> list[Tensor]:
        state = [] if self.optimizer is None else state_tensors(self.optimizer)
        if isinstance(self.stepper, GradientPenalty) and (norms := self.stepper.state_dict()["relative"]):
            self.norms.copy_(torch.tensor([norms[name] for name in NORMS], dtype=torch.float64))
        if self.run.relative:
            state.append(self.norms)
        return [each.detach() for each in (*self.parameters, *self.model.buffers(), *state)]

    def weights(self, number: int) -> dict[str, Tensor]:
        return dict(self.model.state_dict())

    def resumed_at(self, updates: int) -> None:
        self.updates = updates
        if isinstance(self.stepper, SharpnessAware):
            self.stepper.load_state_dict({"steps": updates, "seed": self.run.seed})
            return
        state = {**self.stepper.state_dict(), "steps": updates}
        if self.norms.any():
            state["relative"] = dict(zip(NORMS, self.norms.tolist(), strict=True))
        self.stepper.load_state_dict(state)

    @contextlib.contextmanager
    def _draws(self) -> Iterator[None]:
        """Own models may draw (dropout): from the run's seed and the number of the update."""
        if not self.own:
            yield
            return
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(self.run.seed, "dropout", self.updates))
            yield

    def clear(self, number: int) -> None:
        with torch.no_grad():
            torch._foreach_zero_(self.parameters)

    @property
    def _decay_in_graph(self) -> bool:
        return self._penalty_is_on and self.run.weight_decay_penalized and self.run.optimizer != "adamw"

    @property
    def _penalty_is_on(self) -> bool:
        return max(self.run.strength, self.run.relative) > 0 and self.updates < self.run.penalized_updates

    def _penalized(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, list[Tensor]]:
        decay = self.run.weight_decay if self._decay_in_graph else 0.0
        if self.derivatives is not None:
            return self._penalized_by_hand(self.derivatives, inputs, labels, decay=decay)
        return self._stepped(inputs, labels, decay=decay)

    def _stepped(self, inputs: Tensor, labels: Tensor, *, decay: float) -> tuple[Tensor, list[Tensor]]:
        """Logits of the minibatch, and what a step of the package puts into `.grad`, with μω of `decay` in the loss."""
        seen: list[Tensor] = []

        def loss(inputs: Tensor, labels: Tensor) -> Tensor:
            logits = self._logits(inputs)
            seen.append(logits.detach())
            value = self._loss(logits, labels)
            if decay:
                flat = torch.cat([parameter.reshape(-1) for parameter in self.parameters])  # one node for all tensors
                value = value + decay / 2 * flat.dot(flat)
            if not torch.isfinite(value):
                raise _LostError(logits)
            return value

        self.model.zero_grad(set_to_none=True)
        self.stepper.backward(loss, inputs, labels)
        found = [torch.zeros_like(each) if each.grad is None else each.grad for each in self.parameters]
        whole = [logits for logits in seen if len(logits) == len(labels)]
        logits = whole[-1] if whole else torch.cat(seen[-(len(labels) // len(seen[-1])) :])
        return logits, found

    def _penalized_by_hand(
        self, derivatives: Derivatives, inputs: Tensor, labels: Tensor, *, decay: float
    ) -> tuple[Tensor, list[Tensor]]:
        """g + (λ/2)(H + μ) g with g = ∇Ĉ + μω and μ = `decay`: the gradient of Ĉ + (μ/2)‖ω‖² + (λ/4)‖g‖²."""
        logits, found = derivatives.gradient(inputs, labels)
        if not torch.isfinite(F.cross_entropy(logits, labels)):
            raise _LostError(logits)
        gradients = [found[parameter] for parameter in self.trainable]
        half = self.run.strength / 2
        with torch.no_grad():
            if decay:
                torch._foreach_add_(gradients, self.parameters, alpha=decay)
            curved = derivatives.hessian_product(dict(zip(self.trainable, gradients, strict=True)))
            if decay:
                torch._foreach_mul_(gradients, 1 + half * decay)
            torch._foreach_add_(gradients, [curved[parameter] for parameter in self.trainable], alpha=half)
        return logits, gradients

    def _lose(self, logits: Tensor) -> Tensor:
        """A penalty needs a finite loss. Without one the run has diverged, and nothing may bring it back by chance."""
        with torch.no_grad():
            for parameter in self.parameters:
                parameter.fill_(float("nan"))
        return torch.full_like(logits, float("nan"))[None]

    def _logits(self, inputs: Tensor) -> Tensor:
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.run.precision == "bfloat16"):
            logits: Tensor = self.model(inputs)
        return logits if self.run.precision == "float32" else logits.float()

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, label_smoothing=self.run.label_smoothing)

    def _laid_out(self, inputs: Tensor) -> Tensor:
        return inputs.contiguous(memory_format=self.layout) if inputs.dim() == 4 else inputs


def _squares(tensors: list[Tensor]) -> Tensor:
    """Σ‖·‖² in float64 on the CPU, shaped (1,): squares of float32 sums, tensor by tensor."""
    return torch.stack(torch._foreach_norm(tensors)).cpu().double().square().sum()[None]
