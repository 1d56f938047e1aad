"""`verify_update`: an update of one's own against its own modified flow, and the loss that it follows."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tacit
from tacit.theory import Landscape, MemoryMethod, asymmetry, loss_difference, modified_flow, problems, verify_update
from tacit.theory.named_updates import EXAMPLES


# -- five optimizers that the package does not have, each in at most ten lines ----------------------------------------
def lookahead(scape: Landscape) -> Any:
    def update(w: Tensor, rate: Tensor) -> Tensor:
        fast = w
        for _ in range(3):
            fast = fast - rate * scape.gradient(fast)
        return w + 0.5 * (fast - w)

    return update


def quasi_hyperbolic_momentum(scape: Landscape) -> Any:
    def direction(w: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        g = scape.gradient(w)
        average = 0.6 * memory + 0.4 * g
        return 0.3 * g + 0.7 * average[0], average

    return MemoryMethod(direction)


def exponentiated_gradient(scape: Landscape) -> Any:
    return lambda w, rate: w * torch.exp(-rate * w * scape.gradient(w))


def heun(scape: Landscape) -> Any:
    def update(w: Tensor, rate: Tensor) -> Tensor:
        g = scape.gradient(w)
        return w - rate / 2 * (g + scape.gradient(w - rate * g))

    return update


def rms_descent_with_momentum(scape: Landscape) -> Any:
    def direction(w: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        g = scape.gradient(w)
        square = 0.6 * memory[0] + 0.4 * g.square()
        buffer = 0.5 * memory[1] + g
        return buffer / torch.sqrt(square + 0.2), torch.stack([square, buffer])

    return MemoryMethod(direction, slots=2)


OWN = [lookahead, quasi_hyperbolic_momentum, exponentiated_gradient, heun, rms_descent_with_momentum]


@pytest.fixture(scope="module")
def scape() -> Landscape:
    return Landscape(problems.logistic())


@pytest.mark.parametrize("make", OWN, ids=lambda make: make.__name__)
def test_an_optimizer_in_ten_lines_is_verified(make: Callable[[Landscape], Any], scape: Landscape) -> None:
    study = verify_update(make(scape), scape, name=make.__name__, order=1)
    # Heun's method has f₁ = 0: its distance from gradient flow is one order smaller than that of a general update.
    assert [finding.predicted for finding in study.orders.findings] == ([3, 3] if make is heun else [2, 3])
    assert study.passed, str(study)


def test_the_second_correction_of_an_own_optimizer_is_verified_on_a_network() -> None:
    scape = Landscape(problems.tanh_mlp(batches=2))
    study = verify_update(lookahead(scape), scape)
    assert study.orders.findings[2].predicted == 4
    assert study.passed, str(study)


# -- the examples of the package --------------------------------------------------------------------------------------
# C + c ε‖∇C‖² with c by hand: b/(2a), f₀ = −a∇C, f₁ = −b∇∇C∇C. Nesterov: b = (1 − β + 2β²)/(2(1−β)³), a = 1/(1−β).
PENALTIES = {"gd": 0.25, "heavy_ball": 1.5, "nesterov": 1.0, "extragradient": -0.25, "shrinking_sam": 0.75,
             "runge_kutta": 0.0}  # fmt: skip


@pytest.mark.parametrize("name", [*PENALTIES, "adam", "smooth_lion", "sam", "normalized_gd"])
def test_a_shipped_update_follows_its_own_flow(name: str, scape: Landscape) -> None:
    study = verify_update(EXAMPLES[name](scape), scape, name=name, order=1)
    assert study.passed, str(study)
    if name in PENALTIES:
        assert study.losses[0].penalty == pytest.approx(PENALTIES[name])
    # The classical method has f₁ = f₂ = f₃ = 0, so that its distance from gradient flow is ε⁵ at once.
    assert study.orders.findings[0].predicted == (5 if name == "runge_kutta" else 2)


@pytest.mark.slow
@pytest.mark.parametrize("case", problems.PROBLEMS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_shipped_update_follows_its_own_flow_on_every_problem(name: str, case: str) -> None:
    scape = Landscape(problems.PROBLEMS[case]())
    study = verify_update(EXAMPLES[name](scape), scape, order=1 if name.endswith("_over_orders") else 2)
    assert study.passed, str(study)


def test_a_wrong_series_is_caught(monkeypatch: pytest.MonkeyPatch, scape: Landscape) -> None:
    from tacit.theory import jets, logarithm

    honest = jets.interpolated_coefficients

    def doubled(*args: Any, **options: Any) -> list[Tensor]:
        found = honest(*args, **options)
        return [*found[:2], *[2 * term for term in found[2:]]]  # f₀ is right, f₁ and the others are doubled

    monkeypatch.setattr(logarithm, "interpolated_coefficients", doubled)
    study = verify_update(EXAMPLES["gd"](scape), scape, order=1)
    assert study.orders.findings[0].status == "pass"
    assert study.orders.findings[1].observed == pytest.approx(2, abs=0.15)
    assert not study.passed


def test_preconditioned_descent_has_a_flow_and_no_loss() -> None:
    # Adam's f₀ = −g/√(g²+δ) is no gradient: its Jacobian is a diagonal matrix times the Hessian.
    scape = Landscape(problems.tanh_mlp())
    loss = tacit.theory.modified_loss_of(modified_flow(EXAMPLES["adam"](scape), order=1), scape)
    assert not loss.exists
    assert loss.zeroth_asymmetry > 0.1
    assert "only a flow exists" in str(loss)
    assert f"(asymmetry {loss.zeroth_asymmetry:.2g}, 1e-08 or less would be rounding)" in str(loss)


def test_the_epoch_of_mean_sgd_has_a_loss_that_is_not_that_of_the_full_gradient() -> None:
    # φ₁ = −∇C_reg is a gradient, but of the mean of squares and not of ‖∇C‖².
    scape = Landscape(problems.logistic(batches=3))
    flow = modified_flow(tacit.theory.mean_sgd_epoch_update(scape), order=1, duration=3, method="nodes")
    loss = tacit.theory.modified_loss_of(flow, scape)
    assert loss.exists
    assert loss.speed == pytest.approx(1)
    assert loss.penalty is None
    end = scape.start + 0.2
    integrated = loss_difference(flow.correction(1), scape.start, end)
    exact = tacit.theory.implicit_regularizer(scape, end) - tacit.theory.implicit_regularizer(scape)
    assert integrated == pytest.approx(exact.item(), rel=1e-10)  # sixteen Gauss points on a smooth line


def test_one_order_of_sgd_follows_no_loss_because_its_commutator_turns() -> None:
    scape = Landscape(problems.tanh_mlp())
    update = tacit.theory.sgd_epoch_update(scape, order=(0, 1, 2, 3))
    loss = tacit.theory.modified_loss_of(modified_flow(update, order=1, duration=4, method="nodes"), scape)
    assert loss.speed == pytest.approx(1)
    assert loss.first_asymmetry > 0.1
    assert not loss.exists


def test_the_estimated_asymmetry_of_a_large_field_is_near_the_exact_one() -> None:
    # 16 pairs of probes: the ratio of two sums of squares is good to a few tens of per cent.
    size = 60
    matrix = torch.sin(torch.arange(size * size, dtype=torch.float64) * 0.7).reshape(size, size)
    exact = ((matrix - matrix.T).norm() / matrix.norm()).item()
    assert asymmetry(lambda w: matrix @ w, torch.ones(size, dtype=torch.float64)) == pytest.approx(exact, rel=0.5)
    symmetric = matrix + matrix.T
    assert asymmetry(lambda w: symmetric @ w, torch.ones(size, dtype=torch.float64)) < 1e-12


def test_interpolated_and_differentiated_corrections_agree() -> None:
    scape = Landscape(problems.tanh_mlp())
    update = tacit.theory.gd_update(scape)
    exact = modified_flow(update, order=2).corrections(scape.start)
    seen: list[tuple[int, int]] = []
    flow = modified_flow(update, order=2, method="nodes", progress=lambda done, total: seen.append((done, total)))
    found = flow.corrections(scape.start)
    # Each order divides rounding by the radius once more, about 1/60 here.
    for k, digits in enumerate((11, 9, 6)):
        assert (found[k] - exact[k]).norm() < 10.0**-digits * exact[k].norm(), k
    assert seen[-1] == (17, 17)


def test_json_holds_orders_and_losses(scape: Landscape) -> None:
    read = json.loads(verify_update(EXAMPLES["gd"](scape), scape, order=1).to_json())
    assert read["passed"] is True
    assert read["losses"][0]["text"] == "C + 0.25 ε‖∇C‖²"
