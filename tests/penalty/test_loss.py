"""`penalty.loss` is a tensor with the value Ĉ whose backward hands out s times the gradient of `penalty.backward`."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cases import CASES, Case, labels, numbers, spread, wide_net
from tacit import GradientPenalty, InputError
from tacit.penalty import METHODS

STRENGTH = 1e-2


def model_and_batch() -> tuple[nn.Module, Tensor, Tensor]:
    return spread(wide_net()).double(), numbers(8, 12, seed=1), labels(8, 3, 2)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def assert_bitwise(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert expected
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def both(model: nn.Module, step: Callable[[GradientPenalty, nn.Module, bool], Tensor], **options: object) -> None:
    """The step by `backward` on a copy and by `loss` on the model: same bits in gradients, loss and record."""
    twin = copy.deepcopy(model)
    by_backward, by_loss = (GradientPenalty(m, STRENGTH, **options) for m in (twin, model))  # type: ignore[arg-type]
    torch.manual_seed(0)
    expected = step(by_backward, twin, False)
    torch.manual_seed(0)
    found = step(by_loss, model, True)
    assert torch.equal(found.detach(), expected)
    assert_bitwise(gradients(model), gradients(twin))
    assert by_loss.steps == by_backward.steps
    assert torch.equal(by_loss.last.penalty, by_backward.last.penalty)


@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_backward_of_the_loss_is_the_penalised_backward_bitwise(case: Case, method: str) -> None:
    def step(penalty: GradientPenalty, model: nn.Module, as_tensor: bool) -> Tensor:
        if not as_tensor:
            return penalty.backward(lambda: case.loss(model))
        loss = penalty.loss(lambda: case.loss(model))
        loss.backward()
        return loss

    both(case.make().double(), step, method=method, check_every=0)


@pytest.mark.parametrize("method", list(METHODS))
def test_micro_batches_onto_an_existing_gradient_are_bitwise_the_same(method: str) -> None:
    model, inputs, targets = model_and_batch()

    def step(penalty: GradientPenalty, model: nn.Module, as_tensor: bool) -> Tensor:
        model(inputs).square().sum().backward()

        def closure(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(model(x), y)

        if not as_tensor:
            return penalty.backward(closure, inputs, targets)
        loss = penalty.loss(closure, inputs, targets)
        loss.backward()
        return loss

    both(model, step, method=method, check_every=0, micro_batch_size=2)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "gram"])
def test_two_views_and_skipped_steps_are_bitwise_the_same(method: str) -> None:
    model, inputs, targets = model_and_batch()
    other = inputs + 0.3 * numbers(8, 12, seed=9)

    def step(penalty: GradientPenalty, model: nn.Module, as_tensor: bool) -> Tensor:
        def view(x: Tensor) -> Callable[[], Tensor]:
            return lambda: F.cross_entropy(model(x), targets)

        for _ in range(3):  # penalised, plain, penalised
            if as_tensor:
                loss = penalty.loss(view(inputs), second_view=view(other))
                loss.backward()
            else:
                loss = penalty.backward(view(inputs), second_view=view(other))
        return loss

    both(model, step, method=method, check_every=0, every=2)


@pytest.mark.parametrize("method", list(METHODS))
def test_whatever_the_loss_is_multiplied_with_multiplies_the_gradient(method: str) -> None:
    """A trainer that accumulates over 4 batches divides by 4: a squared norm of the divided loss would lose 16."""
    model, inputs, targets = model_and_batch()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    twin = copy.deepcopy(model)
    by_backward, by_loss = (GradientPenalty(m, STRENGTH, method=method, check_every=0) for m in (twin, model))
    for x, y in zip(inputs.split(2), targets.split(2), strict=True):
        by_backward.backward(lambda x=x, y=y: F.cross_entropy(twin(x), y), weight=0.25)
        scaler.scale(by_loss.loss(lambda x=x, y=y: F.cross_entropy(model(x), y)) / 4).backward()
    # 1024 and 1/4 are powers of two: multiplying with them rounds nothing.
    assert_bitwise({name: value / 1024 for name, value in gradients(model).items()}, gradients(twin))


def test_with_the_scaler_the_passes_inside_run_scaled_and_the_loss_does_not() -> None:
    model = nn.Linear(3, 1).double()
    inputs, seen = numbers(4, 3, seed=1), []

    def closure() -> Tensor:
        loss = model(inputs).square().mean()
        loss.register_hook(lambda gradient: seen.append(float(gradient)))
        return loss

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    penalty = GradientPenalty(model, STRENGTH, method="double_backward")
    loss = penalty.loss(closure, scaler=scaler)
    assert 1024.0 in seen
    loss.backward()
    found = {name: value.clone() for name, value in gradients(model).items()}
    model.zero_grad()
    penalty.backward(closure)
    assert_bitwise(found, gradients(model))


def test_under_no_grad_it_is_the_plain_loss_and_no_step() -> None:
    model, inputs, targets = model_and_batch()
    penalty = GradientPenalty(model, STRENGTH, micro_batch_size=3)  # 8 is no multiple: evaluation does not care
    with torch.no_grad():
        found = penalty.loss(lambda x, y: F.cross_entropy(model(x), y), inputs, targets)
    assert torch.equal(found, F.cross_entropy(model(inputs), targets))
    assert not found.requires_grad
    assert (penalty.steps, penalty.last, gradients(model)) == (0, None, {})


def test_a_loss_that_nobody_differentiates_leaves_no_gradient() -> None:
    model, inputs, targets = model_and_batch()
    penalty = GradientPenalty(model, STRENGTH)
    penalty.loss(lambda: F.cross_entropy(model(inputs), targets))
    assert (penalty.steps, gradients(model)) == (1, {})


def test_a_second_backward_is_torchs_own_error_and_works_with_retain_graph() -> None:
    model, inputs, targets = model_and_batch()
    loss = GradientPenalty(model, STRENGTH).loss(lambda: F.cross_entropy(model(inputs), targets))
    loss.backward(retain_graph=True)
    once = {name: value.clone() for name, value in gradients(model).items()}
    loss.backward()
    assert_bitwise(gradients(model), {name: 2 * value for name, value in once.items()})
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_create_graph_is_refused() -> None:
    model, inputs, targets = model_and_batch()
    loss = GradientPenalty(model, STRENGTH).loss(lambda: F.cross_entropy(model(inputs), targets))
    with pytest.raises(InputError, match=r"create_graph=True.*expected create_graph=False"):
        loss.backward(create_graph=True)


@pytest.mark.parametrize("method", list(METHODS))
def test_inputs_and_an_encoder_outside_the_model_receive_their_gradient(method: str) -> None:
    model, inputs, targets = model_and_batch()
    encoder = nn.Linear(12, 12).double()
    found = []
    for as_tensor in (False, True):
        model.zero_grad()
        encoder.zero_grad()
        leaf = inputs.clone().requires_grad_()
        penalty = GradientPenalty(model, STRENGTH, method=method, check_every=0)

        def closure(leaf: Tensor = leaf) -> Tensor:
            return F.cross_entropy(model(torch.tanh(encoder(leaf))), targets)

        if as_tensor:
            penalty.loss(closure).backward()
        else:
            penalty.backward(closure)
        found.append({**gradients(model), **{f"encoder {k}": v for k, v in gradients(encoder).items()}, "x": leaf.grad})
        found[-1] = {name: value.clone() for name, value in found[-1].items()}
    assert len(found[0]) == 6 + 2 + 1
    assert_bitwise(found[1], found[0])


@pytest.mark.parametrize("as_tensor", [False, True])
def test_hooks_on_parameters_fire_once_however_many_micro_batches_there_are(as_tensor: bool) -> None:
    model, inputs, targets = model_and_batch()
    calls = {"before": 0, "after": 0}

    def count(where: str) -> None:
        calls[where] += 1

    model[0].weight.register_hook(lambda gradient: count("before"))
    model[0].weight.register_post_accumulate_grad_hook(lambda parameter: count("after"))
    penalty = GradientPenalty(model, STRENGTH, micro_batch_size=2)

    def closure(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    if as_tensor:
        penalty.loss(closure, inputs, targets).backward()
    else:
        penalty.backward(closure, inputs, targets)
    assert calls == {"before": 1, "after": 1}


def test_a_loss_in_half_precision_keeps_its_dtype() -> None:
    model, inputs = nn.Linear(3, 1).bfloat16(), numbers(4, 3, seed=1).bfloat16()
    loss = GradientPenalty(model, STRENGTH).loss(lambda: model(inputs).square().mean())
    assert loss.dtype == torch.bfloat16
    loss.backward()
    assert model.weight.grad.dtype == torch.bfloat16
