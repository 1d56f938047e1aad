"""Kinks are refused for being kinks, by name, whether a step meets them or not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tacit
from tacit.theory import Landscape, MemoryMethod, difference_field, modified_flow, problems

SCAPE = Landscape(problems.logistic())
Direction = Callable[[Tensor], Tensor]
KINKED: dict[str, Direction] = {
    "sign": torch.sign,
    "sgn": lambda g: g.sgn(),
    "abs": lambda g: g / (0.1 + g.abs()),
    "maximum": lambda g: torch.maximum(g, torch.zeros_like(g)),
    "max": lambda g: g / (1 + g.max()),
    "clamp": lambda g: g.clamp(-1.0, 1.0),
    "where": lambda g: torch.where(g > 0, g, 2 * g),
    "relu": lambda g: nn.functional.relu(g) + 0.1 * g,
    "vector_norm": lambda g: g / torch.linalg.vector_norm(g, ord=1),
    "norm": lambda g: g / g.norm(p=float("inf")),
    "a comparison": lambda g: g * min(1.0, 5.0 / g.norm()),  # clipping; at this point nothing is clipped
}


def update_with(direction: Direction) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda w, rate: w - rate * direction(SCAPE.gradient(w))


@pytest.mark.parametrize("name", KINKED)
@pytest.mark.parametrize("order", [0, 2])
def test_an_update_with_a_kink_is_refused_by_its_name(name: str, order: int) -> None:
    with pytest.raises(tacit.InputError, match=rf"the update uses .*{name}.*, which has a kink"):
        modified_flow(update_with(KINKED[name]), order=order).corrections(SCAPE.start)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_sign_descent_is_refused_for_its_kink_at_every_scale(scale: float) -> None:
    # The same code in other units: far from any kink, or with steps that cross many.
    update = update_with(lambda g: scale * torch.sign(g))
    with pytest.raises(tacit.InputError, match="uses sign, which has a kink"):
        modified_flow(update, order=1).corrections(SCAPE.start)


def lion(sign: Direction) -> MemoryMethod:
    def direction(w: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        g = SCAPE.gradient(w)
        return sign(0.9 * memory[0] + 0.1 * g), 0.99 * memory + 0.01 * g

    return MemoryMethod(direction)


def test_lion_is_refused_for_its_sign() -> None:
    with pytest.raises(tacit.InputError, match="uses sign, which has a kink"):
        modified_flow(lion(torch.sign)).corrections(SCAPE.start)


def test_the_smooth_cousin_of_lion_is_accepted() -> None:
    smooth = lion(lambda m: m / torch.sqrt(m.square() + 0.1))
    assert torch.isfinite(modified_flow(smooth).corrections(SCAPE.start)[1]).all()


def test_the_field_without_derivatives_refuses_kinks_too() -> None:
    with pytest.raises(tacit.InputError, match="uses sign, which has a kink"):
        difference_field(update_with(torch.sign))(SCAPE.start, torch.tensor(0.01, dtype=torch.float64))


@pytest.mark.parametrize(
    "smooth",
    [
        lambda g: g / g.norm(),
        lambda g: g / torch.linalg.vector_norm(g, ord=4),
        lambda g: torch.tanh(3 * g),
        lambda g: nn.functional.softplus(g),
        lambda g: g * torch.logsumexp(g, 0),
    ],
)
def test_smooth_updates_are_accepted(smooth: Direction) -> None:
    modified_flow(update_with(smooth), order=1).check(SCAPE.start)


def test_a_kink_of_the_loss_is_a_warning_and_not_a_refusal() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.sin(1.0 + torch.arange(parameter.numel())).reshape(parameter.shape))
    data = (torch.cos(torch.arange(12.0)).reshape(4, 3).double(), torch.ones(4, 1).double())
    scape = Landscape(tacit.Problem(model, nn.functional.mse_loss, data, batch_size=2))
    with pytest.warns(UserWarning, match="the loss uses relu, which is not smooth"):
        modified_flow(lambda w, rate: w - rate * scape.gradient(w)).corrections(scape.start)
