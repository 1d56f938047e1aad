"""The benchmark measures what it says, on a model so small that no time is claimed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

import tacit
from tacit._util.timing import time_interleaved
from tacit.bench import accuracy, memory, paired, run, steps, table
from tacit.bench.models import (
    BENCH_MODELS,
    BenchModel,
    CausalTransformer,
    Workload,
    _mlp_workload,
    choose,
)
from tacit.cli import app
from tacit.penalty import METHODS

TINY = BenchModel("tiny", "a tiny MLP", 4, lambda: _mlp_workload(8, 4, inputs=6, hidden=1))


FEW_ROUNDS = 2


@pytest.fixture(scope="module")
def result() -> dict:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "QUICK_ROUNDS", FEW_ROUNDS)
        return run.run([TINY], quick=True)


def test_every_registered_method_is_measured() -> None:
    assert set(METHODS) <= set(steps.STEPS)
    assert all(steps.STEPS[name].exact == method.exact for name, method in METHODS.items())


def test_the_result_survives_json_and_says_what_is_needed_to_repeat_it(result: dict, tmp_path: Path) -> None:
    run.write(result, tmp_path / "bench.json")
    read = json.loads((tmp_path / "bench.json").read_text())
    assert read == result
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]
    assert read["schema"] == "tacit-bench/1"
    assert set(read) == {
        *("schema", "tacit", "commit", "started", "seconds", "quick", "settings", "machine", "definitions"),
        "models",
    }
    assert {"strength", "learning_rate", "seed", "dtype"} <= set(read["settings"])
    assert {"processor", "cores", "threads", "torch", "python", "device", "device_name"} <= set(read["machine"])


def test_every_row_has_time_memory_and_error_as_multiples_of_plain(result: dict) -> None:
    rows = {row["step"]: row for row in result["models"][0]["rows"]}
    assert list(rows) == list(steps.STEPS)
    assert all(row["status"] == "measured" for row in rows.values())
    plain = rows["plain"]
    assert (plain["times_plain"], plain["peak_times_plain"], plain["relative_error"]) == (1.0, 1.0, None)
    for row in rows.values():
        assert row["times_plain"] == pytest.approx(row["milliseconds"] / plain["milliseconds"])
        assert row["peak_times_plain"] == pytest.approx(row["peak_bytes"] / plain["peak_bytes"])


def test_exact_steps_apply_the_float64_gradient_to_rounding(result: dict) -> None:
    exact = [row for row in result["models"][0]["rows"] if row["exact"] and row["step"] != "plain"]
    assert len(exact) == 5  # naive, auto, double_backward, gram, FactoredSGD
    # float32 has seven digits; the penalty's part is about a hundredth of the gradient here.
    assert all(row["relative_error"] < 1e-4 for row in exact)


def test_a_step_without_the_penalty_has_an_error_of_one() -> None:
    workload = TINY.make()
    error = accuracy.relative_error(steps.STEPS["plain"], workload, accuracy.oracle(workload))
    assert error == pytest.approx(1.0, abs=1e-4)  # what it lacks is the whole of the penalty's part


def test_the_oracle_is_half_the_strength_times_the_hessian_times_the_gradient() -> None:
    workload = TINY.make()
    model = workload.model.double()
    names = [name for name, _ in model.named_parameters()]
    vector = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])

    def loss(flat: torch.Tensor) -> torch.Tensor:
        pieces = flat.split([parameter.numel() for parameter in model.parameters()])
        shaped = [piece.reshape(parameter.shape) for piece, parameter in zip(pieces, model.parameters(), strict=True)]
        outputs = torch.func.functional_call(model, dict(zip(names, shaped, strict=True)), (workload.inputs.double(),))
        return torch.nn.functional.cross_entropy(outputs, workload.targets)

    gradient, hessian = torch.func.grad(loss)(vector), torch.func.hessian(loss)(vector)
    seen = accuracy.oracle(TINY.make())
    penalty_part = steps.STRENGTH / 2 * hessian @ gradient
    assert seen.penalty_norm == pytest.approx(penalty_part.norm().item(), rel=1e-10)
    flat = torch.cat([part.reshape(-1) for part in seen.gradients])
    torch.testing.assert_close(flat, gradient + penalty_part, rtol=1e-10, atol=1e-14)


def test_peak_memory_of_a_plain_step_counts_parameters_and_gradients_and_repeats_to_the_byte() -> None:
    workload = _mlp_workload(256, 2, inputs=256, hidden=2)
    weights = sum(parameter.numel() * 4 for parameter in workload.model.parameters())
    step = steps.plain(workload, 0.0)
    step()
    first, second = (memory.peak_bytes(workload, step) for _ in range(2))
    assert first == second
    # Two rows of activations are 2 kB per layer, beside half a megabyte of weights and as much of gradients.
    assert 2 * weights < first < 2.1 * weights


def test_naive_double_backward_holds_more_than_a_plain_step(result: dict) -> None:
    rows = {row["step"]: row for row in result["models"][0]["rows"]}
    assert rows["naive double backward"]["peak_bytes"] > rows["plain"]["peak_bytes"]


def test_a_step_that_refuses_the_model_becomes_a_row_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(workload: Workload, learning_rate: float) -> steps.Step:
        raise tacit.InputError("not this model.")

    monkeypatch.setitem(steps.STEPS, "gram", steps.StepKind("gram", True, True, refuse))
    measured = run.measure_model(TINY, rounds=1)
    row = next(row for row in measured["rows"] if row["step"] == "gram")
    assert (row["status"], row["reason"]) == ("refused", "not this model.")
    assert "refused" in shown_text(measured)


def test_the_table_shows_every_step_and_the_legend_the_strength(result: dict) -> None:
    shown = Console(record=True, width=100, file=open("/dev/null", "w"))  # noqa: SIM115
    for made in table.tables(result):
        shown.print(made)
    text = shown.export_text()
    assert "a tiny MLP" in text
    assert all(name in text for name in steps.STEPS)
    assert str(steps.STRENGTH) in table.legend(result)


def test_steps_are_timed_in_turns_and_the_second_of_two_calls_counts() -> None:
    calls: list[str] = []

    def step(name: str) -> steps.Step:
        def call() -> torch.Tensor:
            calls.append(name)
            return torch.zeros(())

        return call

    timings = time_interleaved({"a": step("a"), "b": step("b")}, rounds=3)
    assert calls == [*"aabb", *"bbaa", *"aabb"]  # every round begins with another one
    assert {len(seconds) for seconds in timings.values()} == {3}


def test_the_device_has_finished_before_and_after_the_step_that_counts() -> None:
    calls: list[str] = []

    def step() -> torch.Tensor:
        calls.append("step")
        return torch.zeros(())

    time_interleaved({"a": step}, rounds=2, synchronise=lambda: calls.append("wait"))
    assert calls == ["step", "wait", "step", "wait"] * 2


# -- beside the hand-written steps, round by round ---------------------------------------------------------------------
def seconds_of(**taken: list[float]) -> Callable[..., dict[str, list[float]]]:
    """In place of `time_interleaved`: these seconds, and 1 s for every other step."""
    rounds = len(next(iter(taken.values())))
    named = {name.replace("_", " ") if name.startswith(("naive", "two")) else name: own for name, own in taken.items()}
    return lambda made, **_: {name: named.get(name, [1.0] * rounds) for name in made}


def test_ratios_are_of_pairs_and_not_of_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine slows down from 1 to 8: auto takes 1.5 times naive in every round, whose medians are 3 and 4."""
    naive = [1.0, 2.0, 3.0, 4.0, 6.0, 7.0, 8.0]
    timed = seconds_of(naive_double_backward=naive, auto=[1.5 * seconds for seconds in naive])
    monkeypatch.setattr(run, "time_interleaved", timed)
    rows = {row["step"]: row for row in run.measure_model(TINY, rounds=7)["rows"]}
    assert (rows["auto"]["times_naive"], rows["auto"]["times_naive_interval"]) == (1.5, [1.5, 1.5])
    assert rows["auto"]["microseconds_above_naive"] == pytest.approx(0.5e6 * 4)
    assert rows["auto"]["microseconds_above_naive_interval"] == pytest.approx([0.5e6, 4e6])  # 7: smallest, largest
    assert rows["gram"]["times_naive"] == 1 / 4  # every other step takes 1 s: the median of 1/1, 1/2, … is 1/4
    assert rows["naive double backward"]["times_naive"] == 1.0
    assert "times_naive" not in rows["plain"]


def test_finite_differences_are_compared_with_two_plain_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = seconds_of(two_plain_passes=[2.0] * 6, finite_difference=[2.2, 2.2, 2.2, 2.4, 2.4, 2.4])
    monkeypatch.setattr(run, "time_interleaved", timed)
    measured = run.measure_model(TINY, rounds=6)
    rows = {row["step"]: row for row in measured["rows"]}
    assert rows["finite_difference"]["times_two_passes"] == pytest.approx(1.15)
    assert rows["finite_difference"]["times_two_passes_interval"] == pytest.approx([1.1, 1.2])
    assert [name for name, row in rows.items() if "times_two_passes" in row] == ["finite_difference"]
    assert "1.15 [1.10,1.20] x two plain passes" in shown_text(measured)


@pytest.mark.parametrize("milliseconds,shown", [(4.0, True), (6.0, False)])
def test_microseconds_are_shown_where_a_naive_step_is_short(
    milliseconds: float, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    naive = [milliseconds / 1e3] * 6
    timed = seconds_of(naive_double_backward=naive, auto=[seconds + 150e-6 for seconds in naive])
    monkeypatch.setattr(run, "time_interleaved", timed)
    assert ("150 [150,150] µs above naive" in shown_text(run.measure_model(TINY, rounds=6))) == shown


def test_the_row_of_auto_names_the_method_that_it_stands_for(result: dict) -> None:
    rows = {row["step"]: row for row in result["models"][0]["rows"]}
    workload = TINY.make()
    assert rows["auto"]["method"] == tacit.GradientPenalty(workload.model, steps.STRENGTH).method
    assert [name for name, row in rows.items() if "method" in row] == ["auto"]
    assert f"auto ({rows['auto']['method']})" in shown_text(result["models"][0])


def shown_text(model: dict) -> str:
    shown = Console(record=True, width=100, file=open("/dev/null", "w"))  # noqa: SIM115
    shown.print(table.model_table(model))
    return shown.export_text()


@pytest.mark.parametrize("count", range(6, 16))
def test_the_interval_of_a_median_is_the_narrowest_that_encloses_it_with_95_percent(count: int) -> None:
    """All ways in which independent values fall below or above the distribution's median are equally likely."""
    low, high = paired.median_with_interval(range(count))[1]
    inner = enclosed = 0
    for signs in itertools.product((-1, 1), repeat=count):
        ranked = sorted(sign * (1 + place) for place, sign in enumerate(signs))  # the distribution's median is 0
        enclosed += ranked[low] < 0 < ranked[high]
        inner += low + 1 < high - 1 and ranked[low + 1] < 0 < ranked[high - 1]
    assert enclosed / 2**count >= 0.95 > inner / 2**count


def test_a_median_of_few_rounds_has_no_interval_and_one_of_many_has() -> None:
    assert paired.median_with_interval([3.0, 1.0, 2.0, 5.0]) == (2.5, None)
    middle, (low, high) = paired.median_with_interval(range(5001))  # 2⁵⁰⁰¹ is not a float
    assert low < middle == 2500 < high


@pytest.mark.parametrize("micro_batch_size", [None, 2])
def test_two_plain_passes_are_the_finite_difference_of_the_same_order_and_move_the_model_back(
    micro_batch_size: int | None,
) -> None:
    """On a smooth model both apply the same estimate, whose error is a hundred times what they differ by."""
    workload = replace(TINY.make(), micro_batch_size=micro_batch_size)
    workload = replace(workload, model=nn.Sequential(workload.model[0], nn.Tanh(), workload.model[2]))
    reference = accuracy.oracle(workload)
    by_hand, ours = (
        accuracy.relative_error(steps.STEPS[name], workload, reference)
        for name in (steps.TWO_PASSES, "finite_difference")
    )
    assert 0 < ours < 0.1
    assert by_hand == pytest.approx(ours, rel=1e-2)
    before = [parameter.detach().clone() for parameter in workload.model.parameters()]
    steps.two_plain_passes(workload, 0.0)()
    for parameter, value in zip(workload.model.parameters(), before, strict=True):
        torch.testing.assert_close(parameter.detach(), value, rtol=1e-6, atol=1e-7)  # to rounding, not bitwise


# -- another device ----------------------------------------------------------------------------------------------------
def test_a_workload_on_another_device_has_all_its_tensors_there() -> None:
    moved = BENCH_MODELS["wrn-10-1-b32-channels-last"].make().to(torch.device("meta"))
    assert {tensor.device.type for tensor in (*moved.model.parameters(), moved.inputs, moved.targets)} == {"meta"}
    assert moved.inputs.is_contiguous(memory_format=torch.channels_last)


def test_the_peak_on_cuda_is_what_the_allocator_counted_above_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(name: str, number: int = 0) -> Callable[[object], int]:
        def call(device: object) -> int:
            calls.append(name)
            return number

        return call

    numbers = {"memory_allocated": 700, "reset_peak_memory_stats": 0, "synchronize": 0, "max_memory_allocated": 1000}
    for name, number in numbers.items():
        monkeypatch.setattr(torch.cuda, name, counted(name, number))
    seen = memory._allocated_on_cuda(lambda: calls.append("step"), torch.device("cuda"))
    assert seen == 300
    order = ["memory_allocated", "reset_peak_memory_stats", "step", "synchronize", "max_memory_allocated"]
    assert calls == order


def test_the_paper_s_models_are_among_the_benchmarked_ones() -> None:
    assert [entry.name for entry in choose([], quick=False)] == list(BENCH_MODELS)
    assert {"mlp-64-b256", "mlp-64-b256-micro16"} <= set(BENCH_MODELS)
    assert {"mlp-4096-b16", "mlp-4096-b64", "wrn-10-1-b32", "wrn-10-1-b32-channels-last"} <= set(BENCH_MODELS)
    assert 0 < len(choose([], quick=True)) < len(BENCH_MODELS)


def test_channels_last_is_the_layout_that_the_plain_step_sees_too() -> None:
    workload = BENCH_MODELS["wrn-10-1-b32-channels-last"].make()
    assert workload.inputs.is_contiguous(memory_format=torch.channels_last)
    assert workload.model.stem.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "arguments,said",
    [
        (["--model", "resnet"], "'resnet' is unknown; use one of mlp-4096-b16"),
        (["--json", "nowhere/at/all.json"], "does not exist"),
        (["--threads", "0"], "expected at least 1"),
        (["--device", "meta"], "the device is 'meta'; expected auto, cuda, cpu"),
        (["--device", "mps"], "the device is 'mps'; expected auto, cuda, cpu"),
        (["--device", "cuda"], "torch finds none on this machine; use auto or cpu"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    failed = CliRunner().invoke(app, ["bench", *arguments])
    assert isinstance(failed.exception, tacit.InputError)
    assert said in str(failed.exception)


def test_the_command_writes_the_json_that_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BENCH_MODELS, "tiny", TINY)
    monkeypatch.setattr(run, "QUICK_ROUNDS", FEW_ROUNDS)
    done = CliRunner().invoke(app, ["bench", "--quick", "--model", "tiny", "--json", str(tmp_path / "b.json")])
    assert done.exit_code == 0, done.output
    assert "a tiny MLP" in done.output
    assert json.loads((tmp_path / "b.json").read_text())["models"][0]["name"] == "tiny"


def tiny_language_model() -> Workload:
    model = CausalTransformer(tokens=7, width=8, heads=2, layers=1, length=4)
    text = torch.randint(7, (4, 5), generator=torch.Generator().manual_seed(0))
    return Workload(model, text[:, :-1], text[:, 1:], attention=True)


@pytest.mark.parametrize(
    "make",
    [
        tiny_language_model,
        lambda: replace(_mlp_workload(8, 4, inputs=6, hidden=1), micro_batch_size=2),
        lambda: replace(_mlp_workload(8, 4, inputs=6, hidden=1), momentum=0.9),
    ],
    ids=["fused attention", "micro-batches", "momentum"],
)
def test_exact_steps_are_exact_on_the_other_kinds_of_models(make: Callable[[], Workload]) -> None:
    torch.manual_seed(0)
    workload = make()
    measured = run.measure_model(BenchModel("tiny", "tiny", 4, lambda: workload), rounds=1)
    rows = {row["step"]: row for row in measured["rows"]}
    assert [name for name, row in rows.items() if row["status"] != "measured"] == []
    exact = [row for name, row in rows.items() if steps.steps_for(workload)[name].penalised and row["exact"]]
    assert len(exact) == 5
    assert max(row["relative_error"] for row in exact) < 1e-3  # float32, and a penalty of a hundredth of the gradient
    whole = rows.get("gram, whole batch")
    assert (whole is None) == (workload.micro_batch_size is None)


def test_the_oracle_of_micro_batches_is_the_mean_of_their_own() -> None:
    whole = replace(_mlp_workload(8, 4, inputs=6, hidden=1), micro_batch_size=2)
    halves = [replace(whole, inputs=x, targets=y, micro_batch_size=None) for x, y in whole.micro_batches()]
    found = accuracy.oracle(whole)
    each = [accuracy.oracle(half) for half in halves]
    for gradient, *parts in zip(found.gradients, *[one.gradients for one in each], strict=True):
        torch.testing.assert_close(gradient, sum(parts) / 2, rtol=1e-12, atol=1e-15)
