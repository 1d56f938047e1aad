"""`regime`: the two numbers and the verdict."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tacit
from tacit.theory import Landscape, curvature, mean_iterate, problems, regime
from tacit.theory import modified_losses as losses
from tacit.theory.flows import flow, gradient_flow_field


@pytest.mark.parametrize("case", tuple(problems.PROBLEMS))
def test_curvature_is_the_largest_eigenvalue_in_size(case: str) -> None:
    scape = Landscape(problems.PROBLEMS[case]())
    dense = torch.func.hessian(scape.loss)(scape.start)
    assert curvature(scape) == pytest.approx(torch.linalg.eigvalsh(dense).abs().max().item(), rel=1e-9)


def test_curvature_of_a_larger_model_by_lanczos() -> None:
    scape = Landscape(problems.tanh_mlp(hidden=12))
    dense = torch.func.hessian(scape.loss)(scape.start)
    assert scape.size > 20
    assert curvature(scape) == pytest.approx(torch.linalg.eigvalsh(dense).abs().max().item(), rel=1e-3)


@pytest.mark.parametrize("case", tuple(problems.PROBLEMS))
def test_the_verdict_goes_from_inside_to_outside_as_the_rate_grows(case: str) -> None:
    scape = Landscape(problems.PROBLEMS[case]())
    rates = [reach / (4 * curvature(scape)) for reach in (0.05, 8.0)]
    assert [regime(scape, learning_rate=e).verdict for e in rates] == ["inside", "outside"]


@pytest.mark.parametrize("case", tuple(problems.PROBLEMS))
def test_inside_means_that_the_modified_loss_explains_most_of_the_displacement(case: str) -> None:
    # The largest rate of the form 2^-k that is inside: there C̃_SGD is at least twice as close to SGD as C is.
    problem = problems.PROBLEMS[case]()
    scape = Landscape(problem)
    rate = next(2.0**-k for k in range(-3, 12) if regime(problem, learning_rate=2.0**-k).verdict == "inside")
    end = mean_iterate(problem, learning_rate=rate).mean
    plain = flow(gradient_flow_field(scape.loss), scape.start, time=4 * rate)
    modified = flow(
        gradient_flow_field(lambda w: losses.modified_loss_sgd(scape, w, learning_rate=rate)),
        scape.start,
        time=4 * rate,
    )
    assert (end - modified).norm() < 0.5 * (end - plain).norm()


def test_the_ratio_grows_in_proportion_to_the_rate() -> None:
    small, large = (regime(problems.tanh_mlp(), learning_rate=e).next_to_first for e in (0.001, 0.01))
    assert large == pytest.approx(10 * small)


def test_many_batches_use_random_signs_and_say_so() -> None:
    seen = regime(problems.logistic(batches=20, batch_size=1), learning_rate=0.001)
    assert "random-sign" in str(seen)
    exact = tacit.theory.sgd_second_correction(problems.logistic(batches=20, batch_size=1)).norm()
    first = tacit.theory.sgd_first_correction(problems.logistic(batches=20, batch_size=1)).norm()
    # Eight sign vectors: an estimate of the size, not the size.
    assert seen.next_to_first == pytest.approx((0.001 * exact / first).item(), rel=1.0)


def test_kinks_are_named_in_the_report() -> None:
    model = nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 1))
    inputs = torch.linspace(-1, 1, 4).reshape(4, 1)
    problem = tacit.Problem(model, nn.functional.mse_loss, (inputs, inputs.square()), batch_size=2)
    with pytest.warns(UserWarning, match="not smooth"):
        assert "kinks (relu)" in str(regime(problem, learning_rate=0.01))


def rectified(*, bias: float = 0.3, count: int = 64, activation: type[nn.Module] = nn.ReLU) -> tacit.Problem:
    """A network with 64 x 16 units whose places are spread around their kinks, or far above all of them."""
    model = nn.Sequential(nn.Linear(2, 16), activation(), nn.Linear(16, 2)).double()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            angles = torch.arange(parameter.numel(), dtype=torch.float64) + number
            parameter.copy_(torch.sin(2.4 * angles).reshape(parameter.shape) * 0.7)
        model[0].bias.add_(bias)
    inputs = torch.sin(torch.arange(2.0 * count, dtype=torch.float64)).reshape(count, 2)
    return tacit.Problem(model, nn.functional.cross_entropy, (inputs, torch.arange(count) % 2), batch_size=16)


@pytest.mark.filterwarnings("ignore:the loss uses relu")
def test_a_rectified_network_gets_both_numbers() -> None:
    # A difference of length 1e-4 crosses kinks here; the report must not take that for a wrong derivative.
    seen = regime(rectified(count=4096), learning_rate=0.01)
    assert seen.next_to_first is not None
    assert "smooth piece" in str(seen)


@pytest.mark.filterwarnings("ignore:the loss uses relu")
def test_a_rectified_network_whose_units_are_all_on_has_the_numbers_of_the_linear_one() -> None:
    on, linear = (regime(rectified(bias=5.0, activation=kind), learning_rate=0.01) for kind in (nn.ReLU, nn.Identity))
    assert on.next_to_first == pytest.approx(linear.next_to_first, rel=1e-9)
    assert on.reach == pytest.approx(linear.reach, rel=1e-9)


@pytest.mark.filterwarnings("ignore:the loss uses relu")
def test_parameters_on_a_kink_are_said_to_be_on_one() -> None:
    problem = rectified()
    with torch.no_grad():  # every unit is exactly at zero for the first example
        problem.model[0].bias.copy_(-problem.inputs[0] @ problem.model[0].weight.T)
    again = tacit.Problem(problem.model, problem.loss_fn, (problem.inputs, problem.targets), batch_size=16)
    seen = regime(again, learning_rate=0.01)
    assert seen.next_to_first is None
    assert "lie on a kink of relu" in str(seen)
    assert "GroupNorm" not in str(seen)
