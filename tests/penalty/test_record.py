"""The numbers that every penalised step has anyway: batch sharpness, the penalty's part, a row of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cases import CASES, Case, labels, numbers, spread, wide_net
from oracles import penalised_gradient
from tacit import FactoredSGD, GradientPenalty
from tacit.penalty import METHODS

STRENGTH = 0.01


def truth(model: nn.Module, loss: object, *, skip: tuple[str, ...] = ()) -> tuple[float, float]:
    """⟨g, Hg⟩/‖g‖² and ‖(λ/2)Hg‖ over the parameters in the norm, by an explicit Hessian."""
    found = penalised_gradient(model, loss, STRENGTH, skip=skip)  # type: ignore[arg-type]
    names = [name for name, _ in model.named_parameters() if name not in skip and f"penalty:{name}" in found]
    part = torch.cat([found[f"penalty:{name}"].reshape(-1) for name in names])
    plain = torch.cat([(found[name] - found[f"penalty:{name}"]).reshape(-1) for name in names])
    return float(2 / STRENGTH * torch.dot(plain, part) / found["norm"]), float(part.norm())


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.parametrize("case", [case for case in CASES if case.name != "dropout"], ids=lambda case: case.name)
def test_batch_sharpness_and_the_penaltys_part_come_with_the_step(case: Case, method: str, as_tensor: bool) -> None:
    model = case.make().double()
    sharpness, length = truth(model, case.loss)
    penalty = GradientPenalty(model, STRENGTH, method=method, check_every=0)
    if as_tensor:
        penalty.loss(lambda: case.loss(model))
    else:
        penalty.backward(lambda: case.loss(model), weight=0.5)
    tolerance = 1e-8 if METHODS[method].exact else 1e-3
    assert float(penalty.last.batch_sharpness) == pytest.approx(sharpness, rel=tolerance)
    assert float(penalty.last.penalty_gradient_norm) == pytest.approx(length, rel=tolerance)


@pytest.mark.parametrize("method", list(METHODS))
def test_excluded_parameters_are_no_part_of_either_number(method: str) -> None:
    case = next(case for case in CASES if case.name == "wide")
    model = case.make().double()
    skip = ("0.weight", "0.bias")
    sharpness, _ = truth(model, case.loss, skip=skip)
    penalty = GradientPenalty(model, STRENGTH, method=method, exclude=skip)
    penalty.backward(lambda: case.loss(model))
    assert float(penalty.last.batch_sharpness) == pytest.approx(sharpness, rel=1e-3)


def test_with_micro_batches_numerator_and_denominator_are_means() -> None:
    model, inputs, targets = spread(wide_net()).double(), numbers(8, 12, seed=1), labels(8, 3, 2)

    def closure(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    one = GradientPenalty(model, STRENGTH)
    curvatures, norms = [], []
    for x, y in zip(inputs.split(4), targets.split(4), strict=True):
        one.backward(closure, x, y)
        curvatures.append(float(one.last.curvature))
        norms.append(float(one.last.gradient_squared_norm))
    both = GradientPenalty(model, STRENGTH, micro_batch_size=4, method="double_backward")
    both.backward(closure, inputs, targets)
    assert float(both.last.batch_sharpness) == pytest.approx(sum(curvatures) / sum(norms), rel=1e-12)


def test_a_users_hook_does_not_change_the_numbers() -> None:
    model, inputs = nn.Linear(3, 1).double(), numbers(4, 3, seed=1)
    seen = []
    for hooked in (False, True):
        if hooked:
            model.weight.register_hook(lambda gradient: 100 * gradient)
        penalty = GradientPenalty(model, STRENGTH, method="double_backward")
        penalty.backward(lambda: model(inputs).square().mean())
        seen.append(float(penalty.last.batch_sharpness))
    assert seen[0] == seen[1]
    assert len(model.weight._backward_hooks) == 1


@pytest.mark.parametrize("method", list(METHODS))
def test_a_row_has_no_entry_that_is_none(method: str) -> None:
    model, inputs = nn.Linear(3, 1), torch.ones(4, 3)
    penalty = GradientPenalty(model, STRENGTH, method=method, every=2)
    for _ in range(2):
        penalty.backward(lambda: model(inputs).square().mean())
        row = penalty.last.to_row()
        assert all(isinstance(value, float) for name, value in row.items() if name != "method")
        assert row["loss"] == float(penalty.last.loss)
    assert "gradient_squared_norm" not in row  # the second step had no penalty
    assert row["penalty"] == 0.0


def test_repr_says_what_is_penalised_and_how() -> None:
    penalty = GradientPenalty(nn.Linear(30, 40), 2**-6, every=4, exclude=["bias"])
    assert repr(penalty) == (
        "GradientPenalty(Linear with 1,200 penalised parameters, strength=0.015625, method='double_backward', every=4, "
        "exclude=['bias'], steps=0)"
    )
    assert "strength=a schedule" in repr(GradientPenalty(nn.Linear(2, 1), lambda step: 0.1))


@pytest.mark.parametrize("scale", [1.0, 1024.0])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_factored_sgd_has_the_numbers_from_its_factors(momentum: float, scale: float) -> None:
    case = next(case for case in CASES if case.name == "wide")
    model = case.make().double()
    sharpness, length = truth(model, case.loss)
    optimizer = FactoredSGD(model, lr=0.1, strength=STRENGTH, momentum=momentum)
    optimizer.step(lambda: case.loss(model))
    assert float(optimizer.last.batch_sharpness) == pytest.approx(sharpness, rel=1e-8)
    assert float(optimizer.last.penalty_gradient_norm) == pytest.approx(length, rel=1e-8)
    again = case.make().double()
    penalty = GradientPenalty(again, STRENGTH, method="gram")
    penalty.backward(lambda: case.loss(again), scaler=torch.amp.GradScaler("cpu", init_scale=scale))
    assert float(penalty.last.batch_sharpness) == pytest.approx(sharpness, rel=1e-8)
    assert float(penalty.last.penalty_gradient_norm) == pytest.approx(length, rel=1e-8)


def test_the_plan_of_the_wide_case_has_the_gram_form() -> None:
    """Otherwise the tests above would not reach the sums over Gram matrices."""
    case = next(case for case in CASES if case.name == "wide")
    model = case.make().double()
    assert "gram" in GradientPenalty(model, STRENGTH, method="gram").plan(lambda: case.loss(model)).values()


@pytest.mark.parametrize("rows", [4, 400])
@pytest.mark.parametrize("uses", [1, 2])
def test_the_gram_form_has_a_batch_sharpness_for_any_rows_and_uses(rows: int, uses: int) -> None:
    """‖(λ/2) Hg‖ alone needs the weight's gradient, which few rows of one use replace."""
    layer, inputs = spread(nn.Linear(40, 40)).double(), numbers(rows, 40, seed=1)

    def loss(model: nn.Module) -> Tensor:
        return (model(torch.tanh(model(inputs))) if uses == 2 else model(inputs)).square().square().mean()

    sharpness, length = truth(layer, loss)
    penalty = GradientPenalty(layer, STRENGTH, method="gram")
    penalty.backward(lambda: loss(layer))
    assert float(penalty.last.batch_sharpness) == pytest.approx(sharpness, rel=1e-8)
    row = penalty.last.to_row()
    if (rows, uses) == (4, 2):
        assert "penalty_gradient_norm" not in row
    else:
        assert row["penalty_gradient_norm"] == pytest.approx(length, rel=1e-8)


def test_factored_sgd_has_a_batch_sharpness_where_rows_are_many_and_a_weight_has_two_uses() -> None:
    layer, inputs = spread(nn.Linear(40, 40)).double(), numbers(400, 40, seed=1)

    def loss(model: nn.Module) -> Tensor:
        return model(torch.tanh(model(inputs))).square().square().mean()

    sharpness, _ = truth(layer, loss)
    optimizer = FactoredSGD(layer, lr=0.1, strength=STRENGTH)
    optimizer.step(lambda: loss(layer))
    assert float(optimizer.last.batch_sharpness) == pytest.approx(sharpness, rel=1e-8)
    assert optimizer.last.penalty_gradient_norm is None
