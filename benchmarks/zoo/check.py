"""One model of the zoo under every method, with parts excluded or frozen, against a double backward written out here.

The reference is ∇Ĉ + (λ/2) ∇²Ĉ ∇Ĉ by two calls of `autograd.grad` under the MATH attention backend, in float64, with
operations written out where torch has no second derivative. The reference itself is checked once per model by central
differences of plain gradients.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from entry import Case, Entry
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from tacit import FactoredSGD, GradientPenalty, InputError

STRENGTH = 2.0**-6
METHODS = ("auto", "gram", "double_backward", "FactoredSGD", "finite_difference")
APPROXIMATE = ("finite_difference",)
VARIANTS = ("base", "excluded", "frozen", "input gradients")
EXACT, EXACT_WITH_FLOAT32 = 1e-6, 1e-3  # of the penalty's part; some models compute norms in float32 whatever they are
# Of the plain gradient: where the penalty is far smaller, rounding is all there is.
OF_PLAIN, OF_PLAIN_WITH_FLOAT32 = 1e-9, 1e-6
WIDTHS = (1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10)  # of the differences, relative to the norm of the parameters
AGREE = 1e-3  # between the reference and differences, at the best width: kinks and float32 inside cost the rest


@dataclass(frozen=True)
class Ending:
    """How one method ended: "exact", "approximate", "exact instead" (an approximate method that did not trust itself),
    "refused", or a failure: "wrong", "traceback", "buffers"."""

    status: str
    error: float | None = None  # ‖G − G*‖ relative to the penalty's part
    stated: float | None = None
    sentence: str = ""


class Variant:
    """A model with some parameters excluded or frozen, or with inputs that require a gradient."""

    def __init__(self, case: Case, name: str) -> None:
        self.model, self.case = case.model, case
        trainable = [key for key, parameter in case.model.named_parameters() if parameter.requires_grad]
        self.changed: list[nn.Parameter] = []
        self.exclude: tuple[str, ...] = ()
        self.inputs = tuple(tensor.detach().clone() for tensor in case.inputs)
        self.hook: Any = None
        if name == "excluded":
            self.exclude = tuple(trainable[: min(max(1, len(trainable) // 3), len(trainable) - 1)])
        elif name == "frozen":
            self._freeze(trainable[: 2 * len(trainable) // 3])
        elif name == "input gradients":
            self._let_inputs_require_gradients(trainable)
        self.buffers = {key: buffer.clone() for key, buffer in self.model.named_buffers()}
        self.start = {key: parameter.detach().clone() for key, parameter in self.model.named_parameters()}

    def _freeze(self, names: list[str]) -> None:
        for name, parameter in self.model.named_parameters():
            if name in names:
                parameter.requires_grad_(False)
                self.changed.append(parameter)

    def _let_inputs_require_gradients(self, trainable: list[str]) -> None:
        if self.inputs:
            self.inputs[0].requires_grad_(True)
            return
        for module in self.model.modules():
            if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
                tied = [key for key, parameter in self.model.named_parameters() if parameter is module.weight]
                if set(trainable) - set(tied):
                    self._freeze(tied)
                self.hook = module.register_forward_hook(lambda module, given, made: made.requires_grad_(True))
                return

    def close(self) -> None:
        for parameter in self.changed:
            parameter.requires_grad_(True)
        if self.hook is not None:
            self.hook.remove()
        self.restore()

    def restore(self) -> None:
        """Parameters, buffers, gradients and torch's generator as before the first step."""
        with torch.no_grad():
            for key, parameter in self.model.named_parameters():
                parameter.copy_(self.start[key])
                parameter.grad = None
            for key, buffer in self.model.named_buffers():
                buffer.copy_(self.buffers[key])
        for tensor in self.inputs:
            tensor.grad = None
        torch.manual_seed(0)

    def loss(self) -> Tensor:
        return self.case.call(*self.inputs)

    def leaves(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {key: p for key, p in self.model.named_parameters() if p.requires_grad}
        found |= {f"input {number}": tensor for number, tensor in enumerate(self.inputs) if tensor.requires_grad}
        return found

    def penalised(self) -> list[str]:
        return [key for key in self.leaves() if key not in self.exclude and not key.startswith("input ")]


@dataclass(frozen=True)
class Reference:
    plain: dict[str, Tensor]
    penalty: dict[str, Tensor]
    by: str
    buffers: dict[str, Tensor]  # after a plain step


def norm_of(vector: dict[str, Tensor]) -> float:
    return float(sum(float(part.double().square().sum()) for part in vector.values())) ** 0.5


def minus(left: dict[str, Tensor], right: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: left[key].double() - right[key].double() for key in left}


def gradient(variant: Variant) -> dict[str, Tensor]:
    variant.restore()
    leaves = variant.leaves()
    found = torch.autograd.grad(variant.loss(), list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


def reference(variant: Variant) -> Reference:
    plain = gradient(variant)
    variant.restore()
    variant.loss().backward()  # also runs again what is checkpointed, which may count batches
    buffers = {key: buffer.clone() for key, buffer in variant.model.named_buffers()}
    try:
        penalty, by = by_double_backward(variant), "double backward"
    except RuntimeError:
        with WrittenOut():
            penalty, by = by_double_backward(variant), "double backward, operations written out"
    variant.restore()
    return Reference(plain, penalty, by, buffers)


def by_double_backward(variant: Variant) -> dict[str, Tensor]:
    """(λ/2) ∇²Ĉ ∇Ĉ, from the gradient of (λ/4)‖∇Ĉ‖²."""
    variant.restore()
    leaves = variant.leaves()
    with sdpa_kernel(SDPBackend.MATH):
        loss = variant.loss()
        inside = [leaves[key] for key in variant.penalised()]
        first = torch.autograd.grad(loss, inside, create_graph=True, allow_unused=True, materialize_grads=True)
        squared = sum((part.square().sum() for part in first), torch.zeros((), dtype=torch.float64))
        whole = list(leaves.values())
        second = torch.autograd.grad(STRENGTH / 4 * squared, whole, allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, second, strict=True))


class WrittenOut(TorchFunctionMode):
    """Operations without a second derivative in torch, as sums and products, for the reference only."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (F.hardsigmoid, torch._C._nn.hardsigmoid):
            return (args[0] + 3).clamp(0, 6) / 6
        if func is torch._C._nn.hardsigmoid_:
            return args[0].copy_((args[0].clone() + 3).clamp(0, 6) / 6)
        if func is F.embedding_bag:  # only the mean over the tokens of a row occurs in the zoo
            return args[1][args[0]].mean(1)
        return func(*args, **(kwargs or {}))


def difference_from_reference(variant: Variant, truth: Reference) -> float:
    """The reference against central differences of plain gradients along ∇Ĉ, relative, at the best width."""
    direction = {key: truth.plain[key] for key in variant.penalised()}
    length, start = norm_of(direction), variant.start
    size = norm_of({key: start[key] for key in direction})
    best = float("inf")
    for width in WIDTHS:
        by = width * size / length
        sides = []
        for sign in (1, -1):
            variant.start = start | {key: start[key] + sign * by * part for key, part in direction.items()}
            sides.append(gradient(variant))
        found = {key: STRENGTH / 2 * (sides[0][key] - sides[1][key]) / (2 * by) for key in truth.plain}
        best = min(best, norm_of(minus(found, truth.penalty)) / max(norm_of(truth.penalty), 1e-300))
        variant.start = start
        if best < AGREE / 10:
            break
    variant.restore()
    return best


def step(variant: Variant, method: str) -> tuple[dict[str, Tensor], float | None, str]:
    """The gradient that the method leaves behind, the error that it states, and the method that computed it."""
    variant.restore()
    before = {key: parameter.detach().clone() for key, parameter in variant.model.named_parameters()}
    if method == "FactoredSGD":
        optimizer = FactoredSGD(variant.model, lr=1.0, strength=STRENGTH)
        optimizer.step(variant.loss)
        after = dict(variant.model.named_parameters())
        return {key: before[key] - after[key].detach() for key in variant.leaves() if key in before}, None, method
    penalty = GradientPenalty(variant.model, STRENGTH, method=method, exclude=variant.exclude, check_every=1)
    penalty.backward(variant.loss)
    leaves = variant.leaves()
    found = {key: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.clone() for key, leaf in leaves.items()}
    assert penalty.last is not None
    return found, penalty.last.error, penalty.last.method


def ending(variant: Variant, method: str, truth: Reference, *, float32_inside: bool) -> Ending:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found, stated, by = step(variant, method)
    except InputError as error:
        return Ending("refused", sentence=str(error))
    except Exception as error:
        lines = traceback.format_exception(error)
        return Ending("traceback", sentence=f"{type(error).__name__}: {error} {''.join(lines[-2:])}"[:1500])
    for key, buffer in variant.model.named_buffers():
        # Counts are equal; running means up to rounding: exact methods run attention and some layers by other kernels.
        if not torch.allclose(buffer.double(), truth.buffers[key].double(), rtol=1e-9, atol=1e-12):
            return Ending("buffers", sentence=f"{key} is not what a plain step leaves")
    penalty = norm_of({key: truth.penalty[key] for key in found})
    plain = norm_of({key: truth.plain[key] for key in found})
    apart = norm_of(minus(found, {key: truth.plain[key] + truth.penalty[key] for key in found}))
    error = apart / max(penalty, 1e-300)
    allowed = EXACT_WITH_FLOAT32 if float32_inside else EXACT
    of_plain = OF_PLAIN_WITH_FLOAT32 if float32_inside else OF_PLAIN
    if by not in APPROXIMATE:
        fine = apart <= allowed * penalty + of_plain * plain
        return Ending(("exact instead" if method in APPROXIMATE else "exact") if fine else "wrong", error)
    fine = error <= max(3 * (stated or 0.0), 0.05) or apart <= of_plain * plain
    return Ending("approximate" if fine else "wrong", error, stated)


class SeesFloat32(TorchFunctionMode):
    """Notices whether a float64 model computes anything in float32."""

    found = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and made.dtype == torch.float32 and made.requires_grad:
            self.found = True
        return made


def examine(entry: Entry, methods: tuple[str, ...] = METHODS, variants: tuple[str, ...] = VARIANTS) -> dict[str, Any]:
    """Every method on every variant of a model, as a dictionary for JSON."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case = entry.make()
        variant = Variant(case, "base")
        watch = SeesFloat32()
        with watch:
            variant.loss()
        checked = check_reference(variant)
        variant.close()
    found: dict[str, Any] = {
        "name": entry.name,
        "library": entry.library,
        "parameters": sum(parameter.numel() for parameter in case.model.parameters()),
        "float32_inside": watch.found,
        "reference": checked,
        "auto": GradientPenalty(case.model, STRENGTH).method,
        "variants": {},
    }
    for name in variants:
        variant = Variant(case, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            truth = reference(variant)
        endings = {}
        for method in methods:
            if method == "FactoredSGD" and name == "excluded":
                continue  # it has no `exclude`
            endings[method] = {
                k: v
                for k, v in asdict(ending(variant, method, truth, float32_inside=watch.found)).items()
                if v not in (None, "")
            }
        found["variants"][name] = endings
        variant.close()
    return found


def check_reference(variant: Variant) -> dict[str, Any]:
    """How the reference was made, and how far it is from differences of plain gradients.

    Where a kink lies exactly at the initial weights (branches that begin at zero before a ReLU), differences have no
    limit there: the comparison is then made at weights moved by one percent.
    """
    truth = reference(variant)
    agreement = difference_from_reference(variant, truth)
    moved = False
    if agreement > AGREE:
        moved, start = True, variant.start
        draws = torch.Generator().manual_seed(5)
        noise: Callable[[Tensor], Tensor] = lambda part: torch.randn(part.shape, generator=draws, dtype=part.dtype)  # noqa: E731
        variant.start = {key: part + 0.01 * noise(part) for key, part in start.items()}
        truth = reference(variant)
        agreement = min(agreement, difference_from_reference(variant, truth))
        variant.start = start
        variant.restore()
    return {"by": truth.by, "agreement": agreement, "at_moved_weights": moved}
