"""What users really hand over: odd datasets, labels, losses and numbers are measured rightly or refused."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tacit
from cases import labels, numbers, spread

COUNT = 80  # more than the 32 examples on which a problem is tried at construction
INPUTS, TARGETS = numbers(COUNT, 3, seed=1), labels(COUNT, 3, 2)


def net() -> nn.Module:
    return spread(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))).double()


def changed(tensor: Tensor, value: float, *, at: int = 70) -> Tensor:
    other = tensor.clone()
    other[at] = value
    return other


def measured(
    dataset: Any = (INPUTS, TARGETS), loss: Any = F.cross_entropy, **more: Any
) -> tacit.diagnostics.Measurement:
    return tacit.measure(net(), loss, dataset, **{"batch_size": 8, **more})


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """A dataset of whatever a function says."""

    def __init__(self, row: Callable[[int], Any]) -> None:
        self.row = row

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return self.row(index)


class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter(zip(INPUTS, TARGETS, strict=True))


def same_as_tensors(dataset: Any) -> bool:
    return measured(dataset).gradient_covariance_trace == measured().gradient_covariance_trace


def test_arrays_and_datasets_of_arrays_are_measured_like_tensors() -> None:
    assert same_as_tensors((INPUTS.numpy(), TARGETS.numpy()))
    assert same_as_tensors(Rows(lambda j: (INPUTS[j].numpy(), int(TARGETS[j]))))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a label that does not fit, late": (lambda: measured((INPUTS, changed(TARGETS, 9))), "example 70: Target 9"),
    "an ignored label, late": (lambda: measured((INPUTS, changed(TARGETS, -100))), "loss of example 70 is nan"),
    "an input that is no number, late": (lambda: measured((changed(INPUTS, np.nan), TARGETS)), "example 70 is nan"),
    "dictionaries": (lambda: measured(Rows(lambda j: {"x": INPUTS[j]})), "type dict; expected a pair"),
    "a dictionary": (lambda: measured({"x": INPUTS, "y": TARGETS}), "dataset is a dict"),
    "triples": (lambda: measured(Rows(lambda j: (INPUTS[j], TARGETS[j], j))), "has 3 parts"),
    "inputs alone": (lambda: measured(Rows(lambda j: INPUTS[j])), "type Tensor; expected a pair"),
    "words": (lambda: measured(Rows(lambda j: ("word", TARGETS[j]))), "input of example 0 is a str"),
    "lengths that differ": (lambda: measured(Rows(lambda j: (INPUTS[j, : 1 + j % 2], TARGETS[j]))), "one shape. Pad"),
    "a dataset that raises": (lambda: measured(Rows(lambda j: (INPUTS[j], 1 // (50 - j)))), "Error at example 50"),
    "a stream": (lambda: measured(Stream()), "Collect a stream"),
    "a loader": (lambda: measured(torch.utils.data.DataLoader(Rows(lambda j: (INPUTS[j], 0)))), "Use its .dataset"),
    "a loss by name": (lambda: measured(loss="cross_entropy"), "loss_fn is a str"),
    "a loss cut off": (lambda: measured(loss=lambda o, t: F.cross_entropy(o, t).detach()), "without detach()"),
    "a batch size in words": (lambda: measured(batch_size="16"), "batch_size='16'; expected a whole number"),
    "half a batch": (lambda: measured(batch_size=7.5), "expected a whole number"),
    "a sample of two": (lambda: measured(sample=2), "at least 3 examples"),
    "complex weights": (
        lambda: tacit.measure(nn.Linear(3, 1, dtype=torch.cdouble), lambda o, t: o.abs().mean(), (INPUTS, TARGETS)),
        "complex",
    ),
    "batch norm on single examples": (
        lambda: tacit.measure(
            nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double(), F.cross_entropy, (INPUTS, TARGETS), batch_size=1
        ),
        "refuses a minibatch: Expected more than 1 value per channel",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_in_one_sentence(name: str) -> None:
    ask, said = REFUSED[name]
    with pytest.raises(tacit.InputError) as caught:
        ask()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_number_of_a_bad_example_is_its_place_in_the_dataset_also_when_sampled() -> None:
    late = Rows(lambda j: (changed(INPUTS, np.nan)[j], TARGETS[j]))
    chosen = next(seed for seed in range(9) if 70 in tacit.diagnostics._measure_arguments.draw(COUNT, 60, seed)[32:])
    with pytest.raises(tacit.InputError, match="example 70 is nan"):
        tacit.measure(net(), F.cross_entropy, late, batch_size=2, sample=60, seed=chosen)


def test_numbers_of_numpy_are_batch_sizes() -> None:
    assert measured(batch_size=np.int64(8)).implicit_regularizer == measured(batch_size=8).implicit_regularizer
    assert list(measured(batch_size=np.array([4, 8])).implicit_regularizer) == [4, 8]


def test_a_loss_that_weighs_examples_is_seen_also_when_the_first_examples_do_not_show_it() -> None:
    # Two tokens per example; only late examples have one that is ignored, so the first 32 look like a mean.
    model = nn.Sequential(nn.Linear(3, 6), nn.Unflatten(1, (3, 2))).double()
    targets = labels(COUNT * 2, 3, 4).reshape(COUNT, 2)
    targets[40:, 0] = -100
    seen = tacit.measure(spread(model), F.cross_entropy, (INPUTS, targets), batch_size=8)
    assert not seen.per_example
    assert seen.gradient_covariance_trace is None
    assert "ignored labels" in str(seen)


def test_outputs_may_be_tuples_or_dictionaries() -> None:
    class Two(nn.Module):
        def __init__(self, pack: Callable[[Tensor], Any]) -> None:
            super().__init__()
            self.net, self.pack = net(), pack

        def forward(self, inputs: Tensor) -> Any:
            return self.pack(self.net(inputs))

    plain = measured().gradient_covariance_trace
    pair = tacit.measure(Two(lambda o: (o, 0 * o)), lambda o, t: F.cross_entropy(o[0], t), (INPUTS, TARGETS))
    named = tacit.measure(Two(lambda o: {"z": o}), lambda o, t: F.cross_entropy(o["z"], t), (INPUTS, TARGETS))
    assert pair.gradient_covariance_trace == named.gradient_covariance_trace == plain


def test_a_coarse_precision_is_named() -> None:
    seen = tacit.measure(net().bfloat16(), F.cross_entropy, (INPUTS.bfloat16(), TARGETS), batch_size=8)
    assert any("bfloat16" in note for note in seen.notes)


def test_a_flat_loss_has_the_largest_eigenvalue_zero() -> None:
    model = nn.Linear(3, 9).double()  # 36 parameters: by Lanczos, not by the whole matrix
    seen = tacit.measure(model, lambda o, t: o.mean(), (INPUTS, TARGETS), learning_rate=0.1)
    assert seen.largest_eigenvalue.value == 0


def test_fused_attention_has_a_largest_eigenvalue() -> None:
    class Attending(nn.Module):
        def __init__(self, fused: bool) -> None:
            super().__init__()
            self.fused, self.enter, self.leave = fused, nn.Linear(1, 4), nn.Linear(4, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            rows = self.enter(inputs.unsqueeze(-1)).unsqueeze(1)
            if self.fused:
                mixed = F.scaled_dot_product_attention(rows, rows, rows)
            else:
                mixed = (rows @ rows.mT / 2).softmax(-1) @ rows
            return self.leave(mixed.mean((1, 2)))

    fused, written = (
        tacit.measure(spread(Attending(kind)).double(), F.cross_entropy, (INPUTS, TARGETS), curvature=True)
        for kind in (True, False)
    )
    assert fused.largest_eigenvalue.value == pytest.approx(written.largest_eigenvalue.value, rel=1e-3)  # Lanczos' own


def test_what_cannot_be_differentiated_twice_is_measured_without_its_curvature() -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return 2 * gradient

    model = net()
    loss = lambda o, t: F.cross_entropy(Once.apply(o), t)  # noqa: E731
    seen = tacit.measure(model, loss, (INPUTS, TARGETS), learning_rate=0.1)
    assert seen.largest_eigenvalue is None
    assert any("λ_max was not found" in note for note in seen.notes)
    assert seen.gradient_covariance_trace.value > 0


def test_a_fused_weight_norm_is_measured_without_its_curvature() -> None:
    model = spread(nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 3)))
    seen = tacit.measure(model.double(), F.cross_entropy, (INPUTS, TARGETS), learning_rate=0.1)
    assert seen.largest_eigenvalue is None
    assert any("weight_norm" in note for note in seen.notes)


def test_the_number_of_examples_needed_is_more_than_there_were() -> None:
    for seed in range(10):
        seen = measured(sample=4, seed=seed)
        wanted = [note for note in seen.notes if "use at least" in note]
        assert all(int(note.split("at least ")[1].split()[0]) > 4 for note in wanted)


class Cache:
    """What a language model returns beside its logits: no tensor, no container."""

    def __init__(self, keys: Tensor) -> None:
        self.keys = [keys]


class ModelOutput(OrderedDict):  # type: ignore[type-arg]
    """As transformers define it: a dictionary whose entries are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass
class Answer:
    logits: Tensor
    cache: Cache


class Cached(nn.Module):
    def __init__(self, make: Any) -> None:
        super().__init__()
        self.enter, self.leave, self.make = nn.Linear(3, 4), nn.Linear(4, 3), make

    def forward(self, inputs: Tensor) -> Any:
        hidden = torch.tanh(self.enter(inputs))
        return self.make(self.leave(hidden), Cache(hidden))


OUTPUTS = {
    "a dictionary of its own": lambda logits, cache: ModelOutput(logits=logits, past_key_values=cache),
    "a dataclass": Answer,
    "a dictionary in a tuple": lambda logits, cache: (ModelOutput(logits=logits), cache),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_model_may_return_more_than_tensors(name: str) -> None:
    model = spread(Cached(OUTPUTS[name])).double()

    def logits(outputs: Any) -> Tensor:
        return (outputs[0] if isinstance(outputs, tuple) else outputs).logits

    seen = tacit.measure(model, lambda o, t: F.cross_entropy(logits(o), t), (INPUTS, TARGETS), learning_rate=0.1)
    plain = nn.Sequential(model.enter, nn.Tanh(), model.leave)
    expected = tacit.measure(plain, F.cross_entropy, (INPUTS, TARGETS), learning_rate=0.1)
    assert seen.gradient_covariance_trace.value == pytest.approx(expected.gradient_covariance_trace.value, rel=1e-10)
    assert seen.largest_eigenvalue.value == pytest.approx(expected.largest_eigenvalue.value, rel=1e-6)


class Float32Inside(nn.Module):
    """A model in float64 with a norm in float32, as transformers write theirs; its scale sums gradients in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave, self.scale = nn.Linear(3, 4), nn.Linear(4, 3), nn.Parameter(torch.ones(4))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs).float()
        hidden = self.scale.float() * hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + 1e-6)
        return self.leave(hidden.to(inputs.dtype))


def test_float32_inside_a_float64_model_is_rounding_and_not_mixed_examples() -> None:
    model = spread(Float32Inside()).double()
    seen = tacit.measure(model, F.cross_entropy, (INPUTS, TARGETS), batch_size=4)
    assert seen.self_test.passed, str(seen.self_test)
    twin = copy.deepcopy(model).float()
    expected = tacit.measure(twin, F.cross_entropy, (INPUTS.float(), TARGETS), batch_size=4)
    assert seen.gradient_covariance_trace.value == pytest.approx(expected.gradient_covariance_trace.value, rel=1e-4)
