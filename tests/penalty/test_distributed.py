"""Under DistributedDataParallel the penalty is that of micro-batches on one device, or of the global batch.

Workers on loopback (`distributed_workers.py`) run every scenario once; each test compares one with one device.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cases import Twice, batch_norm_net, numbers, spread
from distributed_scenarios import train
from distributed_workers import EXAMPLES, SCENARIOS, STRENGTH, batch, gradients, wide
from tacit import GradientPenalty, InputError
from tacit.penalty import METHODS

EXACT = [name for name, method in METHODS.items() if method.exact]
# In float64 the two sides differ by the order of additions: 1e-10 is a million roundings.
CLOSE = {"rtol": 1e-10, "atol": 1e-10}


class Results:
    """What the workers of one world found: `tensors(name)[rank][key]` and `messages(name)[rank]`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def tensors(self, name: str, world: int = 2) -> list[dict[str, Tensor]]:
        from safetensors.torch import load_file

        loaded = [load_file(self.folder / f"{world}-{rank}.safetensors") for rank in range(world)]
        return [{k.split("/", 1)[1]: v for k, v in found.items() if k.split("/", 1)[0] == name} for found in loaded]

    def messages(self, name: str, world: int = 2) -> list[str]:
        return [json.loads((self.folder / f"{world}-{rank}.json").read_text())[name] for rank in range(world)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("workers")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    program = f"import sys, distributed_workers as w; sys.exit(w.main(w.Path({str(folder)!r}), [1, 2, 4]))"
    # Some ten seconds of work on two free cores; the limit is for a machine that is busy with other things.
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-8000:]
    return Results(folder)


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
@pytest.mark.parametrize("method", EXACT)
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


@pytest.mark.parametrize("method", EXACT)
def test_two_views_of_the_global_batch(results: Results, method: str) -> None:
    model = wide()
    inputs, targets = batch()
    other = inputs + 0.3 * numbers(EXAMPLES, 12, seed=9)
    GradientPenalty(model, STRENGTH).backward(
        lambda: F.cross_entropy(model(inputs), targets), second_view=lambda: F.cross_entropy(model(other), targets)
    )
    expected = {f"{method} {name}": gradient for name, gradient in gradients(model).items()}
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
    assert_same(one_device(of="global_batch"), one_device())


REFUSALS = {
    "refused: unused parameters": "parameter 'unused' got no gradient.*find_unused_parameters=True",
    "refused: uneven batches given": "batches of 8, 7 examples.*drop_last=True.*check_ranks=False",
    "refused: uneven global batches": "batches of 8, 7 examples",
    "refused: uneven accumulation": "batches of 16, 15 examples",
    "refused: different strengths": "strength 0.1, 0.2; expected one value",
    "refused: different coins of a global batch": "strength (0.2, 0.0|0.0, 0.2); expected one value",
    "refused: join": r"join\(\) context.*drop_last",
    "refused: static graph in no_sync": r"static_graph in no_sync\(\)",
    "refused: mixed_precision": "mixed_precision.*autocast",
    "refused: communication hook and global batch": "communication hook",
    "refused: optimizer in backward": "an optimizer inside backward",
    "refused: sync batch norm": "layer '1' is a SyncBatchNorm",
    "refused: global batch without ddp": "called no DistributedDataParallel",
    "refused: fsdp2": r"fully_shard \(FSDP2\).*Use DistributedDataParallel",
    "refused: fsdp1": r"FullyShardedDataParallel \(FSDP\).*Use DistributedDataParallel",
    "refused: tensor parallel": "'0.weight' is a DTensor.*Use DistributedDataParallel",
    "refused: factored, wrapped": "FactoredSGD never forms",
    "refused: factored, closure wrapped": "FactoredSGD never forms",
}


@pytest.mark.parametrize("name", REFUSALS)
def test_every_rank_refuses_with_the_same_sentence(results: Results, name: str) -> None:
    import re

    found = results.messages(name)
    assert len(set(found)) == 1
    assert re.search(REFUSALS[name], found[0]), found[0]
    assert found[0].startswith("InputError")


@pytest.mark.parametrize("world", [2, 4])
def test_uneven_batches_are_refused_on_every_rank_and_leave_no_gradient(results: Results, world: int) -> None:
    size = EXAMPLES // world
    for found in results.messages("refused: uneven batches", world):
        assert f"batches of {', '.join([str(size)] * (world - 1) + [str(size - 1)])} examples" in found
        assert found.endswith("clean: True")


def test_uneven_batches_pass_when_the_check_is_off(results: Results) -> None:
    assert results.messages("uneven batches unchecked") == ["nothing was raised clean: True"] * 2


@pytest.mark.parametrize(
    "name,world,own",
    [
        ("fails before the model", 2, "KeyError: 'data'"),
        ("fails before the model", 4, "KeyError: 'data'"),
        ("fails after the model", 2, "InputError: the loss is nan"),
        ("fails before the global batch", 2, "InputError: the loss is nan|KeyError: 'data'"),
    ],
)
def test_a_rank_that_fails_stops_the_others_and_a_next_step_works(
    results: Results, name: str, world: int, own: str
) -> None:
    *others, failed = results.messages(name, world)
    assert any(failed.startswith(start) for start in own.split("|"))
    for other in others:
        assert other.startswith(f"InputError: rank {world - 1} raised an error in this step")
    assert len({found.rpartition("again: ")[2] for found in [*others, failed]}) == 1


def test_a_rank_that_fails_in_no_sync_stops_the_others_at_the_reduction(results: Results) -> None:
    first, second = results.messages("fails in no_sync")
    assert first.startswith("InputError: rank 1 raised an error")
    assert second.startswith("InputError: the loss is nan")


def test_an_unknown_kind_of_batch_is_refused() -> None:
    with pytest.raises(InputError, match="of='batch' is unknown; use 'micro_batch' or 'global_batch'"):
        GradientPenalty(wide(), 0.1, of="batch")


def test_micro_batches_of_the_global_batch_are_refused() -> None:
    with pytest.raises(InputError, match="micro_batch_size=2 with of='global_batch'"):
        GradientPenalty(wide(), 0.1, of="global_batch", micro_batch_size=2)
