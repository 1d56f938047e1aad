"""Float64 oracles in different algebra: dense arrays and numpy, nothing from the package.

Derivatives are closed formulas (or complex steps), fields are combined by Lie brackets on dense tensors, and means over
orders are brute force.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from scipy.linalg import logm

Array = np.ndarray


# -- derivatives of one minibatch, in closed form ---------------------------------------------------------------------
def logistic_derivatives(x: Array, y: Array, w: Array) -> tuple[Array, Array, Array]:
    """∇, ∇∇, ∇³ of the mean of log(1 + exp(−y w·x)) over the rows of x."""
    p = 1 / (1 + np.exp(y * (x @ w)))  # probability of the wrong label
    first = -(p * y) @ x / len(y)
    second = np.einsum("n,na,nb->ab", p * (1 - p), x, x) / len(y)
    third = np.einsum("n,na,nb,nc->abc", -y * p * (1 - p) * (1 - 2 * p), x, x, x) / len(y)
    return first, second, third


def quadratic_derivatives(matrices: Array, centres: Array, w: Array) -> tuple[Array, Array, Array]:
    """The same for the mean of ½(w−c)ᵀA(w−c)."""
    first = np.einsum("nab,nb->a", matrices, w - centres) / len(centres)
    d = len(w)
    return first, matrices.mean(0), np.zeros((d, d, d))


def mlp_gradient(x: Array, y: Array, w: Array, hidden: int) -> Array:
    """∇ of the mean of ½(aᵀtanh(Wx+b)+c−y)², parameters flattened as W, b, a, c; works for complex w."""
    inputs = x.shape[1]
    cut = np.cumsum([hidden * inputs, hidden, hidden])
    W, b, a, c = w[: cut[0]].reshape(hidden, inputs), w[cut[0] : cut[1]], w[cut[1] : cut[2]], w[cut[2]]
    activity = np.tanh(x @ W.T + b)
    residual = (activity @ a + c - y) / len(y)
    back = np.outer(residual, a) * (1 - activity**2)
    return np.concatenate([(back.T @ x).ravel(), back.sum(0), residual @ activity, [residual.sum()]])


def mlp_derivatives(x: Array, y: Array, w: Array, hidden: int) -> tuple[Array, Array, Array]:
    """The Hessian by complex steps (exact), the third derivative by central differences of it (good to about 1e-9)."""

    def hessian(point: Array) -> Array:
        unit = 1e-30j * np.eye(len(w))
        return np.stack([mlp_gradient(x, y, point + row, hidden).imag / 1e-30 for row in unit], axis=1)

    h = 1e-4
    third = np.stack([_fourth_order(lambda s, row=row: hessian(w + s * row), h) for row in np.eye(len(w))], axis=2)
    return mlp_gradient(x, y, w, hidden), hessian(w), third


def _fourth_order(curve: Callable[[float], Array], h: float) -> Array:
    return (8 * (curve(h) - curve(-h)) - (curve(2 * h) - curve(-2 * h))) / (12 * h)


# -- formulas on dense arrays: g (m, d), H (m, d, d), T (m, d, d, d) --------------------------------------------------
def implicit_regularizer(g: Array) -> float:
    return sum(float(row @ row) for row in g) / (4 * len(g))


def gd_second(g: Array, H: Array, T: Array) -> Array:
    """From the Taylor series of the flow: ω(ε) = ω + ε f̃ + ε²/2 f̃'f̃ + ε³/6 (f̃''[f̃,f̃] + f̃'f̃'f̃) must stop at ε f."""
    f, J, B = -g, -H, -T
    f1 = -J @ f / 2
    slope_of_f1 = -(np.einsum("abc,c->ab", B, f) + J @ J) / 2  # derivative of −½ f'f
    at_three = (J @ f1 + slope_of_f1 @ f) / 2 + (np.einsum("abc,b,c->a", B, f, f) + J @ J @ f) / 6
    return -at_three


def sgd_second(g: Array, H: Array, T: Array) -> Array:
    """⟨f₂ⱼ⟩ + (m/12)⟨[fⱼ,[fⱼ,f]]⟩ with brackets [X,Y] = Y'X − X'Y of dense fields."""
    own = np.mean([gd_second(*parts) for parts in zip(g, H, T, strict=True)], axis=0)
    return own + double_bracket(g, H, T)


def double_bracket(g: Array, H: Array, T: Array) -> Array:
    f, J, B = -g.mean(0), -H.mean(0), -T.mean(0)
    total = np.zeros_like(f)
    for gj, Hj, Tj in zip(g, H, T, strict=True):
        fj, Jj, Bj = -gj, -Hj, -Tj
        inner = J @ fj - Jj @ f
        slope = np.einsum("abc,b->ac", B, fj) + J @ Jj - np.einsum("abc,b->ac", Bj, f) - Jj @ J
        total += slope @ fj - Jj @ inner
    return len(g) / 12 * total / len(g)


def xi(g: Array, H: Array, order: tuple[int, ...]) -> Array:
    return sum((H[order[j]] @ g[order[k]] for j in range(len(order)) for k in range(j)), start=np.zeros(g.shape[1]))


def xi_moments(g: Array, H: Array) -> tuple[Array, Array]:
    """Mean and covariance of ξ over all orders, by enumeration."""
    values = np.array([xi(g, H, order) for order in itertools.permutations(range(len(g)))])
    away = values - values.mean(0)
    return values.mean(0), away.T @ away / len(values)


def mean_affine_epoch(H: Array, b: Array, rate: float) -> tuple[Array, Array]:
    """The mean epoch map of quadratic minibatches with gradients Hₖω − bₖ: ω ↦ Mω + c."""
    d = H.shape[1]
    M, c = np.zeros((d, d)), np.zeros(d)
    orders = list(itertools.permutations(range(len(H))))
    for order in orders:
        A, v = np.eye(d), np.zeros(d)
        for k in order:
            step = np.eye(d) - rate * H[k]
            A, v = step @ A, step @ v + rate * b[k]
        M, c = M + A / len(orders), c + v / len(orders)
    return M, c


def exact_field_of_affine_map(M: Array, c: Array, w: Array, time: float) -> Array:
    """The field whose flow for this time is ω ↦ Mω + c, by the logarithm of the augmented matrix."""
    d = len(w)
    augmented = np.block([[M, c[:, None]], [np.zeros((1, d)), np.ones((1, 1))]])
    return np.real(logm(augmented)[:d] @ np.append(w, 1.0)) / time


def adam_first(g: Array, H: Array, beta: float, rho: float, delta: float) -> Array:
    """f₁ of Adam with δ inside the root, in the form Cattaneo, Klusowski and Shigida (2024) give it."""
    root = np.sqrt(g**2 + delta)
    slope_of_norm = H @ (g / root)  # gradient of Σ √(g² + δ)
    bracket = (1 + beta) / (1 - beta) - (1 + rho) / (1 - rho) + (1 + rho) / (1 - rho) * delta / (g**2 + delta)
    return -bracket / 2 * slope_of_norm / root
