"""The noise scale of norm layers: exact per-example gradients, unbiased windows, intervals, and what is refused."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import tacit
from tacit.diagnostics.norm_layers import NormLayerGradients, step_moments

EXAMPLES, TOKENS, WIDTH, CLASSES = 6, 5, 8, 3


class Block(nn.Module):
    """One attention block with two norms of the given kind, then a mean over tokens."""

    def __init__(self, norm: Any, *, rows: bool = False) -> None:
        super().__init__()
        self.first, self.second = norm(), norm()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.mix, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.rows = rows  # whether the second norm sees a matrix of examples x tokens

    def forward(self, x: Tensor) -> Tensor:
        normed = self.first(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        inner = self.second(x.flatten(0, 1)).reshape(x.shape) if self.rows else self.second(x)
        return self.out((x + torch.tanh(self.mix(inner))).mean(1))


def channels_first() -> nn.Module:
    return nn.Sequential(nn.Conv1d(TOKENS, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(24, CLASSES))


def used_twice() -> nn.Module:
    norm = nn.LayerNorm(WIDTH)
    layers = [norm, nn.Linear(WIDTH, WIDTH), nn.Tanh(), norm, nn.Flatten(), nn.Linear(WIDTH * TOKENS, CLASSES)]
    return nn.Sequential(*layers)


class Recomputed(Block):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


class CalledByKeyword(Block):
    def forward(self, x: Tensor) -> Tensor:
        word = "x" if isinstance(self.first, nn.RMSNorm) else "input"
        return self.out(torch.tanh(self.mix(self.second(**{word: x}) + self.first(**{word: x}))).mean(1))


MODELS = {
    "layer norm": lambda: Block(lambda: nn.LayerNorm(WIDTH)),
    "layer norm over two axes": lambda: Block(lambda: nn.LayerNorm((TOKENS, WIDTH))),
    "layer norm on a matrix of tokens": lambda: Block(lambda: nn.LayerNorm(WIDTH), rows=True),
    "layer norm without bias": lambda: Block(lambda: nn.LayerNorm(WIDTH, bias=False)),
    "rms norm": lambda: Block(lambda: nn.RMSNorm(WIDTH)),
    "group norm": channels_first,
    "one layer used twice": used_twice,
    "layer norm by keyword": lambda: CalledByKeyword(lambda: nn.LayerNorm(WIDTH)),
    "rms norm by keyword": lambda: CalledByKeyword(lambda: nn.RMSNorm(WIDTH)),
    "activation checkpointing": lambda: Recomputed(lambda: nn.LayerNorm(WIDTH)),
}


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = MODELS[name]().double()
    for parameter in model.parameters():  # norms start at 1 and 0, which hides factors
        nn.init.normal_(parameter, std=0.5)
    return model


def batch(count: int = EXAMPLES, seed: int = 1) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, TOKENS, WIDTH, generator=draws, dtype=torch.float64)
    return inputs, torch.randint(CLASSES, (count,), generator=draws)


def norm_parameters(model: nn.Module) -> list[Tensor]:
    kinds = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)
    return [each for layer in model.modules() if isinstance(layer, kinds) for each in layer.parameters(recurse=False)]


def one_by_one(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """∇Cⱼ of the norm parameters, a backward pass for each example."""
    rows = []
    for x, y in zip(inputs.split(1), targets.split(1), strict=True):
        found = torch.autograd.grad(F.cross_entropy(model(x), y), norm_parameters(model))
        rows.append(torch.cat([each.reshape(-1) for each in found]))
    return torch.stack(rows)


@pytest.mark.parametrize("name", MODELS)
def test_per_example_gradients_of_norm_layers_are_those_of_a_loop(name: str) -> None:
    model, (inputs, targets) = made(name), batch()
    expected = one_by_one(model, inputs, targets)
    watched = NormLayerGradients(model)
    watched.open()
    F.cross_entropy(model(inputs), targets).backward()
    found = EXAMPLES * watched.take(EXAMPLES)  # parts of the gradient of a mean
    watched.close()
    # Layers come in the order of the backward pass, so squared norms are compared, and products between examples.
    assert torch.allclose(found @ found.T, expected @ expected.T, rtol=1e-10, atol=1e-14)


def test_micro_batches_of_one_step_are_examples_one_after_the_other() -> None:
    model, (inputs, targets) = made("layer norm"), batch()
    watched, found = NormLayerGradients(model), []
    for size in (EXAMPLES, 2):
        watched.open()
        for x, y in zip(inputs.split(size), targets.split(size), strict=True):
            (F.cross_entropy(model(x), y) * len(x) / EXAMPLES).backward()
        found.append(watched.take(EXAMPLES))
    assert torch.allclose(found[0], found[1], rtol=1e-10, atol=1e-14)


def test_moments_of_one_step_have_no_bias_over_all_minibatches() -> None:
    """All 15 minibatches of 4 out of 6 examples: the mean of both estimates is the exact number."""
    draws = torch.Generator().manual_seed(3)
    each = torch.randn(6, 4, generator=draws, dtype=torch.float64) + 0.3
    size, found = 4, []
    for chosen in torch.combinations(torch.arange(6), size):
        found.append(step_moments(each[chosen] / size, train_size=6))
    squared_norm, variance = torch.tensor(found, dtype=torch.float64).mean(0)
    assert float(squared_norm) == pytest.approx(float(each.mean(0).square().sum()), rel=1e-12)
    assert float(variance) == pytest.approx(float(each.var(0, correction=1).sum()), rel=1e-12)


def recorded(model: nn.Module, inputs: Tensor, targets: Tensor, *, windows: int) -> list[dict[str, Any]]:
    recorder = tacit.Recorder(model, batch_size=8, train_size=len(inputs), every=8, window=8, layers="norms")
    draws = torch.Generator().manual_seed(0)
    for _ in range(windows):
        for chosen in torch.randperm(len(inputs), generator=draws)[:64].split(8):
            model.zero_grad()
            F.cross_entropy(model(inputs[chosen]), targets[chosen]).backward()
            recorder.after_backward()
    return recorder.rows


def test_intervals_of_windows_cover_the_noise_scale_of_the_norm_parameters() -> None:
    """200 windows at fixed weights; 95 % asked for. Eight steps a window are few, so 90 to 99 % is accepted."""
    model, (inputs, targets) = made("layer norm"), batch(256)
    each = one_by_one(model, inputs, targets)
    exact = float((each - each.mean(0)).square().sum() / len(each) / each.mean(0).square().sum())
    rows = recorded(model, inputs, targets, windows=200)
    inside = [row["noise_scale_low"] <= exact <= (row["noise_scale_high"] or float("inf")) for row in rows]
    assert len(rows) == 200
    assert rows[0]["kind"] == "norms"
    assert 0.90 <= sum(inside) / 200 <= 0.99


def test_training_is_bitwise_the_same_and_hooks_are_gone_after_the_window() -> None:
    weights = []
    for record in (False, True):
        model, (inputs, targets) = made("layer norm"), batch(32)
        recorder = tacit.Recorder(model, batch_size=8, train_size=32, every=5, window=3, layers="norms")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(8):
            chosen = slice(8 * (step % 4), 8 * (step % 4) + 8)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[chosen]), targets[chosen]).backward()
            if record:
                recorder.after_backward()
            optimizer.step()
        weights.append([parameter.detach().clone() for parameter in model.parameters()])
        if record:
            assert [row["step"] for row in recorder.rows] == [2, 7]
            assert not any(layer._forward_hooks for layer in model.modules())
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


@pytest.mark.parametrize("options", [{"method": "double_backward"}, {"micro_batch_size": 4}])
def test_penalised_steps_and_full_measurements_are_left_out_of_the_window(options: dict[str, Any]) -> None:
    """The rows are those of a run that records the same plain steps and has neither penalty nor measurement."""
    found = []
    for extra in (False, True):
        model, (inputs, targets) = made("layer norm"), batch(32)
        full = {"full": 3, "loss_fn": F.cross_entropy, "dataset": (inputs, targets)} if extra else {}
        recorder = tacit.Recorder(model, batch_size=8, train_size=32, every=100, window=3, layers="norms", **full)
        penalty = tacit.GradientPenalty(model, 0.1, every=2, **options)
        for step in range(6):
            x, y = inputs[8 * (step % 4) :][:8], targets[8 * (step % 4) :][:8]
            if step % 2 == 0 and not extra:
                continue
            model.zero_grad()
            if extra:
                penalty.backward(lambda x, y, model=model: F.cross_entropy(model(x), y), x, y)
            else:
                F.cross_entropy(model(x), y).backward()
            recorder.after_backward()
        found.append([row["noise_scale"] for row in recorder.rows if row["kind"] == "norms"])
    assert len(found[0]) == 1
    assert found[1] == pytest.approx(found[0], rel=1e-9)


def test_a_window_that_is_open_survives_saving_and_loading() -> None:
    rows = []
    for resumed in (False, True):
        model, (inputs, targets) = made("rms norm"), batch(32)
        recorder = tacit.Recorder(model, batch_size=8, train_size=32, every=100, window=4, layers="norms")
        for step in range(4):
            if resumed and step == 2:
                state = recorder.state_dict()
                recorder = tacit.Recorder(model, batch_size=8, train_size=32, every=100, window=4, layers="norms")
                recorder.load_state_dict(state)
            model.zero_grad()
            F.cross_entropy(model(inputs[8 * step :][:8]), targets[8 * step :][:8]).backward()
            recorder.after_backward()
        rows.append(recorder.rows)
    assert rows[0] == rows[1]
    assert len(rows[0]) == 1


def test_a_scaled_loss_scales_both_moments_and_leaves_the_noise_scale() -> None:
    """GradScaler multiplies the loss; unscaling `.grad` afterwards does not reach what the hooks read."""
    found = []
    for scale in (1.0, 1024.0):
        model, (inputs, targets) = made("layer norm"), batch(32)
        recorder = tacit.Recorder(model, batch_size=8, train_size=32, every=100, window=4, layers="norms")
        for x, y in zip(inputs.split(8), targets.split(8), strict=True):
            model.zero_grad()
            (scale * F.cross_entropy(model(x), y)).backward()
            for parameter in model.parameters():
                parameter.grad /= scale
            recorder.after_backward()
        found.append(recorder.rows[0])
    for key, factor in (("gradient_covariance_trace", 1024**2), ("noise_scale", 1), ("noise_scale_low", 1)):
        assert found[1][key] == pytest.approx(factor * found[0][key], rel=1e-9)


def stored_and_loaded(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("other", [copy.deepcopy, stored_and_loaded])
def test_passes_of_a_copy_are_not_those_of_the_recorded_model(other: Any) -> None:
    """An average of weights is a deep copy, a checkpoint may be the whole model; both are made while hooks are on."""
    model, (inputs, targets) = made("layer norm"), batch()
    watched = NormLayerGradients(model)
    watched.open()
    F.cross_entropy(other(model)(inputs), targets).backward()
    with pytest.raises(tacit.InputError, match="no norm layer was seen"):
        watched.take(EXAMPLES)
    F.cross_entropy(model(inputs), targets).backward()
    assert len(watched.take(EXAMPLES)) == EXAMPLES


def test_a_model_without_norm_layers_is_refused_in_one_sentence() -> None:
    with pytest.raises(tacit.InputError, match=r"has no LayerNorm, RMSNorm or GroupNorm .* layers='all'"):
        tacit.Recorder(nn.Linear(2, 1), batch_size=4, train_size=8, layers="norms")
    frozen = nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 1))
    frozen[0].requires_grad_(False)
    with pytest.raises(tacit.InputError, match="trained parameters"):
        tacit.Recorder(frozen, batch_size=4, train_size=8, layers="norms")


def test_tokens_before_examples_are_refused() -> None:
    model, (inputs, targets) = made("layer norm"), batch()
    recorder = tacit.Recorder(model, batch_size=4, train_size=EXAMPLES, window=2, layers="norms")
    F.cross_entropy(model(inputs), targets).backward()
    with pytest.raises(tacit.InputError, match=r"saw 6 rows in a step; expected batch_size=4"):
        recorder.after_backward()
