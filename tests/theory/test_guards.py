"""Bad input: kinks warn, randomness is refused, wrong third derivatives are refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tacit
from tacit.theory import Landscape, guards, regime, verify, warn_if_not_smooth
from tacit.theory.exact_forms import ExactForms

INPUTS = torch.sin(torch.arange(16.0, dtype=torch.float64)).reshape(4, 4)
TARGETS = torch.cos(torch.arange(4.0, dtype=torch.float64)).reshape(4, 1)


def problem_with(*layers: nn.Module, width: int = 4) -> tacit.Problem:
    model = nn.Sequential(nn.Linear(4, width), *layers, nn.Linear(width, 1)).double()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            angles = torch.arange(parameter.numel(), dtype=torch.float64) + number
            parameter.copy_(torch.sin(2.4 * angles).reshape(parameter.shape) * 0.7 + 0.1)
    return tacit.Problem(model, nn.functional.mse_loss, (INPUTS, TARGETS), batch_size=2, dtype=torch.float64)


class HandWrittenLayerNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        away = x - x.mean(-1, keepdim=True)
        return away / torch.sqrt(away.square().mean(-1, keepdim=True) + 1e-5)


class NativeLayerNorm(nn.Module):
    """torch's own kernel, called so that no replacement is seen."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.native_layer_norm(x, [4], None, None, 1e-5)[0]


class FunctionalReLU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(x)


class Call(nn.Module):
    """A function as a layer."""

    def __init__(self, name: str, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.name, self.function = name, function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)

    def __repr__(self) -> str:
        return self.name


@pytest.mark.parametrize(
    "layer",
    [
        nn.ReLU(),
        FunctionalReLU(),
        nn.LeakyReLU(),
        nn.PReLU(),
        nn.CELU(),
        nn.SELU(),
        nn.Hardtanh(),
        nn.MaxPool1d(1),
        nn.AdaptiveMaxPool1d(4),
        Call("topk", lambda x: x.topk(4).values),
        Call("median", lambda x: x - x.median(1, keepdim=True).values),
        Call("sort", lambda x: x.sort(1).values),
        Call("where", lambda x: torch.where(x > 0, x, 0.1 * x)),
        Call("clamp_min", lambda x: x.clamp_min(0.0)),
        Call("amin", lambda x: x - x.amin(1, keepdim=True)),
    ],
    ids=str,
)
def test_kinks_warn_that_orders_may_not_hold(layer: nn.Module) -> None:
    with pytest.warns(UserWarning, match="orders may not hold"):
        warn_if_not_smooth(problem_with(layer))


@pytest.mark.parametrize("loss", [nn.functional.huber_loss, nn.functional.smooth_l1_loss, nn.functional.l1_loss])
def test_losses_with_kinks_warn(loss: Callable[..., Tensor]) -> None:
    with pytest.warns(UserWarning, match="orders may not hold"):
        warn_if_not_smooth(tacit.Problem(nn.Linear(4, 1).double(), loss, (INPUTS, TARGETS), batch_size=2))


@pytest.mark.parametrize(
    "layer",
    [nn.Tanh(), nn.GELU(), nn.Softplus(), nn.SiLU(), nn.Mish(), nn.Softmax(1), nn.LayerNorm(4)],
    ids=str,
)
def test_smooth_activations_do_not_warn(layer: nn.Module, recwarn: pytest.WarningsRecorder) -> None:
    assert warn_if_not_smooth(problem_with(layer)) == ()
    assert not [w for w in recwarn.list if "orders" in str(w.message)]


def test_verify_warns_about_kinks() -> None:
    with pytest.warns(UserWarning, match="relu, which is not smooth"):
        verify(problem_with(nn.ReLU()), only="GD against gradient flow")


def test_dropout_is_refused() -> None:
    with pytest.raises(tacit.InputError, match="dropout"):
        problem_with(nn.Tanh(), nn.Dropout(0.5))


@pytest.mark.parametrize("layer", [NativeLayerNorm()], ids=str)
def test_layers_whose_third_derivatives_torch_gets_wrong_are_refused(layer: nn.Module) -> None:
    with pytest.raises(tacit.InputError, match=r"third derivatives of the loss are .* off through NativeLayerNorm"):
        guards.require_third_derivatives(problem_with(layer, nn.Tanh()))


@pytest.mark.parametrize(
    "layer",
    [
        nn.LayerNorm(4),
        nn.BatchNorm1d(4),
        nn.GroupNorm(2, 4),
        nn.RMSNorm(4),
        nn.BatchNorm1d(4).eval(),
        HandWrittenLayerNorm(),
        nn.Tanh(),
    ],
    ids=str,
)
def test_layers_whose_third_derivatives_are_right_are_accepted(layer: nn.Module) -> None:
    guards.require_third_derivatives(problem_with(layer, nn.Tanh()))


def weight_normed(api: Callable[..., nn.Module], dim: int | None) -> tacit.Problem:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one of the two interfaces is deprecated
        return problem_with(nn.Tanh(), api(nn.Linear(4, 4), dim=dim), nn.Tanh())


@pytest.mark.parametrize("dim", [0, 1, None])
@pytest.mark.parametrize("api", [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm])
def test_hessian_products_through_weight_norm_are_differences_of_gradients(
    api: Callable[..., nn.Module], dim: int | None
) -> None:
    # torch's own are wrong by percents; central differences with step 1e-5 are good to about 1e-9.
    problem = weight_normed(api, dim)
    scape = Landscape(problem)
    assert torch.allclose(scape.loss(scape.start), problem.full_loss(), rtol=1e-13)
    v = torch.cos(torch.arange(scape.size, dtype=torch.float64))
    ahead, behind = (scape.gradient(scape.start + side * 1e-5 * v) for side in (1, -1))
    numerical = (ahead - behind) / 2e-5
    assert (scape.hessian_product(scape.start, v) - numerical).norm() < 1e-7 * numerical.norm()


def test_the_modified_loss_is_confirmed_on_a_model_with_weight_norm() -> None:
    study = verify(weight_normed(nn.utils.parametrizations.weight_norm, 0), only="mean SGD against C̃_SGD")
    assert study.passed, str(study)


class NativeWeightNorm(nn.Module):
    """torch's own kernel, called so that no replacement is seen."""

    def __init__(self) -> None:
        super().__init__()
        self.v, self.g = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x @ torch._weight_norm_interface(self.v, self.g, 0)[0]


def test_a_weight_norm_without_an_exact_form_is_refused_by_name() -> None:
    with pytest.raises(tacit.InputError, match="WeightNormInterface, whose second derivatives"):
        verify(problem_with(NativeWeightNorm()))


def test_verify_leaves_out_what_needs_wrong_third_derivatives_and_says_why() -> None:
    study = verify(problem_with(NativeLayerNorm(), nn.Tanh()), only="GD against C̃_GD")
    assert study.finding("GD against C̃_GD with f₂").status == "not measured"
    assert study.finding("GD against C̃_GD").status == "pass"
    assert "third derivatives" in str(study)


def test_the_regime_of_a_model_with_wrong_third_derivatives_says_what_is_missing() -> None:
    seen = regime(problem_with(NativeLayerNorm(), nn.Tanh()), learning_rate=0.01)
    assert seen.next_to_first is None
    assert "third derivatives" in str(seen)


@pytest.mark.parametrize(
    "layer,shape",
    [
        (nn.LayerNorm(4), (3, 4)),
        (nn.BatchNorm1d(4), (3, 4)),
        (nn.BatchNorm2d(4), (3, 4, 2, 2)),
        (nn.InstanceNorm1d(4, affine=True), (3, 4, 5)),
        (nn.BatchNorm1d(4).eval(), (3, 4)),
    ],
    ids=str,
)
def test_exact_forms_have_the_values_of_torch(layer: nn.Module, shape: tuple[int, ...]) -> None:
    layer = layer.double()
    x = torch.sin(torch.arange(torch.Size(shape).numel(), dtype=torch.float64)).reshape(shape)
    plain = layer(x)
    with ExactForms():
        exact = layer(x)
    assert torch.allclose(plain, exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_exact_form_of_the_squared_error_has_the_value_of_torch(reduction: str) -> None:
    with ExactForms():
        exact = nn.functional.mse_loss(INPUTS[:, :1], TARGETS, reduction=reduction)
    assert torch.allclose(exact, nn.functional.mse_loss(INPUTS[:, :1], TARGETS, reduction=reduction), rtol=1e-14)


def test_batch_norm_in_training_mode_is_still_measured_at_first_order() -> None:
    problem = problem_with(nn.BatchNorm1d(4), nn.Tanh())
    assert torch.isfinite(tacit.theory.implicit_regularizer(problem))
