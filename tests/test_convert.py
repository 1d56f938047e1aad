"""Each foreign update, written as its authors write it, equals g + (λ/2) Hg with the converted λ.

The Hessian is an explicit matrix, so that nothing here rests on the package's own penalty. On a quadratic every
finite difference is exact, which separates a wrong factor from a truncation error; the tanh network then shows that
the factor does not owe its success to a constant Hessian.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tacit.convert import CONVENTIONS, from_strength, to_strength


@dataclass(frozen=True)
class Point:
    """A loss of one vector, and where it is looked at."""

    loss: Callable[[Tensor], Tensor]
    at: Tensor

    def gradient(self, at: Tensor | None = None) -> Tensor:
        return torch.func.grad(self.loss)(self.at if at is None else at)

    def hessian(self) -> Tensor:
        return torch.func.hessian(self.loss)(self.at)

    def gradient_of(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.func.grad(function)(self.at)


def quadratic() -> Point:
    draws = torch.Generator().manual_seed(7)
    root = torch.randn(5, 5, generator=draws, dtype=torch.float64)
    matrix, shift = root @ root.T, torch.randn(5, generator=draws, dtype=torch.float64)
    at = torch.randn(5, generator=draws, dtype=torch.float64)
    return Point(lambda w: 0.5 * w @ matrix @ w + shift @ w, at)


def tanh_network() -> Point:
    draws = torch.Generator().manual_seed(8)
    inputs = torch.randn(6, 3, generator=draws, dtype=torch.float64)
    targets = torch.randn(6, generator=draws, dtype=torch.float64)
    at = 0.7 * torch.randn(3 * 4 + 4, generator=draws, dtype=torch.float64)

    def loss(w: Tensor) -> Tensor:
        hidden = torch.tanh(inputs @ w[:12].reshape(3, 4))
        return (hidden @ w[12:] - targets).square().mean()

    return Point(loss, at)


POINTS = {"quadratic": quadratic, "tanh_network": tanh_network}
RATE, TINY = 0.3, 1e-6


def squared_norm_at(point: Point) -> Callable[[Tensor], Tensor]:
    return lambda w: torch.func.grad(point.loss)(w).square().sum()


# -- what each code base does with its coefficient --------------------------------------------------------------------
def fullbatchtraining(point: Point, block_strength: float) -> Tensor:
    gradient = point.gradient()
    direction = block_strength * gradient
    step = TINY / direction.norm()
    return gradient + RATE / 4 * (point.gradient(point.at + step * direction) - gradient) / step


def fullbatchtraining_pen(point: Point, block_strength: float) -> Tensor:
    norm = squared_norm_at(point)
    return point.gradient() + RATE / 4 * point.gradient_of(lambda w: block_strength * norm(w))


def imp_regularizers(point: Point, exter_lambda: float) -> Tensor:
    norm = squared_norm_at(point)
    return point.gradient_of(lambda w: point.loss(w) + exter_lambda * norm(w))


def sam(point: Point, rho: float) -> Tensor:
    gradient = point.gradient()
    return point.gradient(point.at + rho * gradient / gradient.norm())


def gnp(point: Point, product: float) -> Tensor:
    alpha = 0.8
    radius = product / alpha
    gradient = point.gradient()
    return (1 - alpha) * gradient + alpha * point.gradient(point.at + radius * gradient / gradient.norm())


def trl(point: Point, strength: float) -> Tensor:
    first = point.gradient()
    return first + strength / TINY * (point.gradient(point.at + TINY * first) - first)


def barrett_dherin(point: Point, coefficient: float) -> Tensor:
    norm = squared_norm_at(point)
    return point.gradient_of(lambda w: point.loss(w) + coefficient * norm(w) / w.numel())


def discretisation_drift(point: Point, multiplier: float) -> Tensor:
    """Gradient descent at rate h drifts as if its loss had (h/4)‖g‖²; theirs multiplies that term."""
    norm = squared_norm_at(point)
    return point.gradient_of(lambda w: point.loss(w) + multiplier * RATE / 4 * norm(w))


THEIRS = {
    function.__name__: function
    for function in (
        fullbatchtraining,
        fullbatchtraining_pen,
        imp_regularizers,
        sam,
        gnp,
        trl,
        barrett_dherin,
        discretisation_drift,
    )
}
SMALL_RADIUS = {"sam", "gnp"}  # equal to first order in their coefficient: look at a tiny one


def context(convention: str, point: Point) -> dict[str, float]:
    known = {
        "learning_rate": RATE,
        "gradient_norm": point.gradient().norm().item(),
        "parameter_count": point.at.numel(),
    }
    return {name: known[name] for name in CONVENTIONS[convention].needs}


def test_every_convention_of_the_table_is_tried_here() -> None:
    assert set(THEIRS) == set(CONVENTIONS)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("place", POINTS)
def test_the_converted_strength_gives_their_update_direction(place: str, convention: str) -> None:
    point = POINTS[place]()
    coefficient = TINY if convention in SMALL_RADIUS else 0.37
    ours = to_strength(convention, coefficient, **context(convention, point)) / 2 * point.hessian() @ point.gradient()
    theirs = THEIRS[convention](point, coefficient) - point.gradient()
    # Differences over 1e-6 lose ten of sixteen digits; their truncation is of order 1e-6. A wrong factor is 2 or more.
    assert (theirs - ours).norm() / ours.norm() < 2e-5


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_there_and_back_is_the_same_number(convention: str) -> None:
    facts = context(convention, tanh_network())
    assert from_strength(convention, to_strength(convention, 0.37, **facts), **facts) == pytest.approx(0.37, rel=1e-15)


def test_known_pairs_from_their_papers() -> None:
    assert to_strength("barrett_dherin", 0.1 * 500 / 4, parameter_count=500) == pytest.approx(0.1)  # λ_BD = hp/4
    assert to_strength("discretisation_drift", -1.0, learning_rate=0.1) == pytest.approx(-0.1)  # cancels ε = 0.1
    pair = [to_strength(name, 0.5, learning_rate=0.8) for name in ("fullbatchtraining", "fullbatchtraining_pen")]
    assert pair == pytest.approx([0.2, 0.4])


def test_the_documented_table_names_every_convention_and_no_other() -> None:
    page = (Path(__file__).parents[1] / "docs" / "choosing-a-method.md").read_text()
    section = page.split("## Coming from another code base")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(CONVENTIONS)
