"""GradScalers and float16 around a penalised loss: errors are refused, what is the scaler's is left to the scaler."""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from cases import labels, numbers
from tacit import FactoredSGD, GradientPenalty, InputError
from tacit.penalty import METHODS
from tacit.penalty.surroundings.loss_scaling import _watched

X, Y = numbers(8, 12, seed=1).float(), labels(8, 3, 2)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 3))


def in_float16(model: nn.Module, inputs: Tensor = X, targets: Tensor = Y) -> Tensor:
    with torch.autocast("cpu", torch.float16):
        outputs = model(inputs)
    return F.cross_entropy(outputs.float(), targets)


# --- A scale inside the closure ---

SCALED: dict[str, Callable[[GradScaler, Tensor], Tensor]] = {
    "scaled": lambda scaler, loss: scaler.scale(loss),
    "then divided": lambda scaler, loss: scaler.scale(loss) / 4,
    "times a number": lambda scaler, loss: 0.5 * scaler.scale(loss),
    "one of two terms": lambda scaler, loss: loss + scaler.scale(loss),
    "a mean of several": lambda scaler, loss: torch.stack([scaler.scale(loss), scaler.scale(2 * loss)]).mean(),
    "rounded and reshaped": lambda scaler, loss: scaler.scale(loss).double().reshape(1),
}


@pytest.mark.parametrize("known", [True, False], ids=["scaler=", "no scaler="])
@pytest.mark.parametrize("way", SCALED.values(), ids=SCALED)
def test_a_loss_that_is_scaled_inside_the_closure_is_refused(
    way: Callable[[GradScaler, Tensor], Tensor], known: bool
) -> None:
    model, scaler = net(), GradScaler("cpu")
    for call in ("backward", "loss"):
        penalty = GradientPenalty(model, 0.1)
        with pytest.raises(InputError, match=r"scaler\.scale has multiplied.*scaler="):
            getattr(penalty, call)(lambda: way(scaler, F.cross_entropy(model(X), Y)), scaler=scaler if known else None)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_each_loss_of_a_vector_that_is_scaled_inside_the_closure_is_refused() -> None:
    model, scaler = net(), GradScaler("cpu")
    with pytest.raises(InputError, match=r"scaler\.scale has multiplied"):
        GradientPenalty(model, 0.1).backward(
            lambda: scaler.scale(F.cross_entropy(model(X), Y, reduction="none")).mean()
        )


@pytest.mark.parametrize("strength", [0.0, 0.1])
@pytest.mark.parametrize("size", [None, 4])
def test_factored_sgd_and_micro_batches_refuse_it_too(size: int | None, strength: float) -> None:
    model, scaler = net(), GradScaler("cpu")
    closure = lambda x, y: scaler.scale(F.cross_entropy(model(x), y))  # noqa: E731
    with pytest.raises(InputError, match=r"scaler\.scale has multiplied.*FactoredSGD takes no scaler"):
        FactoredSGD(model, lr=0.1, strength=strength, micro_batch_size=size).step(closure, X, Y)
    with pytest.raises(InputError, match=r"scaler\.scale has multiplied"):
        GradientPenalty(model, strength, micro_batch_size=size, method="gram").backward(closure, X, Y)


def test_a_scale_that_begins_after_the_first_step_is_refused_at_the_next_check() -> None:
    model, scaler = net(), GradScaler("cpu")
    penalty = GradientPenalty(model, 0.1, check_every=2)
    for _ in range(2):
        penalty.backward(lambda: F.cross_entropy(model(X), Y))
    with pytest.raises(InputError, match=r"scaler\.scale has multiplied"):
        penalty.backward(lambda: scaler.scale(F.cross_entropy(model(X), Y)))


@pytest.mark.parametrize("factor", [torch.tensor(1024.0), torch.tensor([2.0]), 1024.0])
def test_other_factors_are_nobody_elses_scale(factor: Any) -> None:
    """One has the value of the scale: values do not tell."""
    model, scaler = net(), GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.zeros(()))
    GradientPenalty(model, 1e-9).backward(lambda: (factor * F.cross_entropy(model(X), Y)).sum())


def test_a_loss_made_in_a_checkpoint_is_not_made_again_to_look_at_its_factors() -> None:
    model, runs = net(), []

    def last(outputs: Tensor) -> Tensor:
        runs.append(1)
        return torch.tensor(0.5) * F.cross_entropy(outputs, Y)

    checked, unchecked = GradientPenalty(model, 0.1, check_every=1), GradientPenalty(model, 0.1, check_every=0)
    counts = []
    for penalty in (checked, checked, unchecked, unchecked):
        runs.clear()
        penalty.backward(lambda: checkpoint(last, model(X), use_reentrant=False))
        counts.append(len(runs))
    assert len(set(counts)) == 1


# --- A scaler that was not handed over ---


def test_a_scaler_that_divides_gradients_which_it_never_multiplied_is_refused_before_the_step() -> None:
    model, other = net(), nn.Linear(2, 1)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), GradScaler("cpu")
    scaler.scale(other(torch.ones(2)).sum()).backward()  # another loss, as in a GAN: torch itself is content
    penalty = GradientPenalty(model, 0.1)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    penalty.backward(lambda: F.cross_entropy(model(X), Y))
    with pytest.raises(InputError, match=r"GradScaler divided gradients.*penalty\.backward\(closure, scaler=scaler\)"):
        scaler.step(optimizer)
    assert all(torch.equal(was, now) for was, now in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("way", ["scaler=", "loss", "no scaler", "a scaler of another optimizer"])
def test_steps_with_the_right_scaler_or_none_are_taken(way: str) -> None:
    model, other = net(), nn.Linear(2, 1)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), GradScaler("cpu")
    others = torch.optim.SGD(other.parameters(), lr=0.1)
    scaler.scale(other(torch.ones(2)).sum()).backward()
    penalty, closure = GradientPenalty(model, 0.1), lambda: F.cross_entropy(model(X), Y)
    before = model[0].weight.detach().clone()
    if way == "loss":
        scaler.scale(penalty.loss(closure)).backward()
    else:
        penalty.backward(closure, scaler=scaler if way == "scaler=" else None)
    if way in ("scaler=", "loss"):
        scaler.step(optimizer)
    else:
        scaler.step(others)
        optimizer.step()
    scaler.update()
    assert not torch.equal(before, model[0].weight)


def test_nothing_is_left_of_a_penalty_that_never_met_an_optimizer() -> None:
    gc.collect()
    before = len(_watched)
    model = net()
    penalty = GradientPenalty(model, 0.1)
    penalty.backward(lambda: F.cross_entropy(model(X), Y))
    assert len(_watched) == before + 1
    del penalty
    gc.collect()
    assert len(_watched) == before


def test_each_of_two_penalties_and_their_optimizers_takes_its_step() -> None:
    """torch cannot remove a hook while it calls the hooks, with "OrderedDict mutated during iteration"."""
    models = [net(), net()]
    penalties = [GradientPenalty(model, 0.1) for model in models]
    for model, penalty in zip(models, penalties, strict=True):
        penalty.backward(lambda model=model: F.cross_entropy(model(X), Y))  # type: ignore[misc]
    for model in models:
        before = model[0].weight.detach().clone()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        assert not torch.equal(before, model[0].weight)


# --- float16 without a scaler ---


def warnings_of(run: Callable[[], Any], caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="tacit"):
        run()
    return [record.message for record in caplog.records if "float16" in record.message]


@pytest.mark.parametrize("strength", [0.0, 1e-3])
@pytest.mark.parametrize("method", ["gram", "double_backward", "finite_difference"])
def test_a_scale_after_passes_in_float16_warns_once(
    method: str, strength: float, caplog: pytest.LogCaptureFixture
) -> None:
    model, scaler = net(), GradScaler("cpu", init_scale=512.0)
    penalty = GradientPenalty(model, strength, method=method)
    step = lambda: scaler.scale(penalty.loss(lambda: in_float16(model))).backward()  # noqa: E731
    (said,) = warnings_of(step, caplog)
    assert "by 512" in said
    assert "scaler.scale(penalty.loss(closure, scaler=scaler))" in said
    assert warnings_of(step, caplog) == []


def test_it_warns_for_parameters_in_float16_and_for_micro_batches(caplog: pytest.LogCaptureFixture) -> None:
    half, scaler = net().half(), GradScaler("cpu", init_scale=512.0)
    penalty = GradientPenalty(half, 1e-3)
    loss = lambda: F.cross_entropy(half(X.half()).float(), Y)  # noqa: E731
    assert len(warnings_of(lambda: scaler.scale(penalty.loss(loss)).backward(), caplog)) == 1
    model = net()
    many = GradientPenalty(model, 1e-3, micro_batch_size=4, method="gram")
    step = lambda: scaler.scale(many.loss(lambda x, y: in_float16(model, x, y), X, Y)).backward()  # noqa: E731
    assert len(warnings_of(step, caplog)) == 1


@pytest.mark.parametrize("case", ["scaler=", "factor 1", "float32", "bfloat16"])
def test_it_does_not_warn_where_nothing_is_lost(case: str, caplog: pytest.LogCaptureFixture) -> None:
    model, scaler = net(), GradScaler("cpu", init_scale=512.0)
    penalty = GradientPenalty(model, 1e-3)

    def closure() -> Tensor:
        if case in ("scaler=", "factor 1"):
            return in_float16(model)
        with torch.autocast("cpu", torch.bfloat16, enabled=case == "bfloat16"):
            return F.cross_entropy(model(X), Y)

    def step() -> None:
        loss = penalty.loss(closure, scaler=scaler if case == "scaler=" else None)
        (loss if case == "factor 1" else scaler.scale(loss)).backward()

    assert warnings_of(step, caplog) == []


# --- A loss that is not finite ---


def overflowing(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Logits beyond float16's 65504, as after a bad step: the loss is nan."""
    with torch.autocast("cpu", torch.float16):
        outputs = model(inputs) * 6e4
    return F.cross_entropy((outputs * 6e4).float(), targets)


def finite(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.float16):
        outputs = model(inputs)
    return F.cross_entropy(outputs.float(), targets)


@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("strength", [0.0, 1e-3])
@pytest.mark.parametrize("as_tensor", [False, True], ids=["backward", "loss"])
@pytest.mark.parametrize("method", list(METHODS))
def test_a_loss_that_is_not_finite_is_left_to_the_scaler(
    method: str, as_tensor: bool, strength: float, size: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The scaler skips the step and halves its scale, as without a penalty; later steps are as if it had not been."""
    kept = []
    for overflows in (True, False):
        model = net()
        penalty = GradientPenalty(model, strength, method=method, micro_batch_size=size)
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), GradScaler("cpu", init_scale=1024.0)
        for loss in ([overflowing] if overflows else []) + [finite] * 2:
            closure = lambda x, y, loss=loss, model=model: loss(model, x, y)  # noqa: E731
            optimizer.zero_grad()
            before = model[0].weight.detach().clone()
            if as_tensor:
                scaler.scale(penalty.loss(closure, X, Y, scaler=scaler)).backward()
            else:
                penalty.backward(closure, X, Y, scaler=scaler)
            scaler.step(optimizer)
            scaler.update(1024.0 if loss is finite else None)
            if loss is overflowing:
                assert torch.equal(before, model[0].weight)
                assert scaler.get_scale() == 512.0
                assert not math.isfinite(penalty.last.loss)
                scaler.update(1024.0)
        assert math.isfinite(penalty.last.loss)
        assert math.isfinite(penalty.last.penalty)
        kept.append([parameter.detach().clone() for parameter in model.parameters()])
        if method == "gram" and size and strength:
            assert penalty._runner.micro_batches.in_one_pass
    for after_overflow, never in zip(*kept, strict=True):
        torch.testing.assert_close(after_overflow, never, rtol=0, atol=0)


def test_an_approximation_estimates_its_error_at_the_step_after_one_that_overflowed() -> None:
    model, scaler = net(), GradScaler("cpu", init_scale=1024.0)
    penalty = GradientPenalty(model, 1e-3, method="finite_difference", when_uncertain="warn")
    penalty.backward(lambda: overflowing(model, X, Y), scaler=scaler)
    assert penalty.last.error is None
    penalty.backward(lambda: F.cross_entropy(model(X), Y), scaler=scaler)
    assert penalty.last.error is not None


def test_a_disabled_scaler_leaves_the_error_as_it_is() -> None:
    model, scaler = net(), GradScaler("cpu", enabled=False)
    with pytest.raises(InputError, match=r"expected a finite number.*scaler="):
        GradientPenalty(model, 0.1).backward(lambda: overflowing(model, X, Y), scaler=scaler)
    with pytest.raises(InputError, match="expected a finite number"):
        FactoredSGD(model, lr=0.1, strength=0.1).step(lambda: overflowing(model, X, Y))


# --- Grad mode ---


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_backward_without_grad_mode_is_refused_as_torch_refuses_it(mode: Callable[[], Any]) -> None:
    model = net()
    penalty = GradientPenalty(model, 0.1)
    with mode(), pytest.raises(RuntimeError, match="does not require grad"):
        F.cross_entropy(model(X), Y).backward()
    with mode(), pytest.raises(InputError, match=r"outside of torch\.no_grad"):
        penalty.backward(lambda: F.cross_entropy(model(X), Y))
    assert penalty.steps == 0
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_factored_step_may_be_taken_under_no_grad_as_optimizers_are() -> None:
    steps = []
    for quiet in (True, False):
        model = net()
        with torch.set_grad_enabled(not quiet):
            FactoredSGD(model, lr=0.1, strength=0.1).step(lambda model=model: F.cross_entropy(model(X), Y))
        steps.append(model[0].weight.detach())
    assert torch.equal(*steps)
