"""Lanczos iterations on products with a symmetric matrix: extreme eigenvalues, and functions of it times a vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from tacit._util.errors import InputError

Array = np.ndarray
Product = Callable[[Array], Array]  # v ↦ A v, float64 vectors
DENSE = 20  # up to so many dimensions the whole matrix is made: Lanczos needs more dimensions than eigenvalues
BREAKDOWN = 1e-12  # of a residual beside the matrix: the Krylov space is complete


def extreme_eigenpairs(
    product: Product,
    start: Array,
    *,
    count: int = 1,
    which: Literal["LA", "LM"] = "LA",
    tolerance: float = 1e-3,
) -> tuple[Array, Array]:
    """The `count` largest eigenvalues, ascending, and their eigenvectors as columns.

    "LA" is the algebraically largest, "LM" the largest in size. `start` is any generic vector; its length is the size.

    >>> values, _ = extreme_eigenpairs(lambda v: np.array([1.0, -3.0]) * v, np.ones(2), which="LM")
    >>> values.tolist()
    [-3.0]
    """
    size = len(start)
    if count < 1 or count > size:
        raise InputError(f"count={count}; expected between 1 and the size {size}.")
    if size <= DENSE or count >= size - 1:
        matrix = np.stack([product(row) for row in np.eye(size)])
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        order = np.argsort(values if which == "LA" else np.abs(values), kind="stable")[-count:]
        return values[order], vectors[:, order]
    if not product(start).any():  # a linear loss; Lanczos stops at once, and ARPACK calls that an error
        return np.zeros(count), np.eye(size)[:, :count]
    from scipy.sparse.linalg import LinearOperator, eigsh

    operator = LinearOperator((size, size), matvec=lambda v: product(v.reshape(-1)), dtype=np.float64)
    values, vectors = eigsh(operator, k=count, which=which, v0=start, tol=tolerance)
    order = np.argsort(values if which == "LA" else np.abs(values), kind="stable")
    return values[order], vectors[:, order]


def krylov_decomposition(product: Product, start: Array, *, steps: int) -> tuple[Array, Array, Array]:
    """(Ritz values θ, Ritz vectors as columns, components of `start` along them) of the Krylov space of `start`.

    A ≈ Σ θᵢ yᵢyᵢᵀ as far as `start` can see it, so that F(A)·start ≈ Σ F(θᵢ) cᵢ yᵢ, exactly once `steps` reaches the
    number of different eigenvalues. Full reorthogonalization: the basis stays orthonormal to rounding.
    """
    length = float(np.linalg.norm(start))
    if length == 0:
        return np.zeros(0), np.zeros((len(start), 0)), np.zeros(0)
    basis, diagonal, beside = [start / length], [], []
    for _ in range(min(steps, len(start))):
        residual = product(basis[-1])
        diagonal.append(float(basis[-1] @ residual))
        known = np.stack(basis)
        for _ in range(2):  # once is not enough when much cancels
            residual = residual - known.T @ (known @ residual)
        left = float(np.linalg.norm(residual))
        if left <= BREAKDOWN * max(map(abs, diagonal)):
            break
        beside.append(left)
        basis.append(residual / left)
    kept = len(diagonal)
    tridiagonal = np.diag(diagonal) + np.diag(beside[: kept - 1], 1) + np.diag(beside[: kept - 1], -1)
    values, rotation = np.linalg.eigh(tridiagonal)
    return values, np.stack(basis[:kept]).T @ rotation, length * rotation[0]
