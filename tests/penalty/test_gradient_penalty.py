"""What the object around the methods promises: micro-batches, amortisation, views, exclusion, AMP, refusals."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cases import CASES, labels, numbers, spread, wide_net
from oracles import penalised_gradient
from tacit import FactoredSGD, GradientPenalty, InputError
from tacit.penalty import METHODS

EXACT = [name for name, method in METHODS.items() if method.exact]
WIDE = next(case for case in CASES if case.name == "wide")


def model_and_batch() -> tuple[nn.Module, Tensor, Tensor]:
    return spread(wide_net()).double(), numbers(8, 12, seed=1), labels(8, 3, 2)


def gradient_vector(model: nn.Module) -> Tensor:
    return torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters() if parameter.grad is not None])


@pytest.mark.parametrize("method", EXACT)
def test_micro_batches_average_the_penalty_of_each(method: str) -> None:
    model, inputs, targets = model_and_batch()
    penalty = GradientPenalty(model, 0.3, method=method, micro_batch_size=2)
    loss = penalty.backward(lambda x, y: F.cross_entropy(model(x), y), inputs, targets)
    pieces = [
        penalised_gradient(model, lambda m, k=k: F.cross_entropy(m(inputs[k : k + 2]), targets[k : k + 2]), 0.3)
        for k in range(0, 8, 2)
    ]
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, sum(piece[name] for piece in pieces) / 4)
    assert float(loss) == pytest.approx(F.cross_entropy(model(inputs), targets).item(), rel=1e-12)


def test_weight_makes_accumulation_equal_to_micro_batches() -> None:
    model, inputs, targets = model_and_batch()
    twin = copy.deepcopy(model)
    GradientPenalty(model, 0.3, micro_batch_size=4).backward(lambda x, y: F.cross_entropy(model(x), y), inputs, targets)
    accumulating = GradientPenalty(twin, 0.3)
    for k in (0, 4):
        accumulating.backward(lambda k=k: F.cross_entropy(twin(inputs[k : k + 4]), targets[k : k + 4]), weight=0.5)
    torch.testing.assert_close(gradient_vector(model), gradient_vector(twin))


def test_every_k_has_the_penalty_of_plain_steps_on_average() -> None:
    model, inputs, targets = model_and_batch()
    penalty = GradientPenalty(model, 0.3, every=3)
    applied = []
    for _ in range(6):
        penalty.backward(lambda: F.cross_entropy(model(inputs), targets))
        applied.append(penalty.last.strength)
    assert applied == [pytest.approx(0.9), 0.0, 0.0, pytest.approx(0.9), 0.0, 0.0]


def test_probability_weights_the_penalty_by_its_inverse() -> None:
    model = nn.Linear(1, 1)
    penalty = GradientPenalty(model, 0.3, probability=0.25, seed=5)
    applied = []
    for _ in range(400):
        penalty.backward(lambda: model(torch.ones(1, 1)).square().mean())
        applied.append(penalty.last.strength)
    assert set(applied) == {0.0, 0.3 / 0.25}
    # 400 coins of probability 1/4: four standard deviations are 0.087.
    assert sum(value > 0 for value in applied) / 400 == pytest.approx(0.25, abs=0.087)


def test_probability_continues_from_its_saved_state() -> None:
    model = nn.Linear(1, 1)

    def strengths(penalty: GradientPenalty, count: int) -> list[float]:
        seen = []
        for _ in range(count):
            penalty.backward(lambda: model(torch.ones(1, 1)).square().mean())
            seen.append(penalty.last.strength)
        return seen

    first = GradientPenalty(model, 0.3, probability=0.5, seed=1)
    strengths(first, 10)
    saved = first.state_dict()
    second = GradientPenalty(model, 0.3, probability=0.5, seed=99)
    second.load_state_dict(saved)
    assert strengths(first, 20) == strengths(second, 20)


def test_a_strength_that_was_changed_is_part_of_the_state() -> None:
    model = nn.Linear(1, 1)
    first = GradientPenalty(model, 0.3)
    first.strength = 0.7
    second = GradientPenalty(model, 0.3)
    second.load_state_dict(first.state_dict())
    assert second.strength == 0.7
    schedule = GradientPenalty(model, lambda step: 0.1)
    schedule.load_state_dict(first.state_dict())
    assert callable(schedule.strength)
    second.load_state_dict(schedule.state_dict())
    assert second.strength == 0.7


def test_a_strength_passed_anew_wins_over_the_stored_one(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(1, 1)
    first = GradientPenalty(model, 0.5, probability=0.5, seed=1)
    for _ in range(3):
        first.backward(lambda: model(torch.ones(1, 1)).square().mean())
    second = GradientPenalty(model, 50.0, probability=0.5, seed=2)
    second.load_state_dict(first.state_dict())
    assert second.strength == 50.0
    assert second.steps == 3
    assert second.state_dict()["seed"] == 1
    assert "the strength passed now, 50; the checkpoint's was 0.5" in caplog.text
    # Of a run that was resumed once, the strength of the resumed run counts.
    third = GradientPenalty(model, 50.0, probability=0.5)
    caplog.clear()
    third.load_state_dict(second.state_dict())
    assert third.strength == 50.0
    assert not caplog.text


def test_a_number_passed_after_a_schedule_wins_and_the_other_way_round(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(1, 1)
    number, schedule = GradientPenalty(model, 0.5), GradientPenalty(model, lambda step: 0.1)
    state = number.state_dict()
    number.load_state_dict(schedule.state_dict())
    assert number.strength == 0.5
    assert "passed now, 0.5; the checkpoint's was a function of the step" in caplog.text
    schedule.load_state_dict(state)
    assert callable(schedule.strength)
    assert "passed now, a function of the step; the checkpoint's was 0.5" in caplog.text


@pytest.mark.parametrize("name", ["backward", "loss"])
def test_schedules_and_every_count_the_steps_that_they_are_told(name: str) -> None:
    """Two calls of one optimizer step: both have its strength; calls 0 to 5 alone would have 0, 0, 4, 0, 8, 0."""
    model = nn.Linear(1, 1)
    penalty = GradientPenalty(model, lambda step: float(step), every=2)
    applied = []
    for call in range(6):
        getattr(penalty, name)(lambda: model(torch.ones(1, 1)).square().mean(), step=call // 2)
        applied.append(penalty.last.strength)
    assert applied == [0.0, 0.0, 0.0, 0.0, 4.0, 4.0]
    assert penalty.steps == 6


def test_the_coin_is_one_of_each_call_whatever_the_step() -> None:
    model = nn.Linear(1, 1)
    counted, told = (GradientPenalty(model, 0.3, probability=0.5, seed=1) for _ in range(2))
    seen: list[list[float]] = [[], []]
    for call in range(20):
        for penalty, found, more in ((counted, seen[0], {}), (told, seen[1], {"step": call // 10})):
            penalty.backward(lambda: model(torch.ones(1, 1)).square().mean(), **more)
            found.append(penalty.last.strength)
    assert seen[0] == seen[1]
    assert len(set(seen[0][:10])) == 2


def test_strength_may_be_a_function_of_the_step() -> None:
    model = nn.Linear(1, 1)
    penalty = GradientPenalty(model, lambda step: 0.1 * step)
    applied = []
    for _ in range(3):
        penalty.backward(lambda: model(torch.ones(1, 1)).square().mean())
        applied.append(penalty.last.strength)
    assert applied == [0.0, pytest.approx(0.1), pytest.approx(0.2)]


@pytest.mark.parametrize("method", [name for name in METHODS if name != "gram"])
def test_two_views_penalise_the_inner_product(method: str) -> None:
    model, inputs, targets = model_and_batch()
    other = inputs + 0.3 * numbers(8, 12, seed=9)
    strength = 0.4

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        return F.cross_entropy(m(x), targets)

    # ∇ ½(A + B) + (λ/4)⟨∇A, ∇B⟩ from single-view truths: ‖a+b‖² − ‖a‖² − ‖b‖² = 2⟨a, b⟩, by linearity in the loss.
    both = penalised_gradient(model, lambda m: loss(m, inputs) + loss(m, other), strength)
    first = penalised_gradient(model, lambda m: loss(m, inputs), strength)
    second = penalised_gradient(model, lambda m: loss(m, other), strength)
    GradientPenalty(model, strength, method=method, central=True, check_every=0).backward(
        lambda: loss(model, inputs), second_view=lambda: loss(model, other)
    )
    for name, parameter in model.named_parameters():
        key = "penalty:" + name
        plain = (first[name] - first[key] + second[name] - second[key]) / 2
        part = (both[key] - first[key] - second[key]) / 2
        error = (parameter.grad - plain - part).norm() / part.norm()
        assert error < (1e-10 if METHODS[method].exact else 5e-3)


def test_two_views_are_double_backwards_where_auto_is_gram() -> None:
    model, inputs = nn.Linear(600, 600), numbers(4, 600, seed=1).float()
    twin = copy.deepcopy(model)
    auto, reference = GradientPenalty(model, 0.4), GradientPenalty(twin, 0.4, method="double_backward")
    assert auto.method == "gram"
    for penalty, m in ((auto, model), (reference, twin)):
        penalty.backward(lambda m=m: m(inputs).square().mean(), second_view=lambda m=m: m(1 - inputs).square().mean())
    assert torch.equal(model.weight.grad, twin.weight.grad)
    assert auto.last.method == "double_backward"
    auto.backward(lambda: model(inputs).square().mean())
    assert auto.last.method == "gram"


def test_the_global_batch_is_double_backwards() -> None:
    model = nn.Linear(600, 600)
    assert GradientPenalty(model, 0.4).method == "gram"
    assert GradientPenalty(model, 0.4, norm_of="global_batch").method == "double_backward"
    with pytest.raises(InputError, match=r"norm_of='global_batch' with method='gram'.* Use method='double_backward'"):
        GradientPenalty(model, 0.4, method="gram", norm_of="global_batch")


def test_excluded_parameters_are_not_in_the_norm_but_receive_its_gradient() -> None:
    for method in EXACT:
        model = WIDE.make().double()
        penalty = GradientPenalty(model, 0.5, method=method, exclude=["0.*", "4.bias"])
        penalty.backward(lambda model=model: WIDE.loss(model))
        truth = penalised_gradient(model, WIDE.loss, 0.5, skip=("0.weight", "0.bias", "4.bias"))
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, truth[name])
        assert float(penalty.last.gradient_squared_norm) == pytest.approx(float(truth["norm"]), rel=1e-12)


@pytest.mark.parametrize("method", list(METHODS))
def test_frozen_parameters_stay_out(method: str) -> None:
    model = WIDE.make().double()
    model[2].weight.requires_grad_(False)
    penalty = GradientPenalty(model, 1e-3, method=method)
    penalty.backward(lambda: WIDE.loss(model))
    truth = penalised_gradient(model, WIDE.loss, 1e-3)
    assert model[2].weight.grad is None
    assert float(penalty.last.gradient_squared_norm) == pytest.approx(float(truth["norm"]), rel=1e-10)


@pytest.mark.parametrize("method", list(METHODS))
def test_a_trainable_tensor_of_the_loss_gets_its_gradient_too(method: str) -> None:
    model, inputs, targets = model_and_batch()
    temperature = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    GradientPenalty(model, 1e-3, method=method, central=True).backward(
        lambda: F.cross_entropy(model(inputs) * temperature, targets)
    )

    def objective(value: Tensor) -> Tensor:
        loss = F.cross_entropy(model(inputs) * value, targets)
        norm = sum(g.square().sum() for g in torch.autograd.grad(loss, list(model.parameters()), create_graph=True))
        return (loss + 1e-3 / 4 * norm).detach()

    step = 1e-5
    slope = (objective(temperature.detach() + step) - objective(temperature.detach() - step)) / (2 * step)
    assert float(temperature.grad) == pytest.approx(float(slope), rel=1e-7)  # the truth's own difference


@pytest.mark.parametrize("method", list(METHODS))
def test_a_grad_scaler_scales_gradients_and_not_the_penalty(method: str) -> None:
    model, inputs, targets = model_and_batch()
    twin = copy.deepcopy(model)
    GradientPenalty(model, 0.01, method=method).backward(lambda: F.cross_entropy(model(inputs), targets))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaled = GradientPenalty(twin, 0.01, method=method)
    scaled.backward(lambda: F.cross_entropy(twin(inputs), targets), scaler=scaler)
    torch.testing.assert_close(gradient_vector(twin) / 1024, gradient_vector(model), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("method", ["gram", "double_backward"])
@pytest.mark.parametrize("where", ["inside", "outside"])
def test_autocast_gives_the_penalty_to_bfloat16_precision(method: str, where: str) -> None:
    model, inputs, targets = model_and_batch()
    model, inputs = model.float(), inputs.float()
    truth = penalised_gradient(model, lambda m: F.cross_entropy(m(inputs.double()), targets), 0.5)
    penalty = GradientPenalty(model, 0.5, method=method)

    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=where == "inside" or torch.is_autocast_enabled("cpu")):
            return F.cross_entropy(model(inputs), targets)

    with torch.autocast("cpu", torch.bfloat16, enabled=where == "outside"):
        penalty.backward(loss)
    whole = torch.cat([truth[name].reshape(-1) for name, _ in model.named_parameters()])
    error = (gradient_vector(model).double() - whole).norm() / whole.norm()
    assert gradient_vector(model).dtype == torch.float32
    assert 1e-5 < error < 0.05  # bfloat16 has 8 bits: about a percent, and not nothing


def test_two_optimizers_share_one_penalised_backward() -> None:
    model, inputs, targets = model_and_batch()
    halves = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[2:].parameters(), lr=0.1)]
    penalty = GradientPenalty(model, 0.1)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    penalty.backward(lambda: F.cross_entropy(model(inputs), targets))
    gradient = model[0].weight.grad.clone()
    for optimizer in halves:
        optimizer.step()
    torch.testing.assert_close(model[0].weight.detach(), before[0] - 0.1 * gradient)
    assert all(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_factored_sgd_follows_a_scheduler() -> None:
    model, inputs, targets = model_and_batch()
    optimizer = FactoredSGD(model, lr=0.5, strength=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    optimizer.step(lambda: F.cross_entropy(model(inputs), targets))
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.25


def test_factored_sgd_never_holds_a_linear_weight_gradient() -> None:
    model, inputs, targets = model_and_batch()
    FactoredSGD(model, lr=0.5, strength=0.1).step(lambda: F.cross_entropy(model(inputs), targets))
    assert all(layer.weight.grad is None for layer in model if isinstance(layer, nn.Linear))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0].mean((1, 2)).square()


@pytest.mark.parametrize("method", ["gram", "double_backward"])
def test_attention_as_it_is_is_refused_by_name_and_works_with_the_math_kernel(method: str) -> None:
    model, inputs = Attention(), numbers(2, 3, 4, seed=1).float()
    penalty = GradientPenalty(model, 0.1, method=method, attention="as_is")
    with pytest.raises(InputError, match=r"scaled_dot_product_attention.*method='finite_difference'"):
        penalty.backward(lambda: model(inputs).mean())
    assert all(parameter.grad is None for parameter in model.parameters())
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        penalty.backward(lambda: model(inputs).mean())
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_finite_differences_work_on_fused_attention() -> None:
    model, inputs = Attention().double(), numbers(2, 3, 4, seed=1)
    GradientPenalty(model, 0.1, method="finite_difference").backward(lambda: model(inputs).mean())
    found = gradient_vector(model)
    model.zero_grad()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        GradientPenalty(model, 0.1).backward(lambda: model(inputs).mean())
    torch.testing.assert_close(found, gradient_vector(model), rtol=1e-4, atol=1e-8)


def test_auto_is_gram_for_wide_linear_layers_and_double_backward_elsewhere() -> None:
    assert GradientPenalty(nn.Linear(1024, 1024), 1.0).method == "gram"
    assert GradientPenalty(spread(wide_net()), 1.0).method == "double_backward"
    assert GradientPenalty(nn.Sequential(nn.Conv2d(512, 512, 3), nn.Linear(512, 512)), 1.0).method == "double_backward"


def test_the_closed_form_of_least_squares() -> None:
    """One weight, one example: Ĉ = r²/2 with r = wx − y, so g = rx, H = x², and the gradient is g + (λ/2) H g."""
    model = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        model.weight.fill_(2.0)
    x, y, strength = 3.0, 1.0, 0.5
    inputs, residual = torch.tensor([[x]], dtype=torch.float64), 2.0 * x - y
    GradientPenalty(model, strength).backward(lambda: 0.5 * (model(inputs) - y).square().mean())
    assert float(model.weight.grad) == pytest.approx(residual * x + strength / 2 * x**2 * (residual * x), rel=1e-14)
