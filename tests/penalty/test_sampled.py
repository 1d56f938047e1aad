"""The sampled penalty: ∇Ĉ of the whole batch + (λ/2) mean of Hₖ gₖ over q micro-batches drawn anew at each call."""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import tacit.penalty.pieces as cutting
from cases import ConvolutionNet, TransformerBlock, batch_norm_net, labels, numbers, spread
from distributed_results import Results
from distributed_scenarios import SAMPLED_STEPS
from distributed_workers import STRENGTH as WORKERS_STRENGTH
from distributed_workers import shard, wide
from tacit import FactoredSGD, GradientPenalty, InputError
from tacit.penalty.pieces import drawn_rows

SIZE, STRENGTH = 4, 0.3
CLOSE = {"rtol": 0.0, "atol": 1e-12}
METHODS = ("auto", "gram", "double_backward")


@dataclass
class Problem:
    model: nn.Module
    batch: tuple[Tensor, ...]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        found = self.model(x)
        return F.cross_entropy(found.reshape(-1, found.shape[-1]), y.reshape(-1))


def net() -> nn.Module:
    return spread(nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))).double()


def vectors(rows: int = 16) -> Problem:
    return Problem(net(), (numbers(rows, 5, seed=1), labels(rows, 3, 2)))


def images() -> Problem:
    return Problem(spread(ConvolutionNet()).double(), (numbers(12, 2, 8, 8, seed=1), labels(12, 3, 2)))


def normalised() -> Problem:
    return Problem(spread(batch_norm_net()).double(), (numbers(12, 3, seed=1), labels(12, 3, 2)))


def tokens() -> Problem:
    inputs = labels(48, 7, 4).reshape(12, 4)
    return Problem(spread(TransformerBlock()).double(), (inputs, labels(48, 7, 5).reshape(12, 4)))


def by_hand(problem: Problem, rows: Tensor, *, size: int = SIZE, exclude: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """The gradient with the penalty of the pieces that these rows make, by plain autograd, on a copy."""
    model = copy.deepcopy(problem.model)
    twin = Problem(model, problem.batch)
    named = dict(model.named_parameters())
    found = torch.autograd.grad(twin.loss(*problem.batch), list(named.values()))
    pieces = rows.split(size)
    for piece in pieces:
        loss = twin.loss(*(tensor[piece] for tensor in problem.batch))
        inside = [parameter for name, parameter in named.items() if name not in exclude]
        gradients = torch.autograd.grad(loss, inside, create_graph=True)
        norm = sum(gradient.square().sum() for gradient in gradients)
        parts = torch.autograd.grad(STRENGTH / 4 / len(pieces) * norm, list(named.values()), allow_unused=True)
        found = [whole if part is None else whole + part for whole, part in zip(found, parts, strict=True)]
    return dict(zip(named, found, strict=True))


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], **tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, **(tolerance or CLOSE))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("q", [1, 2, 3])
@pytest.mark.parametrize("make", [vectors, images, normalised, tokens])
def test_every_draw_is_what_naive_code_gives_for_the_same_rows(
    make: Callable[[], Problem], q: int, method: str
) -> None:
    problem = make()
    penalty = GradientPenalty(problem.model, STRENGTH, method=method, micro_batch_size=SIZE, sampled=q, seed=7)
    for call in range(3):
        problem.model.zero_grad()
        expected = by_hand(problem, drawn_rows(len(problem.batch[0]), q * SIZE, seed=7, call=call))
        plain = problem.loss(*problem.batch) if make is not normalised else copy.deepcopy(problem).loss(*problem.batch)
        loss = penalty.backward(problem.loss, *problem.batch)
        assert_same(gradients(problem.model), expected)
        torch.testing.assert_close(loss, plain.detach(), **CLOSE)


@pytest.mark.parametrize("q", [1, 2, 3])
def test_the_mean_over_all_draws_is_the_whole_penalty(q: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = vectors()
    m = len(problem.batch[0]) // SIZE
    whole = GradientPenalty(problem.model, STRENGTH, micro_batch_size=SIZE)
    whole.backward(problem.loss, *problem.batch)
    expected, mean = gradients(problem.model), {}
    chosen = list(itertools.combinations(torch.arange(m * SIZE).split(SIZE), q))
    for pieces in chosen:
        monkeypatch.setattr(cutting, "drawn_rows", lambda *_, pieces=pieces, **__: torch.cat(pieces))
        problem.model.zero_grad()
        GradientPenalty(problem.model, STRENGTH, micro_batch_size=SIZE, sampled=q).backward(
            problem.loss, *problem.batch
        )
        for name, value in gradients(problem.model).items():
            mean[name] = mean.get(name, 0.0) + value / len(chosen)
    assert_same(mean, expected)


def test_rows_of_a_sorted_batch_are_drawn_and_not_its_first_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean over all permutations of six rows, two of each class: what no cut of the sorted batch gives."""
    problem = Problem(net(), (numbers(6, 5, seed=1), torch.tensor([0, 0, 1, 1, 2, 2])))
    mean: dict[str, Tensor] = {}
    pairs = list(itertools.combinations(range(6), 2))
    for pair in pairs:
        for name, value in by_hand(problem, torch.tensor(pair), size=2).items():
            mean[name] = mean.get(name, torch.zeros(())) + value / len(pairs)
    found: dict[str, Tensor] = {}
    permutations = list(itertools.permutations(range(6)))
    penalty = GradientPenalty(problem.model, STRENGTH, micro_batch_size=2, sampled=1, check_every=0)
    for permutation in permutations:
        monkeypatch.setattr(
            cutting, "drawn_rows", lambda _, count, numbers=permutation, **__: torch.tensor(numbers[:count])
        )
        problem.model.zero_grad()
        penalty.backward(problem.loss, *problem.batch)
        for name, value in gradients(problem.model).items():
            found[name] = found.get(name, torch.zeros(())) + value / len(permutations)
    assert_same(found, mean)
    cut = [by_hand(problem, rows, size=2) for rows in torch.arange(6).split(2)]
    apart = max(float((sum(each[name] for each in cut) / 3 - mean[name]).norm()) for name in mean)
    assert apart > 1e-3


@pytest.mark.parametrize("rows", [17, 19])
def test_rows_that_the_permutation_leaves_over_are_not_drawn(rows: int) -> None:
    problem = vectors(rows)
    penalty = GradientPenalty(problem.model, STRENGTH, micro_batch_size=SIZE, sampled=99)
    penalty.backward(problem.loss, *problem.batch)
    assert_same(gradients(problem.model), by_hand(problem, drawn_rows(rows, 16, seed=0, call=0)))
    assert float(penalty.last.sampling_error or 0) == 0  # all four of four were drawn


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_a_batch_of_at_most_one_micro_batch_is_that_one(rows: int) -> None:
    problem = vectors(rows)
    penalty = GradientPenalty(problem.model, STRENGTH, micro_batch_size=SIZE, sampled=2)
    penalty.backward(problem.loss, *problem.batch)
    assert_same(gradients(problem.model), by_hand(problem, torch.arange(rows)))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("q", [1, 2])
def test_buffers_random_numbers_and_hooks_are_those_of_a_plain_step(q: int, method: str) -> None:
    problem = normalised()
    problem.model = nn.Sequential(problem.model, nn.Dropout(0.0))
    plain, fired = copy.deepcopy(problem), []
    torch.manual_seed(5)
    plain.loss(*plain.batch).backward()
    after = torch.get_rng_state()
    penalty = GradientPenalty(problem.model, STRENGTH, method=method, micro_batch_size=SIZE, sampled=q)
    for name, parameter in problem.model.named_parameters():
        parameter.register_hook(lambda gradient, name=name: fired.append(name))
    torch.manual_seed(5)
    penalty.backward(problem.loss, *problem.batch)
    for (name, buffer), other in zip(problem.model.named_buffers(), plain.model.buffers(), strict=True):
        assert torch.equal(buffer, other), name
    assert torch.equal(torch.get_rng_state(), after)
    assert sorted(fired) == sorted(name for name, _ in problem.model.named_parameters())


def test_the_closure_sees_the_pieces_first_and_the_whole_batch_last() -> None:
    problem, sizes = vectors(), []

    def closure(x: Tensor, y: Tensor) -> Tensor:
        sizes.append(len(x))
        return problem.loss(x, y)

    penalty = GradientPenalty(
        problem.model, STRENGTH, method="double_backward", micro_batch_size=SIZE, sampled=2, every=2
    )
    penalty.backward(closure, *problem.batch)
    assert sizes[-3:] == [SIZE, SIZE, 16]  # before them the first call looks at the loss (`row_mean`)
    sizes.clear()
    penalty.backward(closure, *problem.batch)
    assert sizes == [16]
    assert penalty.last.penalty == 0


def test_weight_excluded_parameters_checkpointing_and_the_loss_object() -> None:
    problem = vectors()
    inner = problem.model

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x, use_reentrant=False)

    problem.model = Checkpointed()
    rows = drawn_rows(16, 2 * SIZE, seed=0, call=0)
    expected = by_hand(problem, rows, exclude=("inner.0.weight",))
    for run in ("backward", "loss"):
        problem.model.zero_grad()
        penalty = GradientPenalty(problem.model, STRENGTH, micro_batch_size=SIZE, sampled=2, exclude=["inner.0.weight"])
        if run == "backward":
            penalty.backward(problem.loss, *problem.batch, weight=0.25)
        else:
            (penalty.loss(problem.loss, *problem.batch) / 4).backward()
        assert_same(gradients(problem.model), {name: value / 4 for name, value in expected.items()})


def test_gradients_of_the_inputs_are_those_of_the_loss_with_its_penalty() -> None:
    problem = vectors()
    problem.batch[0].requires_grad_()
    penalty = GradientPenalty(problem.model, STRENGTH, method="gram", micro_batch_size=SIZE, sampled=2)
    penalty.backward(problem.loss, *problem.batch)
    found = problem.batch[0].grad.clone()
    loss = problem.loss(*problem.batch)
    norm = torch.zeros(())
    for rows in drawn_rows(16, 2 * SIZE, seed=0, call=0).split(SIZE):
        one = problem.loss(*(tensor[rows] for tensor in problem.batch))
        of_piece = torch.autograd.grad(one, list(problem.model.parameters()), create_graph=True)
        norm = norm + sum(gradient.square().sum() for gradient in of_piece) / 2
    (expected,) = torch.autograd.grad(loss + STRENGTH / 4 * norm, problem.batch[0])
    torch.testing.assert_close(found, expected, **CLOSE)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("q", [1, 2])
def test_factored_sgd_takes_the_same_steps(q: int, momentum: float) -> None:
    problem, other = vectors(18), vectors(18)
    penalty = GradientPenalty(problem.model, STRENGTH, micro_batch_size=SIZE, sampled=q, seed=3)
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.1, momentum=momentum)
    options = {"micro_batch_size": SIZE, "sampled": q, "seed": 3}
    factored = FactoredSGD(other.model, lr=0.1, strength=STRENGTH, momentum=momentum, **options)
    for step in range(6):
        optimizer.zero_grad()
        penalty.backward(problem.loss, *problem.batch)
        optimizer.step()
        factored.step(other.loss, *other.batch)
        if step == 2:  # resumed from a state
            state = copy.deepcopy(factored.state_dict())
            factored = FactoredSGD(other.model, lr=0.1, strength=STRENGTH, momentum=momentum, **options)
            factored.load_state_dict(state)
    for ours, theirs in zip(problem.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


def test_a_resumed_run_draws_the_same_micro_batches_and_ends_with_the_same_bits() -> None:
    def train(steps: int, problem: Problem, state: dict[str, Any] | None) -> dict[str, Any]:
        options: dict[str, Any] = {"micro_batch_size": SIZE, "sampled": 1, "seed": 11}
        penalty = GradientPenalty(problem.model, STRENGTH, **options)
        optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.1, momentum=0.9)
        if state is not None:
            penalty.load_state_dict(state["penalty"])
            optimizer.load_state_dict(state["optimizer"])
        for _ in range(steps):
            optimizer.zero_grad()
            penalty.backward(problem.loss, *problem.batch)
            optimizer.step()
        return copy.deepcopy({"penalty": penalty.state_dict(), "optimizer": optimizer.state_dict()})

    whole, parts = vectors(), vectors()
    train(200, whole, None)
    train(123, parts, train(77, parts, None))
    for one, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_with_accumulation_whole_calls_are_drawn() -> None:
    """q of the k calls of one optimizer step carry the penalty, each k/q times: no batch is cut."""
    problem = vectors(20)
    calls = [tuple(tensor[number : number + 4] for tensor in problem.batch) for number in range(0, 20, 4)]
    penalty = GradientPenalty(problem.model, STRENGTH, sampled=2, seed=5)
    for step in range(3):
        problem.model.zero_grad()
        penalised = []
        for number, batch in enumerate(calls):
            penalty.backward(lambda batch=batch: problem.loss(*batch), weight=1 / 5, part=(number, 5))
            penalised += [number] if penalty.last.strength else []
        chosen = drawn_rows(5, 2, seed=5, call=5 * step).tolist()
        assert penalised == sorted(chosen)
        rows = torch.cat([torch.arange(4 * number, 4 * number + 4) for number in chosen])
        assert_same(gradients(problem.model), by_hand(problem, rows))


def test_draws_of_calls_follow_the_step_that_is_told() -> None:
    problem = vectors()
    penalty = GradientPenalty(problem.model, STRENGTH, sampled=1, seed=5)
    for step in (3, 8):
        chosen = []
        for number in range(4):
            penalty.backward(lambda: problem.loss(*problem.batch), weight=0.25, step=step, part=(number, 4))
            chosen += [number] if penalty.last.strength else []
        assert chosen == drawn_rows(4, 1, seed=5, call=step).tolist()


@pytest.mark.parametrize("make", [vectors, normalised])
def test_a_part_is_added_after_ones_own_backward_pass(make: Callable[[], Problem]) -> None:
    problem = make()
    rows = torch.tensor([3, 0, 7, 5])
    expected = by_hand(problem, rows)
    penalty = GradientPenalty(problem.model, STRENGTH)
    problem.loss(*problem.batch).backward()
    buffers = copy.deepcopy(dict(problem.model.named_buffers()))
    penalty.add(problem.loss, *(tensor[rows] for tensor in problem.batch))
    assert_same(gradients(problem.model), expected)
    for name, buffer in problem.model.named_buffers():
        assert torch.equal(buffer, buffers[name]), name
    before = gradients(problem.model)
    penalty.strength = 0.0
    penalty.add(problem.loss, *(tensor[rows] for tensor in problem.batch))
    assert_same(gradients(problem.model), before, rtol=0.0, atol=0.0)


def test_a_part_is_added_to_scaled_gradients() -> None:
    problem = vectors()
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    rows = torch.arange(4)
    penalty = GradientPenalty(problem.model, STRENGTH)
    scaler.scale(problem.loss(*problem.batch)).backward()
    penalty.add(problem.loss, *(tensor[rows] for tensor in problem.batch), scaler=scaler)
    expected = {name: 64 * value for name, value in by_hand(problem, rows).items()}
    assert_same(gradients(problem.model), expected, rtol=1e-12, atol=1e-12)


def test_autocast_and_a_scaler_give_the_scaled_gradient_of_the_unscaled_loss() -> None:
    problem = Problem(net().float(), (numbers(16, 5, seed=1).float(), labels(16, 3, 2)))
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    expected = by_hand(problem, drawn_rows(16, SIZE, seed=0, call=0))
    for context, tolerance in ((nullcontext(), 1e-5), (torch.autocast("cpu", torch.bfloat16), 0.05)):
        problem.model.zero_grad()
        penalty = GradientPenalty(problem.model, STRENGTH, micro_batch_size=SIZE, sampled=1)
        with context:
            penalty.backward(problem.loss, *problem.batch, scaler=scaler)
        found = {name: value / 128 for name, value in gradients(problem.model).items()}
        assert_same(found, expected, rtol=tolerance, atol=tolerance)


def test_a_small_part_is_not_rounded_away_beside_gradients_in_half_precision() -> None:
    """Two parts of a third of a unit each: added one by one to a bfloat16 gradient they vanish."""
    from tacit.penalty.sink import GradientSum

    leaf = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    whole, part = torch.ones(1, dtype=torch.bfloat16), torch.full((1,), 2.0**-7 / 3, dtype=torch.bfloat16)
    assert torch.equal(whole + part + part, whole)
    total = GradientSum()
    for each in (whole, part, part):
        total.add([leaf], [each])
    total.into_grad(torch.zeros(()))
    assert torch.equal(leaf.grad, torch.full((1,), 1 + 2.0**-7, dtype=torch.bfloat16))


def test_the_record_tells_the_price_and_the_sampling_error() -> None:
    problem = vectors(40)
    penalty = GradientPenalty(problem.model, STRENGTH, method="double_backward", micro_batch_size=SIZE, sampled=4)
    penalty.backward(problem.loss, *problem.batch)
    norms = []
    for rows in drawn_rows(40, 4 * SIZE, seed=0, call=0).split(SIZE):
        found = torch.autograd.grad(
            problem.loss(*(tensor[rows] for tensor in problem.batch)), list(problem.model.parameters())
        )
        norms.append(sum(gradient.square().sum() for gradient in found))
    penalties = STRENGTH / 4 * torch.stack(norms)
    torch.testing.assert_close(penalty.last.penalty, penalties.mean(), **CLOSE)
    expected = (penalties.var() / 4 * (1 - 4 / 10)).sqrt()
    torch.testing.assert_close(penalty.last.sampling_error, expected, **CLOSE)
    assert penalty.last.price > 1
    assert {"price", "sampling_error"} <= penalty.last.to_row().keys()


def test_a_loss_that_is_no_row_mean_is_said_and_a_closure_that_ignores_its_arguments_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    problem = vectors()

    def total(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(problem.model(x), y, reduction="sum")

    penalty = GradientPenalty(problem.model, STRENGTH, micro_batch_size=SIZE, sampled=1)
    with caplog.at_level(logging.WARNING, "tacit"):
        penalty.backward(total, *problem.batch)
    assert "reduction='sum'" in caplog.text
    assert "one plain pass more" not in caplog.text  # the whole batch's own gradient is taken anyway
    penalty = GradientPenalty(problem.model, STRENGTH, micro_batch_size=SIZE, sampled=1)
    with pytest.raises(InputError, match="the closure uses none of its arguments"):
        penalty.backward(lambda x, y: problem.loss(*problem.batch), *problem.batch)


def test_a_strength_limit_sees_the_sharpness_of_the_drawn_micro_batches() -> None:
    problem = vectors()
    penalty = GradientPenalty(problem.model, 100.0, micro_batch_size=SIZE, sampled=1, largest_ratio=0.5)
    for _ in range(2):
        problem.model.zero_grad()
        penalty.backward(problem.loss, *problem.batch)
    first = drawn_rows(16, SIZE, seed=0, call=0)
    found = torch.autograd.grad(
        problem.loss(*(tensor[first] for tensor in problem.batch)),
        list(problem.model.parameters()), create_graph=True,
    )  # fmt: skip
    g = torch.cat([gradient.flatten() for gradient in found])
    product = torch.autograd.grad(g, list(problem.model.parameters()), g.detach())
    sharpness = torch.dot(g.detach(), torch.cat([part.flatten() for part in product])) / g.detach().square().sum()
    assert penalty.last.strength == pytest.approx(float(2 * 0.5 / sharpness), rel=1e-10)


def test_calls_that_cannot_be_sampled_are_refused_with_the_form_that_works() -> None:
    problem = vectors()
    penalty = GradientPenalty(problem.model, STRENGTH, micro_batch_size=SIZE, sampled=1)
    with pytest.raises(InputError, match=r"backward\(closure, inputs, targets\)"):
        penalty.backward(lambda: problem.loss(*problem.batch))
    with pytest.raises(InputError, match=r"part=.*sampled=q and without micro_batch_size"):
        penalty.backward(problem.loss, *problem.batch, part=(0, 2))
    with pytest.raises(InputError, match=r"penalty\.add with sampled=1"):
        penalty.add(problem.loss, *problem.batch)
    whole_calls = GradientPenalty(problem.model, STRENGTH, sampled=1)
    with pytest.raises(InputError, match=r"part=\(j, k\)"):
        whole_calls.backward(lambda: problem.loss(*problem.batch))
    with pytest.raises(InputError, match="0 <= j < k"):
        whole_calls.backward(lambda: problem.loss(*problem.batch), part=(2, 2))
    with pytest.raises(InputError, match="expected both in FactoredSGD"):
        FactoredSGD(net(), lr=0.1, strength=STRENGTH, sampled=1)


def test_each_worker_draws_its_own_rows(results: Results) -> None:
    expected: dict[str, Tensor] = {}
    for rank in range(2):
        model = wide()
        for step in range(SAMPLED_STEPS):
            model.zero_grad()
            x, y = shard(rank, 2)
            rows = drawn_rows(len(x), 4, seed=9, worker=rank, call=step)
            loss = F.cross_entropy(model(x), y)
            named = dict(model.named_parameters())
            for piece in rows.split(2):
                found = torch.autograd.grad(
                    F.cross_entropy(model(x[piece]), y[piece]), list(named.values()), create_graph=True
                )
                loss = loss + WORKERS_STRENGTH / 8 * sum(gradient.square().sum() for gradient in found)
            for name, part in zip(named, torch.autograd.grad(loss, list(named.values())), strict=True):
                key = f"{step} {name}"
                expected[key] = expected.get(key, torch.zeros(())) + part / 2
    for worker in results.tensors("sampled"):
        assert_same(worker, expected)


def test_each_worker_draws_its_own_calls(results: Results) -> None:
    expected: dict[str, Tensor] = {}
    draws_seen = set()
    for rank in range(2):
        model, (x, y) = wide(), shard(rank, 2)
        named = dict(model.named_parameters())
        for step in range(4):
            (chosen,) = drawn_rows(2, 1, seed=9, worker=rank, call=2 * step).tolist()
            draws_seen.add((step, rank, chosen))
            for number in range(2):
                rows = slice(4 * number, 4 * number + 4)
                loss = F.cross_entropy(model(x[rows]), y[rows])
                if number == chosen:  # twice the strength, on one of two calls
                    found = torch.autograd.grad(loss, list(named.values()), create_graph=True)
                    loss = loss + 2 * WORKERS_STRENGTH / 4 * sum(gradient.square().sum() for gradient in found)
                for name, part in zip(named, torch.autograd.grad(loss, list(named.values())), strict=True):
                    key = f"{step} {name}"
                    expected[key] = expected.get(key, torch.zeros(())) + part / 4
    assert any((step, 0, 1 - chosen) in draws_seen for step, rank, chosen in draws_seen if rank == 1)  # they differ
    for worker in results.tensors("sampled calls"):
        assert_same(worker, expected)


def test_parts_of_workers_are_averaged(results: Results) -> None:
    workers = results.tensors("added")
    expected: dict[str, Tensor] = {}
    for rank in range(2):
        model, (x, y) = wide(), shard(rank, 2)
        named = dict(model.named_parameters())
        found = torch.autograd.grad(F.cross_entropy(model(x[:3]), y[:3]), list(named.values()), create_graph=True)
        norm = sum(gradient.square().sum() for gradient in found)
        whole = F.cross_entropy(model(x), y) + WORKERS_STRENGTH / 4 * norm
        for name, part in zip(named, torch.autograd.grad(whole, list(named.values())), strict=True):
            expected[name] = expected.get(name, torch.zeros(())) + part / 2
    for worker in workers:
        assert_same(worker, expected)
