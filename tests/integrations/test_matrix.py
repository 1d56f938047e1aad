"""Some cells of the matrix, live: the traps of each trainer. `record.py` makes the whole of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("lightning", reason="lightning is not installed; make integrations runs this")
pytest.importorskip("transformers", reason="transformers is not installed; make integrations runs this")
pytest.importorskip("peft", reason="peft is not installed; make integrations runs this")

from integration_cells import Cell, measure
from integration_reference import CASES, batches, by_forward_mode, by_second_pass, difference, expected, make_model
from integration_trainers import TRAINERS

TRAPS = [
    *[(trainer, "accumulation") for trainer in TRAINERS],
    *[("trainer", "tokens"), ("lightning_automatic", "scaler"), ("lightning_manual", "ddp"), ("fabric", "bf16")],
    *[("trainer", "resume"), ("accelerate", "together")],
]


@pytest.mark.parametrize("trainer,case", TRAPS, ids=lambda value: value)
def test_the_trainer_ends_where_the_plain_loop_ends(trainer: str, case: str) -> None:
    cell = measure(trainer, case)
    assert cell.status == "exact", cell


def test_tokens_are_weighted_over_accumulated_batches_and_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CASES, "tokens", replace(CASES["tokens"], world=2))
    cell = measure("trainer", "tokens")
    assert cell.status == "exact", cell


def test_the_two_algebras_of_the_reference_agree() -> None:
    """In float64, where they differ by rounding only."""
    case = CASES["lora"]
    model, (batch, *_) = make_model(case, plain=True), batches(case)
    trainable = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    forward, second = (rule(model, trainable, batch, case, 0.7) for rule in (by_forward_mode, by_second_pass))
    assert difference(forward, second) < 1e-12


def test_the_reference_sees_a_penalty_of_the_divided_loss() -> None:
    """The usual mistake at accumulation 4: the squared norm of a quarter of the loss, so a quarter of the penalty."""
    case = CASES["accumulation"]
    assert difference(expected(case, factor=0.25), expected(case)) > 1e9 * case.tolerance


def test_the_reference_sees_equal_weights_of_unequal_lengths() -> None:
    case = CASES["tokens"]
    assert difference(expected(replace(case, token_weights=False)), expected(case)) > 1e9 * case.tolerance


def test_a_cell_that_is_not_refused_by_us_is_not_called_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(case: object, folder: object) -> None:
        raise KeyError("not a sentence")

    monkeypatch.setitem(TRAINERS, "plain", ("plain loop", broken))
    assert measure("plain", "accumulation") == Cell(
        "plain", "accumulation", "wrong", message="KeyError: 'not a sentence'"
    )
