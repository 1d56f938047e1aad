"""Numbers that need a word: a noise scale above N, a squared norm below zero."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import tacit
from tacit.diagnostics.recorder import cheap_row


def test_a_noise_scale_above_the_number_of_examples_is_said_so() -> None:
    """A model at its optimum, almost: the full gradient is a hundredth of those of examples."""
    inputs = torch.ones(16, 1, dtype=torch.float64)
    targets = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(8)[:, None] + 0.01
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    seen = tacit.measure(model, F.mse_loss, (inputs, targets), batch_size=4)
    assert seen.noise_scale.value > 1000
    assert str(seen).startswith("The noise scale 1e+04 is above N = 16: at all batch sizes below N")


def test_a_squared_norm_below_zero_is_explained() -> None:
    """The same in a sample of pairs that cancel exactly: ‖ḡ‖² is zero, and the variance of ḡ is taken off."""
    draws = torch.Generator().manual_seed(0)
    inputs = torch.ones(4000, 1, dtype=torch.float64)
    targets = torch.randn(2000, 1, generator=draws, dtype=torch.float64)
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    below = []
    for seed in range(8):
        data = (inputs, torch.cat([targets, -targets]))
        seen = tacit.measure(model, F.mse_loss, data, batch_size=4, sample=64, seed=seed)
        said = [note for note in seen.notes if "can come out below zero" in note]
        assert bool(said) == (seen.full_gradient_squared_norm.value < 0)
        below += said
    assert below  # with a full gradient of zero the estimate is below it about every second time


def test_a_cheap_row_explains_a_squared_norm_below_zero() -> None:
    assert cheap_row([1.0, 1.0], 0.1, batch_size=4, train_size=64)["full_gradient_squared_norm"] < 0
    assert "widen it" in cheap_row([1.0, 1.0], 0.1, batch_size=4, train_size=64)["note"]
    assert "note" not in cheap_row([1.0, 1.0], 0.9, batch_size=4, train_size=64)
