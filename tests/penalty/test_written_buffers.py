"""Buffers that a forward pass writes and reads: each micro-batch sees what those before it wrote, as in a loop."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cases import labels, numbers
from tacit import FactoredSGD, GradientPenalty, InputError

X, Y = numbers(8, 4, seed=1), labels(8, 3, 2)
STRENGTH, SIZE, STEPS = 0.7, 2, 3


def replace_data(buffer: Tensor) -> None:
    buffer.data = buffer.data + 1


WRITES: dict[str, Callable[[Tensor], object]] = {
    "in place": lambda buffer: buffer.add_(1),
    "out=": lambda buffer: torch.add(buffer, 1, out=buffer),
    "out= of a view": lambda buffer: torch.add(buffer[:1], 1, out=buffer[:1]),
    "data": lambda buffer: buffer.data.add_(1),
    "another data": replace_data,
    "a view": lambda buffer: buffer.view(-1).add_(1),
    "an item": lambda buffer: buffer.__setitem__(0, buffer[0] + 1),
    "chunk": lambda buffer: [part.add_(1) for part in buffer.chunk(2)],
    "detach": lambda buffer: buffer.detach().add_(1),
    "foreach": lambda buffer: torch._foreach_add_([buffer, buffer[1:]], 1),
    "a numpy view": lambda buffer: buffer.numpy().__iadd__(1),
}


class Counting(nn.Module):
    """The number of passes so far scales the activations."""

    def __init__(self, write: Callable[[Tensor], object], *, draws: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter, self.leave = nn.Linear(4, 5), nn.Linear(5, 3)
        self.register_buffer("passes", torch.zeros(2))
        self.write, self.draws = write, draws

    def forward(self, inputs: Tensor) -> Tensor:
        self.write(self.passes)
        hidden = torch.tanh(self.enter(inputs)) * (1 + 0.1 * self.passes.sum())
        # A draw that changes nothing: where a closure draws, one pass is not compared with a loop.
        return self.leave(hidden + 0 * torch.rand(()) if self.draws else hidden)


def loop(model: nn.Module) -> None:
    """Naive double backward, micro-batch by micro-batch."""
    for x, y in zip(X.split(SIZE), Y.split(SIZE), strict=True):
        loss = F.cross_entropy(model(x), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
        ((loss + STRENGTH / 4 * norm) * SIZE / len(X)).backward()


@pytest.mark.parametrize("draws", [False, True], ids=["compared", "not compared"])
@pytest.mark.parametrize("method", ["gram", "double_backward", "finite_difference", "FactoredSGD"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_micro_batches_are_those_of_a_loop(write: Callable[[Tensor], object], method: str, draws: bool) -> None:
    model, naive = (Counting(write, draws=draws).double() for _ in range(2))
    penalty = GradientPenalty(
        model, STRENGTH, method="gram" if method == "FactoredSGD" else method, micro_batch_size=SIZE
    )
    optimizer = FactoredSGD(model, lr=1e-3, strength=STRENGTH, micro_batch_size=SIZE)
    for _ in range(STEPS):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        naive.load_state_dict(model.state_dict())
        naive.zero_grad()
        model.zero_grad()
        loop(naive)
        if method == "FactoredSGD":
            optimizer.step(lambda x, y: F.cross_entropy(model(x), y), X, Y)
            found = [(was - now.detach()) / 1e-3 for was, now in zip(before, model.parameters(), strict=True)]
        else:
            penalty.backward(lambda x, y: F.cross_entropy(model(x), y), X, Y)
            found = [parameter.grad for parameter in model.parameters()]
        tolerance = 1e-6 if method == "finite_difference" else 1e-10
        for ours, parameter in zip(found, naive.parameters(), strict=True):
            assert (ours - parameter.grad).norm() <= tolerance * parameter.grad.norm()
        assert torch.equal(model.passes, naive.passes)


@pytest.mark.parametrize("method", ["gram", "double_backward", "finite_difference"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_one_step_counts_one_pass(write: Callable[[Tensor], object], method: str) -> None:
    model, naive = Counting(write).double(), Counting(write).double()
    F.cross_entropy(naive(X), Y).backward()
    GradientPenalty(model, STRENGTH, method=method, check_every=1).backward(lambda: F.cross_entropy(model(X), Y))
    assert torch.equal(model.passes, naive.passes)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_plan_counts_no_pass(write: Callable[[Tensor], object]) -> None:
    model = Counting(write).double()
    GradientPenalty(model, STRENGTH).plan(lambda: F.cross_entropy(model(X), Y))
    assert not model.passes.any()


def test_a_write_that_begins_after_the_first_step_is_seen_before_it_happens() -> None:
    writing = []
    model, naive = (
        Counting(lambda buffer: torch.add(buffer, 1, out=buffer) if writing else None).double() for _ in range(2)
    )
    penalty = GradientPenalty(model, STRENGTH, method="gram", micro_batch_size=SIZE)
    for step in range(3):
        writing += [step] if step else []
        naive.load_state_dict(model.state_dict())
        model.zero_grad()
        naive.zero_grad()
        penalty.backward(lambda x, y: F.cross_entropy(model(x), y), X, Y)
        loop(naive)
        assert torch.equal(model.passes, naive.passes)
        torch.testing.assert_close(model.enter.weight.grad, naive.enter.weight.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", ["gram", "FactoredSGD"])
def test_a_tensor_that_is_kept_outside_of_the_buffers_is_refused_by_name(method: str) -> None:
    """torch said "may have escaped from inside a function being vmapped", without a word on what to do."""

    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.mean = nn.Linear(4, 3), torch.zeros(3)

        def forward(self, inputs: Tensor) -> Tensor:
            outputs = self.layer(inputs) - self.mean
            self.mean = 0.9 * self.mean + 0.1 * outputs.detach().mean(0)
            return outputs

    model = Centred().double()
    step = {
        "gram": GradientPenalty(model, STRENGTH, method="gram", micro_batch_size=SIZE).backward,
        "FactoredSGD": FactoredSGD(model, lr=0.1, strength=STRENGTH, micro_batch_size=SIZE).step,
    }[method]
    with pytest.raises(InputError, match=r"outside of its buffers.* Use self\.register_buffer"):
        step(lambda x, y: F.cross_entropy(model(x), y), X, Y)


def test_buffers_that_are_only_read_leave_one_pass_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """Also where they hold nan, and as whole numbers, indices and masks."""

    class Reading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.register_buffer("unused", torch.full((2,), torch.nan))
            self.register_buffer("place", torch.tensor(1))
            self.register_buffer("mask", torch.tensor([True, False, False, False]))

        def forward(self, inputs: Tensor) -> Tensor:
            made = torch.zeros(4)
            made[0] = 1
            return self.layer(inputs * ~self.mask + made.add_(1)) * int(self.place)

    model = Reading().double()
    penalty = GradientPenalty(model, STRENGTH, method="gram", micro_batch_size=SIZE)
    with caplog.at_level(logging.WARNING, logger="tacit"):
        penalty.backward(lambda x, y: F.cross_entropy(model(x), y), X, Y)
    assert caplog.records == []


# --- Embeddings whose gradient depends on which indices a batch has ---


class Lookups(nn.Module):
    def __init__(self, *, tied: bool, **options: object) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.leave = nn.Embedding(5, 4, **options), nn.Linear(4, 5)
        if tied:
            self.leave.weight = self.table.weight
        self.tied = tied

    def forward(self, indices: Tensor) -> Tensor:
        hidden = torch.tanh(self.table(indices)).sum(1)
        more = 0.1 * torch.sin(self.table.weight).sum() if self.tied else 0.0
        return self.leave(hidden) + more + 0 * torch.rand(())  # not compared with a loop


@pytest.mark.parametrize("excluded", [False, True], ids=["in the norm", "excluded"])
@pytest.mark.parametrize("tied", [False, True], ids=["alone", "tied"])
@pytest.mark.parametrize("factored", [False, True], ids=["penalty", "factored_sgd"])
@pytest.mark.parametrize("options", [{"scale_grad_by_freq": True}, {"padding_idx": 0},
                                     {"scale_grad_by_freq": True, "padding_idx": 0}], ids=str)  # fmt: skip
def test_an_embedding_counts_indices_in_its_own_micro_batch(
    options: dict[str, object], factored: bool, tied: bool, excluded: bool
) -> None:
    if excluded and factored:
        pytest.skip("FactoredSGD excludes nothing")
    indices = torch.tensor([[0, 1, 1], [1, 2, 2], [0, 0, 0], [3, 1, 3]])
    targets = torch.tensor([0, 1, 2, 0])
    model, naive = (Lookups(tied=tied, **options).double() for _ in range(2))
    exclude = ("table.weight",) if excluded else ()
    for i, y in zip(indices.split(2), targets.split(2), strict=True):
        loss = F.cross_entropy(naive(i), y)
        inside = [parameter for name, parameter in naive.named_parameters() if name not in exclude]
        gradients = torch.autograd.grad(loss, inside, create_graph=True)
        norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
        ((loss + STRENGTH / 4 * norm) / 2).backward()
    closure = lambda i, y: F.cross_entropy(model(i), y)  # noqa: E731
    if factored:
        before = [parameter.detach().clone() for parameter in model.parameters()]
        FactoredSGD(model, lr=1.0, strength=STRENGTH, micro_batch_size=2).step(closure, indices, targets)
        found = [was - now.detach() for was, now in zip(before, model.parameters(), strict=True)]
    else:
        penalty = GradientPenalty(model, STRENGTH, method="gram", micro_batch_size=2, exclude=exclude)
        penalty.backward(closure, indices, targets)
        found = [parameter.grad for parameter in model.parameters()]
    for ours, parameter in zip(found, naive.parameters(), strict=True):
        torch.testing.assert_close(ours, parameter.grad, rtol=1e-11, atol=1e-13)
