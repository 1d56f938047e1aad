"""SAM, whole and from a sample of rows, beside the gradient penalty: where they are one regularizer and where not."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from theory_cases import dense, relative
from torch import Tensor

from tacit.theory import (
    Landscape,
    modified_flow,
    modified_flow_symbolic,
    problems,
    sam,
    sam_field,
    sam_from_rows,
    sam_terms,
)
from tacit.theory.flows import flow_at_rates
from tacit.theory.study import observed_order

CASES = ("logistic", "tanh_mlp")
RATES = torch.tensor([0.02, 0.01, 0.005, 0.0025], dtype=torch.float64)


def rows_of(case: str, rows: int) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    """The problem with single rows as minibatches, g_S for every sample S, and H and T of the whole, dense."""
    problem = problems.PROBLEMS[case](batches=6, batch_size=1)
    g, H, T = dense(problem)
    samples = np.array([g[list(s)].mean(0) for s in itertools.combinations(range(6), rows)])
    return problem, samples, H.mean(0), T.mean(0)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 6])
@pytest.mark.parametrize("case", CASES)
def test_the_terms_of_rho_and_rho_squared_are_those_of_dense_formulas(case: str, rows: int, normalized: bool) -> None:
    problem, directions, H, T = rows_of(case, rows)
    directions = directions / np.linalg.norm(directions, axis=1, keepdims=True) if normalized else directions
    found = sam_terms(problem, rows=rows, normalized=normalized)
    assert relative(found.first, -H @ directions.mean(0)) < 1e-12
    spread = np.einsum("abc,nb,nc->a", T, directions, directions) / len(directions)
    assert relative(found.second, -spread / 2) < 1e-8


@pytest.mark.parametrize("case", CASES)
def test_without_normalization_the_sample_adds_nothing_at_first_order_and_its_covariance_at_second(case: str) -> None:
    problem, _, _, T = rows_of(case, 6)
    g, _, _ = dense(problem)
    away = g - g.mean(0)
    whole = sam_terms(problem, normalized=False)
    for rows in (1, 2, 3):
        part = sam_terms(problem, rows=rows, normalized=False)
        assert torch.allclose(part.first, whole.first, rtol=1e-12)
        assert torch.allclose(part.mixed, whole.mixed, rtol=1e-9)
        factor = (6 - rows) / (5 * rows)
        expected = -factor * np.einsum("abc,nb,nc->a", T, away, away) / 6 / 2
        assert relative(part.second - whole.second, expected) < 1e-7


@pytest.mark.parametrize("case", CASES)
def test_the_rows_of_the_direction_are_a_part_of_the_batch(case: str) -> None:
    """⟨H g_S⟩ = Hg over samples of the batch, while rows that give both (a micro-batch's own SAM) have ⟨H_S g_S⟩."""
    problem, samples, H, _ = rows_of(case, 1)
    g, each, _ = dense(problem)
    both = np.einsum("kab,kb->ka", each, g).mean(0)
    assert relative(sam_terms(problem, rows=1, normalized=False).first, -H @ samples.mean(0)) < 1e-12
    assert relative(sam_terms(problem, rows=1, normalized=False).first, -both) > 0.05


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("rows", [2, 6])
def test_the_field_agrees_with_the_automatic_flow_of_the_mean_update(rows: int, normalized: bool) -> None:
    """Terms beyond second order in ρ and ε together are left out: halving both divides the distance by about 2³."""
    scape = Landscape(problems.tanh_mlp(batches=6, batch_size=1))
    distances = []
    for size in (0.04, 0.02):
        update = sam_from_rows(scape, radius=size, rows=rows, normalized=normalized)
        automatic = modified_flow(update, order=2, method="nodes")(scape.start, size)
        field = sam_field(scape, radius=1.0, rows=rows, normalized=normalized)
        distances.append((field(scape.start, torch.tensor(size, dtype=torch.float64)) - automatic).norm().item())
    assert 6.5 < distances[0] / distances[1] < 9.5


def penalized(scape: Landscape, ratio: float) -> Any:
    """ω − ε∇(C + (λ/4)‖∇C‖²), λ = ratio·ε."""
    return lambda w, e: w - e * (scape.gradient(w) + ratio * e / 2 * scape.hessian_product(w, scape.gradient(w)))


@pytest.mark.parametrize("case,order", [("logistic", 3), ("tanh_mlp", 3), ("quadratic", None)])
def test_sam_without_normalization_is_the_penalty_of_strength_two_rho_until_rho_squared(
    case: str, order: int | None
) -> None:
    scape = Landscape(problems.PROBLEMS[case]())

    def walked(update: Any) -> Tensor:
        points = scape.start.expand(len(RATES), -1)
        for _ in range(3):
            points = torch.func.vmap(update)(points, RATES)
        return points

    moved = walked(lambda w, e: w - e * scape.gradient(w + e * scape.gradient(w)))
    distances = (moved - walked(penalized(scape, 2.0))).norm(dim=1)
    seen = observed_order(tuple(RATES.tolist()), tuple(distances.tolist()))
    # One step differs by ε·½ρ²T[g,g] = ½ε³T[g,g] with ρ = ε; on a quadratic T is zero and nothing differs.
    assert seen == (None if order is None else pytest.approx(order, abs=0.15))
    wrong = (moved - walked(penalized(scape, 1.0))).norm(dim=1)  # λ = ρ: an order is lost
    assert observed_order(tuple(RATES.tolist()), tuple(wrong.tolist())) == pytest.approx(2, abs=0.15)


def test_the_symbols_of_sam_and_of_the_penalty_part_at_rho_squared() -> None:
    sam_flow = modified_flow_symbolic(lambda p, step, probe: p + step(p - probe(p)), order=2)
    assert sam_flow.coefficient(0, "f'f") == -sam_flow.coefficient(0, "f''[f,f]").diff() == -sympy_radius()
    assert sam_flow.modified_loss() == "C + ¼ ε‖∇C‖² + ½ ρ‖∇C‖²"


def sympy_radius() -> Any:
    import sympy

    return sympy.Symbol("ρ")


def test_the_flow_of_the_whole_loses_two_orders_against_sam_from_rows() -> None:
    scape = Landscape(problems.logistic(batches=6, batch_size=1))
    mean = sam_from_rows  # one step in the mean over draws
    ends = torch.stack([mean(scape, radius=rate.item(), rows=2)(scape.start, rate) for rate in RATES])
    for rows, order in ((2, 4), (6, 2)):
        reached = flow_at_rates(sam_field(scape, radius=1.0, rows=rows), scape.start, RATES, updates=1)
        errors = (ends - reached).norm(dim=1)
        assert observed_order(tuple(RATES.tolist()), tuple(errors.tolist())) == pytest.approx(order, abs=0.15)


def test_all_rows_are_the_update_of_sam() -> None:
    scape, rate = Landscape(problems.logistic()), torch.tensor(0.1, dtype=torch.float64)
    assert torch.allclose(sam_from_rows(scape, rows=8)(scape.start, rate), sam(scape)(scape.start, rate), rtol=1e-14)


def test_a_normalized_direction_from_fewer_rows_is_shorter_in_the_mean() -> None:
    scape = Landscape(problems.logistic(batches=6, batch_size=1))
    sizes = [sam_terms(scape, rows=rows).first.norm().item() for rows in (1, 2, 4, 6)]
    assert sizes == sorted(sizes)
