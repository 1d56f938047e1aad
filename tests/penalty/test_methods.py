"""One battery for every method: each case, each dtype, against the float64 Hessian of tests/oracles.py."""

from __future__ import annotations

import functools
import warnings

import pytest
import torch
from torch import Tensor, nn

from cases import CASES, Case, numbers
from oracles import penalised_gradient
from tacit.layers import few_rows
from tacit.penalty import METHODS, FactoredSGD, GradientPenalty

EXACT = [name for name, method in METHODS.items() if method.exact]
DTYPES = {"float64": torch.float64, "float32": torch.float32}
# Relative to the penalty's part. float64 loses 5 of 16 digits at most; float32 is the issue's own bound.
TOLERANCE = {"float64": 1e-10, "float32": 1e-4}


def deviation(found: dict[str, Tensor], truth: dict[str, Tensor]) -> float:
    """‖found − truth‖ relative to the norm of the penalty's part of the truth."""
    apart = sum((found[name].double() - truth[name]).square().sum() for name in found)
    size = sum(truth["penalty:" + name].square().sum() for name in found)
    return float((apart / size).sqrt())


@functools.cache
def truth_of(case: Case, dtype: str, strength: float, device: torch.device) -> dict[str, Tensor]:
    """The oracle's answer for the parameters as that dtype rounds them: one Hessian serves all methods."""
    return penalised_gradient(case.make().to(device, DTYPES[dtype]), case.loss, strength, seed=0)


def model_of(case: Case, dtype: str, device: torch.device) -> nn.Module:
    if case.name == "dropout" and dtype == "float32" and device.type != "cpu":
        pytest.skip("off the CPU a float32 mask may be another than the float64 mask of the oracle")
    return case.make().to(device, DTYPES[dtype])


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in model.named_parameters()
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_exact_methods_agree_with_the_hessian(case: Case, method: str, dtype: str, device: torch.device) -> None:
    model = model_of(case, dtype, device)
    truth = truth_of(case, dtype, 0.5, device)
    penalty = GradientPenalty(model, 0.5, method=method)
    torch.manual_seed(0)
    loss = penalty.backward(lambda: case.loss(model))
    assert deviation(gradients(model), truth) < TOLERANCE[dtype]
    assert float(loss) == pytest.approx(float(truth["loss"]), rel=TOLERANCE[dtype])
    assert float(penalty.last.gradient_squared_norm) == pytest.approx(float(truth["norm"]), rel=TOLERANCE[dtype])


APPROXIMATE = [("finite_difference", False), ("finite_difference", True)]  # name, central


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method,central", APPROXIMATE)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_approximate_methods_stay_within_their_stated_error(
    case: Case, method: str, dtype: str, central: bool, device: torch.device
) -> None:
    model = model_of(case, dtype, device)
    truth = truth_of(case, dtype, 0.02, device)
    penalty = GradientPenalty(model, 0.02, method=method, central=central, when_uncertain="warn")
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        penalty.backward(lambda: case.loss(model))
    assert penalty.last.error is not None
    # float64 central differences are better than their own rounding: 1e-9 is the floor of the estimate.
    assert deviation(gradients(model), truth) <= max(penalty.last.error, 1e-9)
    assert penalty.last.error < 1e-2, "an estimate that says nothing"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_factored_step_equals_sgd_on_the_penalised_gradient(case: Case, dtype: str, device: torch.device) -> None:
    model = model_of(case, dtype, device)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    truth = truth_of(case, dtype, 0.5, device)
    optimizer = FactoredSGD(model, lr=0.25, strength=0.5, weight_decay=0.1)
    torch.manual_seed(0)
    optimizer.step(lambda: case.loss(model))
    moved = {name: (before[name] - parameter.detach()) / 0.25 for name, parameter in model.named_parameters()}
    used = {name: value for name, value in moved.items() if name != "unused"}  # torch's SGD leaves it alone too
    found = {name: value - 0.1 * before[name] for name, value in used.items()}
    assert deviation(found, truth) < TOLERANCE[dtype]


@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_strength_zero_is_plain_backward_bitwise(case: Case, method: str) -> None:
    model, twin = case.make(), case.make()
    torch.manual_seed(0)
    case.loss(twin).backward()
    torch.manual_seed(0)
    GradientPenalty(model, 0.0, method=method).backward(lambda: case.loss(model))
    for ours, plain in zip(model.parameters(), twin.parameters(), strict=True):
        assert (ours.grad is None) == (plain.grad is None)
        assert ours.grad is None or torch.equal(ours.grad, plain.grad)


@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.parametrize("name", ["mlp", "batch_norm", "dropout"])
def test_state_comes_back_bitwise(name: str, method: str) -> None:
    case = next(case for case in CASES if case.name == name)
    model, twin = case.make(), case.make()
    torch.manual_seed(7)
    case.loss(twin).backward()
    after_plain = torch.get_rng_state()
    storage = [parameter.data_ptr() for parameter in model.parameters()]
    torch.manual_seed(7)
    GradientPenalty(model, 0.1, method=method, check_every=0).backward(lambda: case.loss(model))
    assert torch.equal(torch.get_rng_state(), after_plain), "the generator is where one plain pass leaves it"
    for ours, plain in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, plain)
        assert ours.requires_grad
    for ours, plain in zip(model.buffers(), twin.buffers(), strict=True):
        assert torch.equal(ours, plain), "batch norm counts each minibatch once"
    assert [parameter.data_ptr() for parameter in model.parameters()] == storage
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("method", ["finite_difference"])
def test_a_closure_that_fails_in_the_second_pass_leaves_everything_as_it_was(method: str) -> None:
    case = next(case for case in CASES if case.name == "batch_norm")
    model, twin, calls = case.make(), case.make(), []

    def failing_loss() -> Tensor:
        calls.append(torch.rand(()))  # draws, so that a lost generator state shows
        if len(calls) == 2:
            raise KeyboardInterrupt
        return case.loss(model)

    torch.manual_seed(7)
    torch.rand(())
    case.loss(twin)
    after_one_pass = torch.get_rng_state()
    torch.manual_seed(7)
    with pytest.raises(KeyboardInterrupt):
        GradientPenalty(model, 0.1, method=method).backward(failing_loss)
    assert torch.equal(torch.get_rng_state(), after_one_pass)
    for ours, plain in zip([*model.parameters(), *model.buffers()], [*twin.parameters(), *twin.buffers()], strict=True):
        assert torch.equal(ours, plain)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("method", list(METHODS))
def test_a_generator_of_the_users_own_comes_back(method: str) -> None:
    model, own = nn.Linear(3, 1).double(), torch.Generator()
    inputs = torch.ones(4, 3, dtype=torch.float64)

    def loss() -> Tensor:
        return (model(inputs) * torch.rand(4, 1, generator=own, dtype=torch.float64)).square().mean()

    own.manual_seed(1)
    loss()
    after_once = own.get_state()
    own.manual_seed(1)
    GradientPenalty(model, 0.1, method=method, generators=[own]).backward(loss)
    assert torch.equal(own.get_state(), after_once)


@pytest.mark.parametrize("method", list(METHODS))
def test_scaling_the_loss_by_c_scales_the_penalty_by_its_square(method: str) -> None:
    case = CASES[0]
    parts = {}
    for factor in (1.0, 3.0):
        model = case.make().double()
        penalty = GradientPenalty(model, 1e-4, method=method)
        penalty.backward(lambda model=model, factor=factor: factor * case.loss(model))
        parts[factor] = penalty.last.penalty
    assert float(parts[3.0] / parts[1.0]) == pytest.approx(9.0, rel=1e-12)


@pytest.mark.parametrize("method", list(METHODS))
def test_gradients_add_up_in_grad_like_backward(method: str) -> None:
    case = CASES[0]
    model = case.make().double()
    penalty = GradientPenalty(model, 0.01, method=method)
    penalty.backward(lambda: case.loss(model))
    once = {name: value.clone() for name, value in gradients(model).items()}
    penalty.backward(lambda: case.loss(model))
    for name, value in gradients(model).items():
        torch.testing.assert_close(value, 2 * once[name])


@pytest.mark.parametrize("method", list(METHODS))
def test_parameter_hooks_see_the_penalised_gradient(method: str) -> None:
    case = CASES[0]
    model = case.make().double()
    seen: list[Tensor] = []
    weight = next(model.parameters())
    weight.register_hook(lambda gradient: seen.append(gradient.clone()))
    GradientPenalty(model, 0.01, method=method).backward(lambda: case.loss(model))
    torch.testing.assert_close(seen[-1], weight.grad)


def test_a_linear_layer_with_few_rows_uses_the_gram_form() -> None:
    case = next(case for case in CASES if case.name == "wide")
    model = case.make()
    assert GradientPenalty(model, 1.0).plan(lambda: case.loss(model))["2.weight"] == "gram"


def test_a_weight_that_is_also_used_out_of_sight_uses_its_own_gradient() -> None:
    case = next(case for case in CASES if case.name == "hidden_use")
    model = case.make()
    assert GradientPenalty(model, 1.0).plan(lambda: case.loss(model))["enter.weight"] == "gradient"


@pytest.mark.parametrize("rows", [1, 16, 128, 129])
@pytest.mark.parametrize("shape", [(1024, 1024), (1032, 2048), (1030, 2048), (64, 64)])
def test_products_cut_into_slabs_are_the_same_products(rows: int, shape: tuple[int, int]) -> None:
    weight, bias = numbers(*shape, seed=1), numbers(shape[0], seed=2)
    inputs, gradients = numbers(rows, shape[1], seed=3), numbers(rows, shape[0], seed=4)
    # float64 sums of 2048 terms of size one: 1e-10 leaves two digits beyond rounding.
    torch.testing.assert_close(few_rows.linear(inputs, weight, bias), inputs @ weight.T + bias, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(few_rows.product(gradients, weight), gradients @ weight, rtol=1e-10, atol=1e-10)
