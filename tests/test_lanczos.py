"""Lanczos iterations against dense linear algebra."""

from __future__ import annotations

import numpy as np
import pytest

from tacit._util.lanczos import extreme_eigenpairs, krylov_decomposition


def symmetric(size: int) -> np.ndarray:
    square = np.sin(np.arange(size * size) * 0.7).reshape(size, size)
    return square + square.T + np.diag(np.linspace(-3, 2, size))


@pytest.mark.parametrize("size", [5, 60])
@pytest.mark.parametrize("which", ["LA", "LM"])
def test_extreme_eigenpairs_are_those_of_the_dense_matrix(size: int, which: str) -> None:
    matrix = symmetric(size)
    values, vectors = extreme_eigenpairs(lambda v: matrix @ v, np.ones(size), count=3, which=which, tolerance=1e-10)
    exact = np.linalg.eigvalsh(matrix)
    expected = exact[-3:] if which == "LA" else exact[np.argsort(np.abs(exact))[-3:]]
    assert values == pytest.approx(expected, rel=1e-8)
    assert np.allclose(matrix @ vectors, vectors * values, atol=1e-6)


def test_a_function_of_a_matrix_times_a_vector_is_exact_with_as_many_steps_as_dimensions() -> None:
    matrix, start = symmetric(30), np.cos(np.arange(30.0))
    values, vectors, components = krylov_decomposition(lambda v: matrix @ v, start, steps=30)
    exact_values, exact_vectors = np.linalg.eigh(matrix)
    expected = exact_vectors @ (np.exp(0.3 * exact_values) * (exact_vectors.T @ start))
    assert np.allclose(vectors @ (np.exp(0.3 * values) * components), expected, rtol=1e-10, atol=1e-10)
    assert np.allclose(vectors.T @ vectors, np.eye(len(values)), atol=1e-12)


def test_few_steps_suffice_for_a_few_different_eigenvalues() -> None:
    diagonal = np.array([1.0, 1.0, 1.0, 5.0, 5.0, -2.0])
    values, vectors, components = krylov_decomposition(lambda v: diagonal * v, np.ones(6), steps=6)
    assert values == pytest.approx([-2.0, 1.0, 5.0])
    assert np.allclose(vectors @ (values * components), diagonal)


def test_a_zero_matrix_and_a_zero_vector_are_no_errors() -> None:
    values, _ = extreme_eigenpairs(lambda v: np.zeros_like(v), np.ones(50))
    assert values.tolist() == [0.0]
    assert krylov_decomposition(lambda v: v, np.zeros(4), steps=3)[0].size == 0
