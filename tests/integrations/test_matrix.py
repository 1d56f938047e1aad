"""Some cells of the matrix, live: the traps of each trainer. `record.py` makes the whole of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("lightning", reason="lightning is not installed; make integrations runs this")
pytest.importorskip("transformers", reason="transformers is not installed; make integrations runs this")
pytest.importorskip("peft", reason="peft is not installed; make integrations runs this")

import integration_reference
import torch
from integration_cells import Cell, measure
from integration_reference import (
    CASES,
    batches,
    by_forward_mode,
    by_second_pass,
    difference,
    expected,
    groups,
    make_model,
)
from integration_trainers import TRAINERS

TRAPS = [
    *[(trainer, "accumulation") for trainer in TRAINERS],
    *[("trainer", "tokens"), ("lightning_automatic", "scaler"), ("lightning_manual", "ddp"), ("fabric", "bf16")],
    *[("trainer", "resume"), ("accelerate", "together"), ("accelerate", "new_strength"), ("fabric", "new_strength")],
    *[("trainer", case) for case in ("own_loss", "loss_function", "new_strength", "schedule", "logged")],
    *[("lightning_automatic", case) for case in ("new_strength", "schedule", "logged")],
    *[(trainer, "sampled") for trainer in TRAINERS],
    *[(trainer, "sampled_calls") for trainer in ("plain", "lightning_automatic", "trainer")],
    ("trainer", "sampled_tokens"),
    *[(trainer, case) for trainer in TRAINERS for case in ("sam", "sam_sampled")],
]


@pytest.mark.parametrize("trainer,case", TRAPS, ids=lambda value: value)
def test_the_trainer_ends_where_the_plain_loop_ends(trainer: str, case: str) -> None:
    cell = measure(trainer, case)
    assert cell.status == "exact", cell


def test_a_cell_does_not_depend_on_what_ran_before_in_this_process() -> None:
    from accelerate import Accelerator

    Accelerator(cpu=True)
    cell = measure("accelerate", "ddp")
    assert cell.status == "exact", cell


def test_tokens_are_weighted_over_accumulated_batches_and_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CASES, "tokens", replace(CASES["tokens"], world=2))
    cell = measure("trainer", "tokens")
    assert cell.status == "exact", cell


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_draws_of_sam_go_on_after_a_resume(trainer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CASES, "sam_sampled", replace(CASES["sam_sampled"], world=1, stop_after=3))
    cell = measure(trainer, "sam_sampled")
    assert cell.status == "exact", cell


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("trainer", ["lightning_automatic", "fabric", "trainer", "accelerate"])
def test_sam_from_rows_is_exact_in_mixed_precision(
    trainer: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CASES, "sam_sampled", replace(CASES["sam_sampled"], precision=precision))
    cell = measure(trainer, "sam_sampled")
    assert cell.status == "exact", cell


def test_sam_from_rows_is_exact_where_batches_count_by_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    case = replace(CASES["sam_sampled"], unequal_lengths=True, token_weights=True)
    monkeypatch.setitem(CASES, "sam_sampled", case)
    cell = measure("trainer", "sam_sampled")
    assert cell.status == "exact", cell


def test_the_two_algebras_of_the_reference_agree() -> None:
    """In float64, where they differ by rounding only."""
    case = CASES["lora"]
    model, (batch, *_) = make_model(case, plain=True), batches(case)
    trainable = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    for own_loss in (False, True):
        goal = replace(case, own_loss=own_loss)
        forward, second = (rule(model, trainable, batch, goal, 0.7)[0] for rule in (by_forward_mode, by_second_pass))
        assert difference(forward, second) < 1e-12


def test_the_reference_sees_a_penalty_of_the_divided_loss() -> None:
    """The usual mistake at accumulation 4: the squared norm of a quarter of the loss, so a quarter of the penalty."""
    case = CASES["accumulation"]
    assert difference(expected(case, factor=0.25), expected(case)) > 1e9 * case.tolerance


def test_the_reference_sees_equal_weights_of_unequal_lengths() -> None:
    case = CASES["tokens"]
    assert difference(expected(replace(case, token_weights=False)), expected(case)) > 1e9 * case.tolerance


def test_the_reference_sees_a_schedule_that_counts_batches() -> None:
    case = CASES["schedule"]
    assert difference(expected(replace(case, every=1)), expected(case)) > 1e9 * case.tolerance
    assert difference(expected(replace(case, cosine=False)), expected(case)) > 1e9 * case.tolerance


def test_the_reference_sees_other_rows_that_carry_the_penalty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sampled", "sampled_calls", "sampled_tokens"):
        case = CASES[name]
        whole = expected(replace(case, sampled=None))
        assert difference(whole, expected(case)) > 1e9 * case.tolerance


def test_the_reference_sees_another_direction_of_sam_and_the_penalty_in_its_place() -> None:
    for name in ("sam", "sam_sampled"):
        case = CASES[name]
        others = [replace(case, sampled=None if case.sampled else 1), replace(case, sam=False, sampled=None)]
        for other in others:
            assert difference(expected(other), expected(case)) > 1e9 * case.tolerance, other


def test_the_reference_sees_the_strength_of_the_first_run_after_a_resume() -> None:
    case = CASES["new_strength"]
    assert difference(expected(replace(case, second_strength=0.1)), expected(case)) > 1e9 * case.tolerance


def test_the_reference_sees_a_lost_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches differ, so a step that takes one of them twice ends elsewhere."""
    case = CASES["accumulation"]
    whole = groups(case)
    monkeypatch.setattr(
        integration_reference, "groups", lambda *_, **__: iter([[*parts[:-1], parts[0]] for parts in groups(case)])
    )
    assert all(not torch.equal(parts[0]["input_ids"], parts[-1]["input_ids"]) for parts in whole)
    lost = expected(case)
    monkeypatch.undo()
    assert difference(lost, expected(case)) > 1e9 * case.tolerance


def test_a_cell_that_is_not_refused_by_us_is_not_called_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(case: object, folder: object) -> None:
        raise KeyError("not a sentence")

    monkeypatch.setitem(TRAINERS, "plain", ("plain loop", broken))
    assert measure("plain", "accumulation") == Cell(
        "plain", "accumulation", "wrong", message="KeyError: 'not a sentence'"
    )
