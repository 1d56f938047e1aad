"""What Transformers' `Trainer` logs of the penalty, what its schedules count, and what it takes from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import tacit

pytest.importorskip("transformers", reason="transformers is not installed; make integrations runs this")

from transformers_runs import CLOSE, STRENGTH, Penalised, Seen, by_hand, difference, llama, train

from tacit.integrations.step_means import StepMeans
from tacit.penalty import PenaltyRecord

STEPS, ACCUMULATION = 4, 2  # of eight batches of two rows
RUN = {"max_steps": STEPS, "gradient_accumulation_steps": ACCUMULATION}


@pytest.fixture(autouse=True)
def sixteen_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers_runs

    eight = transformers_runs.rows
    monkeypatch.setattr(transformers_runs, "rows", lambda: eight(16))


def logged(trainer: Any) -> list[dict[str, float]]:
    return [row for row in trainer.state.log_history if "loss" in row]


def means(seen: list[Seen], steps: int) -> dict[str, float]:
    """The naive count: what one optimizer step has of it, in the mean over penalised batches."""
    penalised = [each for each in seen if each.strength]
    weight = sum(each.weight for each in penalised)
    found = {"loss": sum(each.weight * each.loss for each in seen) / steps}
    if penalised:
        mean = sum(each.weight * each.penalty for each in penalised) / weight
        found["tacit/penalty"] = mean * sum(each.weight for each in seen) / steps
        found["tacit/gradient_share"] = sum(each.weight * each.gradient_share for each in penalised) / weight
    if len(penalised) < len(seen):
        found["tacit/penalised_share"] = len(penalised) / len(seen)
    return found


def by_windows(seen: list[Seen], steps: int) -> list[dict[str, float]]:
    size = steps * ACCUMULATION
    return [means(seen[first : first + size], steps) for first in range(0, len(seen), size)]


def every_second(step: int, micro_batch: int) -> float:
    return 0.0 if step % 2 else 2 * STRENGTH


@pytest.mark.parametrize("logging_steps", [1, 2])
@pytest.mark.parametrize(
    "options,strength", [({}, STRENGTH), ({"every": 2}, every_second)], ids=["every step", "every second step"]
)
def test_the_log_is_the_mean_over_what_the_loss_covers(
    options: Any, strength: Any, logging_steps: int, tmp_path: Path
) -> None:
    penalty = {"strength": STRENGTH, "method": "double_backward", **options}
    trainer = train(llama(), tmp_path, kind=Penalised, penalty=penalty, logging_steps=logging_steps, **RUN)
    wanted = by_windows(by_hand(llama(), strength=strength, steps=STEPS, accumulation=ACCUMULATION), logging_steps)
    assert len(logged(trainer)) == len(wanted) == STEPS // logging_steps
    for row, naive in zip(logged(trainer), wanted, strict=True):
        found = {name: row[name] for name in ("loss", *row) if name == "loss" or name.startswith("tacit/")}
        if "every" in options:
            naive.setdefault("tacit/penalised_share", 1.0)
        assert found == pytest.approx(naive, rel=1e-4)


def test_the_log_is_on_the_scale_of_an_undivided_sum(tmp_path: Path) -> None:
    """Where Trainer adds up the losses of accumulated batches, it adds up their penalties too."""

    class MeanLoss(Penalised):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **named: Any) -> Any:
            return super().compute_loss(model, inputs, return_outputs)

    trainer = train(llama(), tmp_path, kind=MeanLoss, penalty={"strength": STRENGTH}, logging_steps=2, **RUN)
    seen = by_hand(llama(), weight_of=lambda labels, step: 1.0, steps=STEPS, accumulation=ACCUMULATION)
    naive = sum(each.penalty for each in seen[:4]) / 2
    assert logged(trainer)[0]["tacit/penalty"] == pytest.approx(naive, rel=1e-4)


def test_a_coin_is_tossed_for_each_batch_and_its_share_is_logged(tmp_path: Path) -> None:
    penalty = {"strength": STRENGTH, "probability": 0.5, "seed": 3}
    trainer = train(llama(), tmp_path, kind=Penalised, penalty=penalty, logging_steps=STEPS, **RUN)
    coin = tacit.GradientPenalty(torch.nn.Linear(1, 1), **penalty)
    heads = []
    for _ in range(STEPS * ACCUMULATION):
        coin.loss(lambda: coin.model(torch.ones(1, 1)).sum())
        heads.append(coin.last.strength)
    assert any(len({*heads[first : first + 2]}) == 2 for first in range(0, len(heads), 2))  # within one step
    seen = by_hand(
        llama(), strength=lambda step, micro_batch: heads[micro_batch], steps=STEPS, accumulation=ACCUMULATION
    )
    (row,) = logged(trainer)
    assert row["tacit/penalised_share"] == sum(map(bool, heads)) / len(heads)
    assert row["tacit/penalty"] == pytest.approx(means(seen, STEPS)["tacit/penalty"], rel=1e-4)


def test_evaluation_logs_no_penalty_and_counts_no_step(tmp_path: Path) -> None:
    import transformers_runs

    trainer = train(llama(), tmp_path, kind=Penalised, penalty={"strength": STRENGTH}, logging_steps=1)
    before = trainer.gradient_penalty.steps
    assert not any(name.startswith("tacit/") for name in trainer.evaluate(transformers_runs.rows()))
    assert trainer.gradient_penalty.steps == before == 4


class Waits(TorchDispatchMode):
    """Counts reads of a number off a tensor, for which a GPU has to be waited for."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)
        return func(*args, **(kwargs or {}))


def test_numbers_are_read_when_the_trainer_logs_and_not_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Waits()
    count = Penalised._count_gradient

    def counted(*arguments: Any) -> None:
        with waits:
            count(*arguments)

    monkeypatch.setattr(Penalised, "_count_gradient", counted)
    train(llama(), tmp_path, kind=Penalised, penalty={"strength": STRENGTH, "every": 2}, logging_steps=2, **RUN)
    assert waits.count == 0
    with waits:
        float(torch.ones(()))
    assert waits.count == 1


def test_means_leave_out_what_is_not_finite() -> None:
    """A step in float16 that the scaler skips has infinite gradients."""
    one, infinite = torch.tensor(2.0), torch.tensor(float("inf"))
    found = StepMeans()
    for norm in (one, infinite):
        found.add(PenaltyRecord(torch.tensor(1.0), 4.0, "gram", norm, penalty_gradient_norm=norm.sqrt() / 2))
    assert {name: float(value) for name, value in found.means().items()} == pytest.approx(
        {"penalty": 2.0, "gradient_squared_norm": 2.0, "gradient_share": 0.5}
    )


def test_the_share_of_drawn_micro_batches_is_left_out() -> None:
    """Their own gradients are not the plain part of the step, which is that of the whole batch."""
    found, norm = StepMeans(), torch.tensor(2.0)
    found.add(PenaltyRecord(torch.tensor(1.0), 4.0, "gram", norm, penalty_gradient_norm=norm, drawn_of=16))
    assert found.means().keys() == {"penalty", "gradient_squared_norm"}


def test_sums_of_processes_are_added_up() -> None:
    """As after `accelerator.gather`: one process has seen a penalised batch, the other a plain one."""
    first, second = StepMeans(), StepMeans()
    first.add(PenaltyRecord(torch.tensor(1.0), 4.0, "gram", torch.tensor(3.0)), torch.tensor(0.25))
    second.add(PenaltyRecord(torch.tensor(1.0), 0.0, "gram"), torch.tensor(0.75))
    rows = torch.stack([each.packed(torch.device("cpu")) for each in (first, second)])
    whole = StepMeans.from_packed(rows.sum(0), optimizer_steps=1)
    assert {name: float(value) for name, value in whole.means().items()} == {
        "penalty": 3.0,
        "gradient_squared_norm": 3.0,
    }
    assert (whole.factors, whole.penalised_share) == (1.0, 0.5)


def falling(step: int) -> float:
    return STRENGTH / (1 + step)


@pytest.mark.parametrize("every", [1, 2])
def test_schedules_and_every_count_optimizer_steps(every: int, tmp_path: Path) -> None:
    model, wanted = llama(), llama()
    train(model, tmp_path, kind=Penalised, penalty={"strength": falling, "every": every}, **RUN)

    def strength(step: int, micro_batch: int) -> float:
        return 0.0 if step % every else every * falling(step)

    by_hand(wanted, strength=strength, steps=STEPS, accumulation=ACCUMULATION)
    assert difference(model, wanted) < CLOSE


def test_a_resumed_run_goes_on_with_its_schedule(tmp_path: Path) -> None:
    model, wanted = llama(), llama()
    penalty = {"strength": falling, "every": 2}
    train(llama(), tmp_path, kind=Penalised, penalty=penalty, save_strategy="steps", save_steps=1, **RUN)
    trainer = train(llama(), tmp_path / "other", kind=Penalised, penalty=penalty, **{**RUN, "max_steps": 1})
    trainer.args.max_steps = STEPS
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    model = trainer.model
    by_hand(
        wanted, strength=lambda step, _: 0.0 if step % 2 else 2 * falling(step), steps=STEPS, accumulation=ACCUMULATION
    )
    assert difference(model, wanted) < CLOSE


def test_a_strength_passed_anew_wins_on_resume_and_a_line_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = {"strength": 0.5, "probability": 0.5, "seed": 1}
    train(llama(), tmp_path, kind=Penalised, penalty=first, save_strategy="steps", save_steps=2, **RUN)
    again = {"strength": 50.0, "probability": 0.5, "seed": 2}
    trainer = train(llama(), tmp_path / "other", kind=Penalised, penalty=again, **{**RUN, "max_steps": 1})
    trainer.args.max_steps = STEPS
    caplog.clear()
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert trainer.gradient_penalty.strength == 50.0
    assert trainer.gradient_penalty.steps == STEPS * ACCUMULATION
    whole = tacit.GradientPenalty(torch.nn.Linear(1, 1), **first)
    for _ in range(STEPS * ACCUMULATION):
        whole.loss(lambda: whole.model(torch.ones(1, 1)).sum())
    assert trainer.gradient_penalty.state_dict()["seed"] == whole.state_dict()["seed"]
    (line,) = [record.getMessage() for record in caplog.records if "passed now" in record.getMessage()]
    assert "the strength passed now, 50; the checkpoint's was 0.5" in line


def test_a_batch_whose_loss_overflows_is_left_to_the_scaler(tmp_path: Path) -> None:
    """The first comparison with the token count waits for a batch with a finite loss."""

    class Overflowing(Penalised):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **named: Any) -> Any:
            loss: Tensor = super().compute_loss(model, inputs, return_outputs, **named)
            return loss * (float("inf") if self.state.global_step == 0 and not model.training else 1.0)

    model, wanted = llama(), llama()
    train(model, tmp_path, kind=Overflowing, penalty={"strength": STRENGTH})
    by_hand(wanted)
    assert difference(model, wanted) < CLOSE
