"""Whether a modified flow descends a modified loss, and which one.

A field is the gradient of a loss exactly where its Jacobian is symmetric. Zeroth order first: f₀ = −a ∇C for most
methods, a their speed. Then f₁: where f₁ = −b ∇∇C ∇C, the flow descends C + (b/2a) ε ‖∇C‖², and gradient descent
(a = 1, b = ½) has the paper's quarter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import jacfwd, jvp

from tacit._util.random_generators import generator
from tacit.theory.landscape import Field, Landscape
from tacit.theory.logarithm import ModifiedFlow

DENSE = 40  # up to so many parameters the whole Jacobian is made
PROBES = 16
SYMMETRIC = 1e-8  # automatic derivatives leave 1e-13 or so; what is not a gradient shows per cents
VANISHES = 1e-10  # of f₁ beside |f₀'f₀|, its natural size


@dataclass(frozen=True)
class ModifiedLoss:
    """Which loss one update follows to first order in ε, on one problem.

    `speed` is a in f₀ = −a∇C and None when f₀ is something else; `penalty` is c in C + c ε‖∇C‖² and None when f₁ is
    something else. Asymmetries are ‖J − Jᵀ‖/‖J‖ of the Jacobians of f₀ and f₁, the largest over three points; zero
    where the field vanishes.
    """

    problem: str
    speed: float | None
    penalty: float | None
    zeroth_asymmetry: float
    first_asymmetry: float

    @property
    def exists(self) -> bool:
        """Whether f₀ and f₁ are both gradients, so that f₀ + εf₁ descends a loss."""
        return max(self.zeroth_asymmetry, self.first_asymmetry) <= SYMMETRIC

    def __str__(self) -> str:
        if self.zeroth_asymmetry > SYMMETRIC:
            return f"no loss: f₀ is not a gradient ({_beside_rounding(self.zeroth_asymmetry)}); only a flow exists"
        first = f"f₁ is not a gradient ({_beside_rounding(self.first_asymmetry)}); beyond ε⁰ only a flow exists"
        if self.speed is None:
            return "a loss other than C: f₀ and f₁ are gradients" if self.exists else f"a loss other than C; {first}"
        pace = "" if self.speed == 1 else f", at {self.speed:.6g} times the rate"
        if not self.exists:
            return f"C{pace}; {first}"
        if self.penalty is None:
            return f"C + ε·(a loss other than ‖∇C‖²){pace}"
        if self.penalty == 0:
            return f"C, without a correction of order ε{pace}"
        return f"C {'+' if self.penalty > 0 else '−'} {abs(self.penalty):.6g} ε‖∇C‖²{pace}"


def _beside_rounding(size: float) -> str:
    """An asymmetry beside the largest that is taken for rounding, so that a reader tells a small one from noise."""
    return f"asymmetry {size:.2g}, {SYMMETRIC:g} or less would be rounding"


def modified_loss_of(flow: ModifiedFlow, scape: Landscape, *, problem: str = "problem") -> ModifiedLoss:
    """Measure it at the start of the landscape and at two points beside it. The flow must have order 1 or more."""
    zeroth, first = flow.correction(0), flow.correction(1)
    beside = 0.1 * torch.cos(torch.arange(scape.size, dtype=torch.float64) + 0.5)
    points = [scape.start, scape.start + beside, scape.start - beside]
    vanishes = all(
        first(w).norm() <= VANISHES * jvp(zeroth, (w,), (zeroth(w),))[1].norm().clamp(min=1e-300) for w in points
    )
    speed = _common_factor([(zeroth(w), -scape.gradient(w)) for w in points])
    slowed = _common_factor([(first(w), -scape.hessian_product(w, scape.gradient(w))) for w in points])
    penalty = None
    if speed is not None and (vanishes or slowed is not None):
        penalty = 0.0 if vanishes else _rounded(float(slowed or 0.0) / (2 * speed))
    return ModifiedLoss(
        problem,
        None if speed is None else _rounded(speed),
        penalty,
        max(asymmetry(zeroth, w) for w in points),
        0.0 if vanishes else max(asymmetry(first, w) for w in points),
    )


def asymmetry(field: Field, w: Tensor, *, seed: int = 0) -> float:
    """‖J − Jᵀ‖/‖J‖ (Frobenius) of the field's Jacobian: zero exactly where the field is a gradient.

    Beyond 40 parameters an estimate from 16 pairs of random directions, E(uᵀJv − vᵀJu)²/E(uᵀJv)².

    >>> spiral = torch.tensor([[1.0, 1.0], [-1.0, 1.0]], dtype=torch.float64)
    >>> round(asymmetry(lambda w: spiral @ w, torch.ones(2, dtype=torch.float64)), 3)
    1.414
    """
    if w.numel() <= DENSE:
        jacobian = jacfwd(field)(w)
        return ((jacobian - jacobian.T).norm() / jacobian.norm().clamp(min=1e-300)).item()
    draws = torch.randn(PROBES, 2, w.numel(), generator=generator(seed, "probe"), dtype=torch.float64)
    crossed, size = 0.0, 0.0
    for u, v in draws:
        one, other = (u @ jvp(field, (w,), (v,))[1]).item(), (v @ jvp(field, (w,), (u,))[1]).item()
        crossed, size = crossed + (one - other) ** 2, size + (one**2 + other**2) / 2
    return math.sqrt(crossed / max(size, 1e-300))


def loss_difference(field: Field, start: Tensor, end: Tensor, *, nodes: int = 16) -> float:
    """L(end) − L(start) of the loss that the field descends, −∫ field · dω along the straight line, by Gauss' rule.

    It depends on the path unless the field is a gradient: ask `asymmetry` first.

    >>> half = loss_difference(lambda w: -w, torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    >>> round(half, 12)                                                    # L = ½‖w‖²
    1.0
    """
    import numpy as np

    places, weights = np.polynomial.legendre.leggauss(nodes)
    along = end - start
    values = [(field(start + (1 + place) / 2 * along) @ along).item() for place in places]
    return -float(np.dot(weights, values)) / 2


def _common_factor(pairs: list[tuple[Tensor, Tensor]]) -> float | None:
    """The number a with found = a · expected for every pair, to nine digits; None when there is none."""
    found, expected = torch.cat([pair[0] for pair in pairs]), torch.cat([pair[1] for pair in pairs])
    factor = (found @ expected / expected.square().sum().clamp(min=1e-300)).item()
    return factor if (found - factor * expected).norm() <= 1e-9 * found.norm() else None


def _rounded(value: float) -> float:
    """Without the last digits, which are rounding."""
    return float(f"{value:.10g}")
