"""The principal flow: what gradient descent follows when εh is not small.

On a quadratic with curvature h one step multiplies by 1 − εh, so the flow that passes through the iterates is known
without a series: ω̇ = log(1 − εH)/(εH) ∇C (Rosca et al., 2023). The factor on −∇C along an eigendirection,

    −log(1 − εh)/(εh) = 1 + εh/2 + (εh)²/3 + …,

resums the Hessian chains of every order. The series stops converging at εh = 1; beyond, the iterate changes sign with
every step, and its size shrinks by |1 − εh|. The real field below has log|1 − εh| there, and its flow passes through
every second iterate.

On a network third derivatives count as much: an oscillation along a sharp direction pushes all the others. Resumming
the Hessian chains around one third derivative as well gives the next field; see `coupling_factor`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import hessian, jacfwd

from tacit._util.arguments import finite_number, whole_number
from tacit._util.lanczos import krylov_decomposition
from tacit.problem import Problem
from tacit.theory.landscape import Field, Landscape, view

DENSE = 64  # up to so many parameters all eigendirections are computed
APART = 6  # sharpest directions that third derivatives tell apart
FASTEST = 1e-3  # a direction that shrinks to less in one step is gone: the logarithm is cut there


def principal_factor(scaled_curvature: Tensor) -> Tensor:
    """−log|1 − x|/x at x = εh: how much faster than gradient flow gradient descent moves along a direction.

    1 at 0; infinite at 1, where it is cut; 0 at 2, the edge of stability, and negative beyond, where it diverges.

    >>> [round(principal_factor(torch.tensor(x)).item(), 3) for x in (0.0, 0.92, 1.5)]
    [1.0, 2.745, 0.462]
    """
    x = scaled_curvature
    small = x.abs() < 1e-4
    series = 1 + x / 2 + x.square() / 3  # the next term is 1e-12 / 4
    safe = torch.where(small, torch.ones_like(x), x)
    return torch.where(small, series, -torch.log((1 - safe).abs().clamp(min=FASTEST)) / safe)


def coupling_factor(k: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """ψ(x_k, xᵢ, xⱼ): the weight of −½ ε² T_kij gᵢ gⱼ in the field, x = εh of the three directions.

    ψ xᵢ xⱼ = log|u|/(μ_k (u − 1)) − φ(x_k) − xⱼ φ[x_k, xⱼ] − xᵢ φ[x_k, xᵢ],     u = μᵢμⱼ/μ_k,  μ = 1 − x,

    φ the principal factor and φ[·, ·] its divided difference. From the map a_k ↦ μ_k a_k − (ε/2) T_kij aᵢ aⱼ around a
    minimum: the flow that passes through its (even) iterates to second order in a is ȧ_k = log|μ_k| a_k/ε
    − ½ T_kij log|u|/(μ_k (u − 1)) aᵢ aⱼ, of which the principal factor of the moving Hessian is a part already. At
    small curvature ψ = 1/6, which is the −(ε²/12) T[g, g] of f₂. Not in the literature that we know.

    >>> zero = torch.zeros((), dtype=torch.float64)
    >>> round(coupling_factor(zero, zero, zero).item(), 3)
    0.167
    """
    k, i, j = _regular(k), _away_from_zero(_regular(i)), _away_from_zero(_regular(j))
    kept = (1 - i) * (1 - j) / (1 - k)
    own = _slope_of_logarithm(kept) / (1 - k)
    return (own - principal_factor(k) - j * _divided_difference(k, j) - i * _divided_difference(k, i)) / (i * j)


def _regular(x: Tensor) -> Tensor:
    """Away from x = 1, where a direction is gone after one step."""
    return torch.where((1 - x).abs() < FASTEST, torch.full_like(x, 1 - FASTEST), x)


def _away_from_zero(x: Tensor) -> Tensor:
    """The factor is continuous at 0, but 0/0 there: its value at 1e-3 is good to 1e-3."""
    return torch.where(x.abs() < 1e-3, torch.full_like(x, 1e-3), x)


def _slope_of_logarithm(u: Tensor) -> Tensor:
    """log|u|/(u − 1)."""
    near = (u - 1).abs() < 1e-6
    safe = torch.where(near, torch.full_like(u, 2.0), u)
    return torch.where(near, 1 - (u - 1) / 2, torch.log(safe.abs().clamp(min=1e-300)) / (safe - 1))


def _divided_difference(a: Tensor, b: Tensor) -> Tensor:
    """(φ(a) − φ(b))/(a − b), by a central difference where a and b meet."""
    middle = (a + b) / 2
    half = torch.where((a - b).abs() < 1e-4, torch.full_like(a, 5e-5), (a - b).abs() / 2)
    return (principal_factor(middle + half) - principal_factor(middle - half)) / (2 * half)


def principal_field(
    problem: Problem | Landscape,
    *,
    learning_rate: float,
    third_derivatives: bool = False,
    krylov_steps: int = 40,
) -> Field:
    """ω ↦ −Σᵢ [−log|1 − εhᵢ|/(εhᵢ)] (vᵢ·∇C) vᵢ, the field of the principal flow.

    With `third_derivatives` also −½ ε² Σ ψ(x_k, xᵢ, xⱼ) T_kij gᵢ gⱼ, exact to second order in the distance from a
    minimum.

    All eigendirections up to 64 parameters; beyond, those that the gradient sees, by `krylov_steps` Lanczos iterations
    from it, and in ψ the six with the largest |εh|, all others counting as flat. Integrate to 1e-6, not to 1e-12: the
    field is cut at εh = 1, and jumps a little where a seventh direction overtakes the sixth.
    """
    scape, _ = view(problem)
    rate = finite_number("learning_rate", learning_rate, positive=True)
    steps = whole_number("krylov_steps", krylov_steps, at_least=1)

    def field(w: Tensor) -> Tensor:
        spectrum = _dense_spectrum(scape, w) if scape.size <= DENSE else _krylov_spectrum(scape, w, steps)
        moved = -spectrum.vectors @ (principal_factor(rate * spectrum.values) * spectrum.components)
        if not third_derivatives:
            return moved
        coupling = _dense_coupling if scape.size <= DENSE else _krylov_coupling
        return moved + coupling(scape, rate, w, spectrum)

    return field


@dataclass(frozen=True)
class _Spectrum:
    """Eigenvalues of the Hessian, eigenvectors as columns, and the components of the gradient along them."""

    values: Tensor
    vectors: Tensor
    components: Tensor


def _dense_spectrum(scape: Landscape, w: Tensor) -> _Spectrum:
    values, vectors = torch.linalg.eigh(hessian(scape.loss)(w))
    return _Spectrum(values, vectors, vectors.T @ scape.gradient(w))


def _krylov_spectrum(scape: Landscape, w: Tensor, steps: int) -> _Spectrum:
    def product(v: np.ndarray) -> np.ndarray:
        return scape.hessian_product(w, torch.from_numpy(v)).detach().numpy()

    found = krylov_decomposition(product, scape.gradient(w).detach().numpy(), steps=steps)
    return _Spectrum(*[torch.from_numpy(part) for part in found])


def _dense_coupling(scape: Landscape, rate: float, w: Tensor, spectrum: _Spectrum) -> Tensor:
    """−½ ε² Σ_kij v_k ψ(x_k, xᵢ, xⱼ) T_kij gᵢ gⱼ, all directions apart."""
    vectors, x = spectrum.vectors, rate * spectrum.values
    third = torch.einsum("abc,ak,bi,cj->kij", jacfwd(hessian(scape.loss))(w), vectors, vectors, vectors)
    factors = coupling_factor(*torch.broadcast_tensors(x[:, None, None], x[None, :, None], x[None, None, :]))
    pushed = torch.einsum("kij,i,j->k", factors * third, spectrum.components, spectrum.components)
    return -(rate**2) / 2 * vectors @ pushed


def _krylov_coupling(scape: Landscape, rate: float, w: Tensor, spectrum: _Spectrum) -> Tensor:
    """The same with the gradient split into its sharpest parts and one rest, which counts as flat."""
    x = rate * spectrum.values
    kept = x.abs().argsort(descending=True)[:APART]
    sharp, curvatures = spectrum.vectors[:, kept], torch.cat([x[kept], torch.zeros(1, dtype=torch.float64)])
    parts = (sharp * spectrum.components[kept]).T
    parts = torch.cat([parts, (spectrum.vectors @ spectrum.components - parts.sum(0)).unsqueeze(0)])
    left, right = torch.triu_indices(len(parts), len(parts))
    pushes = scape.map(lambda u, v: scape.third(w, u, v), parts[left], parts[right])
    pushes = pushes * torch.where(left == right, 1.0, 2.0)[:, None]
    factors = coupling_factor(*torch.broadcast_tensors(curvatures, curvatures[left, None], curvatures[right, None]))
    flat = factors[:, -1] @ pushes
    beyond_flat = ((factors[:, :-1] - factors[:, -1:]) * (pushes @ sharp)).sum(0)
    return -(rate**2) / 2 * (flat + sharp @ beyond_flat)
