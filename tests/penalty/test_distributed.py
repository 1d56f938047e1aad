"""Under DistributedDataParallel the penalty is that of micro-batches on one device, or of the global batch.

Workers on loopback (`distributed_workers.py`) run every scenario once; each test compares one with one device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import distributed_loss  # noqa: F401  # it puts its scenarios into SCENARIOS
from cases import Twice, batch_norm_net, numbers, spread
from distributed_results import Results
from distributed_scenarios import train
from distributed_workers import EXAMPLES, SCENARIOS, STRENGTH, batch, gradients, wide
from tacit import GradientPenalty
from tacit.penalty import METHODS
from tacit.penalty.strength import FIRST, REMEMBERED

EXACT = [name for name, method in METHODS.items() if method.exact]
# In float64 the two sides differ by the order of additions: 1e-10 is a million roundings.
CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], **tolerance: float) -> None:
    assert expected
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, **(tolerance or CLOSE))


def one_device(strength: Any = STRENGTH, *, make: Callable[[], nn.Module] = wide, **options: Any) -> dict[str, Tensor]:
    model = make()
    penalty = GradientPenalty(model, strength, **options)
    penalty.backward(lambda x, y: F.cross_entropy(model(x), y), *batch(12 if make is wide else 3))
    return {**gradients(model), "norm": penalty.last.gradient_squared_norm}


def trained_on_one_device(micro_batch_size: int, **options: Any) -> dict[str, Tensor]:
    model = wide()
    penalty = GradientPenalty(model, lambda k: 0.1 * (1 + k), micro_batch_size=micro_batch_size, **options)
    train(model, penalty, lambda k: batch(step=k))
    return dict(model.state_dict())


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("method", EXACT)
def test_workers_give_the_gradient_of_micro_batches_on_one_device(results: Results, method: str, world: int) -> None:
    expected = one_device(method=method, micro_batch_size=EXAMPLES // world)
    norm = expected.pop("norm")
    found = results.tensors(f"micro {method}", world)
    for worker in found:
        assert_same(worker, expected)
    assert float(sum(worker["norm"] for worker in found) / world) == pytest.approx(float(norm), rel=1e-10)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("method", [name for name in EXACT if name != "gram"])
def test_the_penalty_of_the_global_batch_is_that_of_one_device(results: Results, method: str, world: int) -> None:
    expected = one_device(method=method)
    for worker in results.tensors(f"global {method}", world):
        assert_same(worker, expected)


@pytest.mark.parametrize("method", [name for name in METHODS if name not in EXACT])
def test_approximate_methods_do_on_workers_what_they_do_on_one_device(results: Results, method: str) -> None:
    micro = one_device(method=method, micro_batch_size=EXAMPLES // 2)
    micro.pop("norm")
    assert_same(results.tensors(f"micro {method}")[1], micro)
    # Another order of additions in ∇Ĉ is another rounding of the point ω + s∇Ĉ, and is divided by s ≈ 1e-8.
    assert_same(results.tensors(f"global {method}")[1], one_device(method=method), rtol=1e-5, atol=1e-6)


def test_the_two_penalties_differ() -> None:
    """Otherwise the tests above could not tell one from the other."""
    micro, whole = one_device(micro_batch_size=EXAMPLES // 2), one_device()
    assert (micro["0.weight"] - whole["0.weight"]).norm() > 1e-3 * whole["0.weight"].norm()


@pytest.mark.parametrize("world", [2, 4])
def test_micro_batches_within_a_worker_are_micro_batches_of_the_whole(results: Results, world: int) -> None:
    expected = one_device(micro_batch_size=2)
    expected.pop("norm")
    for worker in results.tensors("micro-batches within a worker", world):
        assert_same(worker, expected)


def accumulated_on_one_device(pieces: Callable[[Tensor], list[Tensor]]) -> dict[str, Tensor]:
    model = wide()
    penalty, optimizer = GradientPenalty(model, STRENGTH), torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        parts = list(zip(*(pieces(tensor) for tensor in batch(step=step)), strict=True))
        for inputs, targets in parts:
            penalty.backward(lambda x=inputs, y=targets: F.cross_entropy(model(x), y), weight=1 / len(parts))
        optimizer.step()
    return {**dict(model.state_dict()), **{f"grad {k}": v for k, v in gradients(model).items()}}


@pytest.mark.parametrize("name,world", [("accumulated", 2), ("accumulated", 4), ("accumulated in views of buckets", 2)])
def test_no_sync_accumulates_micro_batches(results: Results, name: str, world: int) -> None:
    expected = accumulated_on_one_device(lambda tensor: list(tensor.split(EXAMPLES // world // 2)))
    for worker in results.tensors(name, world):
        assert_same(worker, expected)


def test_no_sync_with_the_global_batch_accumulates_global_batches(results: Results) -> None:
    # Worker r holds a half of the batch; a call sees the first, then the second quarter of every worker's half.
    expected = accumulated_on_one_device(
        lambda tensor: (
            [torch.cat([quarters[0], quarters[2]]) for quarters in [tensor.split(4)]]
            + [torch.cat([quarters[1], quarters[3]]) for quarters in [tensor.split(4)]]
        )
    )
    for worker in results.tensors("accumulated global"):
        assert_same(worker, expected)


TRAINED = [name for name in SCENARIOS if name.startswith("trained")]


@pytest.mark.parametrize(
    "name", [*TRAINED, "wrapped after the penalty was made", "part of a larger model"], ids=lambda name: name
)
def test_training_with_clipping_and_schedules_is_that_of_one_device(results: Results, name: str) -> None:
    expected = trained_on_one_device(EXAMPLES // 2)
    for worker in results.tensors(name):
        assert_same(worker, expected)


def test_four_workers_train_as_one_device_and_hold_the_same_bits(results: Results) -> None:
    found = results.tensors("trained", 4)
    assert_same(found[0], trained_on_one_device(EXAMPLES // 4))
    assert all(torch.equal(worker[name], value) for worker in found for name, value in found[0].items())


def test_workers_hold_the_strength_by_the_sharpest_of_them_when_they_synchronise(results: Results) -> None:
    strengths, sharpness = torch.stack([worker["found"] for worker in results.tensors("limited")]).unbind(2)
    assert torch.equal(strengths[0], strengths[1])
    assert not torch.equal(sharpness[0], sharpness[1])
    largest, held = sharpness.amax(0).tolist(), strengths[0].tolist()
    after = [largest[0]]  # the second step is no_sync's: nobody is told its sharpness
    after.append(max(largest[2], REMEMBERED * after[0] + (1 - REMEMBERED) * largest[2]))
    assert held == pytest.approx([100 * FIRST, 2 / after[0], 2 / after[0], 2 / after[1]], rel=1e-6)


def test_workers_have_one_relative_strength_from_the_mean_of_their_squared_norms(results: Results) -> None:
    found = torch.stack([worker["found"] for worker in results.tensors("relative")])
    strengths, gradient, part = found.unbind(2)
    assert torch.equal(strengths[0], strengths[1])
    means, weight = torch.zeros(2, dtype=torch.float64), 0.0
    for step, strength in enumerate(strengths[0]):
        expected = 0.1 if step == 0 else min(0.4 * float(means[0] / means[1]), 1.0)
        assert float(strength) == pytest.approx(expected, rel=1e-10)
        if step not in (3, 4):  # no_sync's, and one that overflows on one worker
            norms = torch.stack([gradient[:, step].mean().sqrt(), part[:, step].square().mean().sqrt() / strength])
            weight = 0.5 * weight + 0.5
            means += 0.5 / weight * (norms - means)


def test_workers_that_draw_their_own_rows_have_one_relative_strength(results: Results) -> None:
    first, second = results.tensors("relative sampled")
    assert len(first["found"].unique()) == 6
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("method", list(METHODS))
def test_a_step_reduces_once(results: Results, method: str) -> None:
    steps = 3
    for worker in results.tensors("reductions"):
        assert int(worker[method]) == steps


def test_a_communication_hook_sees_the_penalised_gradient(results: Results) -> None:
    expected = one_device(micro_batch_size=EXAMPLES // 2)
    expected.pop("norm")
    for worker in results.tensors("communication hook"):
        assert_same(worker, expected)


def test_strength_zero_is_ddp_bitwise(results: Results) -> None:
    for worker in results.tensors("strength zero"):
        assert len(worker) == 6
        assert all(not difference.any() for difference in worker.values())


def test_plain_steps_and_evaluations_may_come_between(results: Results) -> None:
    penalised, plain = wide(), wide()
    GradientPenalty(penalised, STRENGTH, micro_batch_size=EXAMPLES // 2).backward(
        lambda x, y: F.cross_entropy(penalised(x), y), *batch(step=2)
    )
    inputs, targets = batch(step=3)
    F.cross_entropy(plain(inputs), targets).backward()
    expected = {**gradients(penalised), **{f"plain {k}": v for k, v in gradients(plain).items()}}
    for worker in results.tensors("plain steps between penalised ones"):
        assert_same(worker, expected)


def test_hooks_on_parameters_act_once_on_the_final_gradient(results: Results) -> None:
    expected = one_device(micro_batch_size=EXAMPLES // 2)
    expected.pop("norm")
    for worker in results.tensors("hooks on parameters"):
        assert int(worker["later"]) == len(expected)
        assert_same(worker, {name: 2 * gradient for name, gradient in expected.items()})


def test_two_views_of_the_global_batch(results: Results) -> None:
    model = wide()
    inputs, targets = batch()
    other = inputs + 0.3 * numbers(EXAMPLES, 12, seed=9)
    GradientPenalty(model, STRENGTH).backward(
        lambda: F.cross_entropy(model(inputs), targets), second_view=lambda: F.cross_entropy(model(other), targets)
    )
    expected = gradients(model)
    for worker in results.tensors("two views of the global batch"):
        assert_same(worker, expected)


@pytest.mark.parametrize("method", list(METHODS))
def test_buffers_are_those_of_rank_zero_and_count_every_batch_once(results: Results, method: str) -> None:
    model = spread(batch_norm_net()).double()
    for step in range(2):
        model(batch(3, step)[0][: EXAMPLES // 2])  # rank 0's part
    expected = {f"{method} {name}": buffer for name, buffer in model.named_buffers()}
    assert int(expected[f"{method} 1.num_batches_tracked"]) == 2
    for worker in results.tensors("buffers"):
        assert_same(worker, expected)


def test_autocast_scaler_accumulation_and_clipping_together(results: Results) -> None:
    model = wide()
    quarter = EXAMPLES // 4
    GradientPenalty(model, STRENGTH, micro_batch_size=quarter).backward(
        lambda x, y: F.cross_entropy(model(x), y), *batch()
    )
    expected = torch.cat([gradient.reshape(-1) for gradient in gradients(model).values()])
    found = results.tensors("half precision")
    for worker in found:
        vector = torch.cat([worker[name].double().reshape(-1) for name in gradients(model)])
        error = (vector - expected).norm() / expected.norm()
        assert 1e-5 < error < 0.05  # bfloat16 has 8 bits: about a percent, and not nothing
    assert torch.equal(found[0]["moved"], found[1]["moved"])


@pytest.mark.parametrize("where", ["outside", "inside"])
def test_a_compiled_model_works_with_finite_differences(results: Results, where: str) -> None:
    expected = one_device(method="finite_difference", micro_batch_size=EXAMPLES // 2)
    expected.pop("norm")
    for worker in results.tensors("compiled"):
        # Compiled products may round differently, and a difference divides that by s ≈ 1e-8.
        assert_same(worker, {f"{where} {k}": v for k, v in expected.items()}, rtol=1e-5, atol=1e-6)


def test_a_plan_on_one_rank_disturbs_nothing(results: Results) -> None:
    expected = one_device(micro_batch_size=EXAMPLES // 2)
    expected.pop("norm")
    for worker in results.tensors("a plan, then a step"):
        assert_same(worker, expected)


def test_unused_parameters_stay_without_gradient(results: Results) -> None:
    expected = one_device(make=lambda: spread(Twice()).double(), micro_batch_size=EXAMPLES // 2)
    expected.pop("norm")
    for worker in results.tensors("unused parameters found"):
        assert worker.keys() == expected.keys()
        assert_same(worker, expected)


def test_one_process_is_one_device(results: Results) -> None:
    expected = one_device()
    expected.pop("norm")
    assert_same(results.tensors("one process", 1)[0], expected)
    assert_same(results.tensors("one process", 1)[0], {f"global {k}": v for k, v in expected.items()})


def test_without_a_process_group_the_global_batch_is_the_batch() -> None:
    assert_same(one_device(norm_of="global_batch"), one_device())


LOSSES = [name for name in SCENARIOS if name.startswith("loss, ")]


@pytest.mark.parametrize("name", LOSSES)
def test_backward_of_the_loss_is_the_penalised_backward(results: Results, name: str) -> None:
    for worker in results.tensors(name):
        expected = {key.removeprefix("backward "): value for key, value in worker.items() if "backward " in key}
        assert set(worker) == set(expected) | {f"backward {key}" for key in expected}
        # The same products and sums on both sides, multiplied by 1024 or 1/4 earlier or later.
        assert_same(worker, expected, rtol=1e-12, atol=1e-12)
