"""n-step SGD against torch.optim.SGD, closed forms and torch's own conventions."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tacit
from tacit._util.random_generators import generator


def small_model() -> nn.Module:
    made = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    draws = generator(3, "init")
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=draws))
    return made


def minibatches(count: int) -> list[tuple[Tensor, Tensor]]:
    draws = generator(3, "augment")
    return [(torch.randn(8, 5, generator=draws), torch.randint(3, (8,), generator=draws)) for _ in range(count)]


def closure_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        return loss

    return closure


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def train_plain(model: nn.Module, *, updates_per_batch: int, weight_decay: float, lr: float = 0.3) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, weight_decay=weight_decay)
    for batch in minibatches(4):
        for _ in range(updates_per_batch):
            optimizer.zero_grad()
            closure_of(model, batch)()
            optimizer.step()


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("inner_steps", [1, 4])
def test_n_steps_are_n_torch_sgd_steps_on_the_same_minibatch_bitwise(inner_steps: int, weight_decay: float) -> None:
    ours, theirs = small_model(), small_model()
    optimizer = tacit.NStepSGD(ours.parameters(), lr=0.3, inner_steps=inner_steps, weight_decay=weight_decay)
    for batch in minibatches(4):
        optimizer.step(closure_of(ours, batch))
    train_plain(theirs, updates_per_batch=inner_steps, weight_decay=weight_decay)
    assert torch.equal(weights(ours), weights(theirs))


def test_on_a_quadratic_n_steps_multiply_by_one_minus_the_bare_rate_to_the_nth_power() -> None:
    weight = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))

    def closure() -> Tensor:
        loss = 0.5 * weight.square().sum()
        loss.backward()
        return loss

    tacit.NStepSGD([weight], lr=0.1, inner_steps=5).step(closure)
    assert weight.item() == pytest.approx((1 - 0.1) ** 5, rel=1e-14)  # five roundings


def test_step_returns_the_loss_before_the_first_update() -> None:
    model, batch = small_model(), minibatches(1)[0]
    before = nn.functional.cross_entropy(model(batch[0]), batch[1]).item()
    returned = tacit.NStepSGD(model.parameters(), lr=0.3, inner_steps=3).step(closure_of(model, batch))
    assert returned.item() == before


def test_the_closure_runs_n_times_with_cleared_gradients_and_graphs_on() -> None:
    weight, seen = nn.Parameter(torch.ones(2)), []

    def closure() -> Tensor:
        seen.append((weight.grad is None, torch.is_grad_enabled()))
        loss = weight.sum()
        loss.backward()
        return loss

    tacit.NStepSGD([weight], lr=0.1, inner_steps=3).step(closure)
    assert seen == [(True, True)] * 3


def test_a_closure_that_clears_gradients_itself_changes_nothing() -> None:
    ours, other = small_model(), small_model()
    batch = minibatches(1)[0]
    optimizer = tacit.NStepSGD(ours.parameters(), lr=0.3, inner_steps=2)
    optimizer.step(closure_of(ours, batch))
    second = tacit.NStepSGD(other.parameters(), lr=0.3, inner_steps=2)

    def clearing() -> Tensor:
        second.zero_grad()
        return closure_of(other, batch)()

    second.step(clearing)
    assert torch.equal(weights(ours), weights(other))


def test_torch_schedulers_scale_the_bare_rate() -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = tacit.NStepSGD([weight], lr=2**-3, inner_steps=4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, tacit.schedules.schedule("paper_decay", 10))
    rates = []
    for _ in range(10):
        rates.append(optimizer.effective_learning_rate)

        def closure() -> Tensor:
            loss = weight.sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        scheduler.step()
    assert rates == [4 * 2**-3 * tacit.schedules.paper_decay(step, 10) for step in range(10)]
    # Every update moved the weight by its own rate: 4 · 2⁻³ · (5 + 1/2 + … + 1/32), exact in float32.
    assert weight.item() == 1.0 - sum(rates)


def test_a_saved_state_resumes_bitwise_with_its_own_number_of_steps() -> None:
    through, resumed = small_model(), small_model()
    optimizer = tacit.NStepSGD(through.parameters(), lr=0.3, inner_steps=3, weight_decay=0.01)
    batches = minibatches(4)
    for batch in batches[:2]:
        optimizer.step(closure_of(through, batch))
    resumed.load_state_dict(copy.deepcopy(through.state_dict()))
    second = tacit.NStepSGD(resumed.parameters(), lr=1.0, inner_steps=1)
    second.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for batch in batches[2:]:
        optimizer.step(closure_of(through, batch))
        second.step(closure_of(resumed, batch))
    assert (second.inner_steps, second.effective_learning_rate) == (3, pytest.approx(0.9))
    assert torch.equal(weights(through), weights(resumed))


def test_parameter_groups_keep_their_own_rates() -> None:
    fast, slow = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    optimizer = tacit.NStepSGD([{"params": [fast], "lr": 0.5}, {"params": [slow]}], lr=0.25, inner_steps=2)

    def closure() -> Tensor:
        loss = (fast + slow).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert (fast.item(), slow.item()) == (-1.0, -0.5)
    with pytest.raises(tacit.InputError, match=r"rates \[0.25, 0.5\]"):
        _ = optimizer.effective_learning_rate


def test_parameters_without_a_gradient_stay() -> None:
    used, unused = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

    def closure() -> Tensor:
        loss = used.sum()
        loss.backward()
        return loss

    tacit.NStepSGD([used, unused], lr=0.5, inner_steps=2, weight_decay=0.5).step(closure)
    assert unused.item() == 1.0


def test_a_step_without_a_closure_or_with_an_idle_one_is_refused() -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = tacit.NStepSGD([weight], lr=0.1, inner_steps=2)
    with pytest.raises(tacit.InputError, match="no closure"):
        optimizer.step()
    with pytest.raises(tacit.InputError, match="no gradient"):
        optimizer.step(lambda: weight.sum())
    with pytest.raises(tacit.InputError, match="returned None"):
        optimizer.step(lambda: weight.sum().backward())  # type: ignore[arg-type, return-value]
