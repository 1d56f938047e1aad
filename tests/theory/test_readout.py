"""The flow of the point that a method returns: averages of iterates, schedule-free, and memories that nobody reads."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import sympy
import theory_oracles as oracles
import torch
from theory_cases import CASES, dense, relative
from torch import Tensor

import tacit
from tacit.theory import (
    Landscape,
    MemoryMethod,
    adam,
    averaged_gd,
    gd_update,
    heavy_ball,
    modified_flow,
    modified_flow_symbolic,
    problems,
    verify_update,
)

KEEP = sympy.Symbol("κ")


def gd(p: Any, step: Any) -> Any:
    return p + step(p)


# -- in symbols -------------------------------------------------------------------------------------------------------
def test_an_average_of_the_iterates_has_a_flow_of_its_own_from_the_second_order_on() -> None:
    flow = modified_flow_symbolic(gd, order=2, readout=lambda p, average: average(p, KEEP))
    assert str(flow).splitlines() == [
        "f₀ = f",
        "f₁ = − ½ f'f",
        # ages of mean κ/(1−κ) shift the time; their variance κ/(1−κ)² bends the path: 1/12 + ½κ/(1−κ)²
        "f₂ = ⅓ f'f'f + (κ² + 4κ + 1)/(12(1−κ)²) f''[f,f]",
    ]


@pytest.mark.parametrize("window", [2, 3, 5])
def test_polyaks_mean_over_a_window_adds_the_variance_of_its_ages(window: int) -> None:
    def polyak(p: Any, step: Any) -> Any:
        total, point = p, p
        for _ in range(window - 1):
            point = point + step(point)
            total = total + point
        return total / window

    flow = modified_flow_symbolic(gd, order=2, readout=polyak)
    assert flow.terms[:2] == modified_flow_symbolic(gd, order=1).terms
    assert flow.coefficient(2, "f''[f,f]") == Fraction(1, 12) + Fraction(window**2 - 1, 24)


def test_the_iterate_as_readout_changes_nothing() -> None:
    assert modified_flow_symbolic(gd, order=3, readout=lambda p, step: p).terms == modified_flow_symbolic("gd", 3).terms
    momentum = modified_flow_symbolic("heavy_ball", order=2, momentum=0.5)
    assert modified_flow_symbolic("heavy_ball", 2, momentum=0.5, readout=lambda p, step: p).terms == momentum.terms


def test_schedule_free_penalizes_the_gradient_by_its_lag() -> None:
    beta, weight = sympy.symbols("β c")

    def free(z: Any, step: Any, average: Any) -> Any:
        return z + step(z + beta * (average(z, 1 - weight) - z))

    for readout in (None, lambda z, average: average(z, 1 - weight)):
        flow = modified_flow_symbolic(free, order=1, readout=readout)
        lag = Fraction(1, 2) + beta * (1 - weight) / weight
        assert sympy.simplify(flow.coefficient(1, "f'f") + lag) == 0


# -- in numbers -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("case", CASES[1:])
def test_numeric_and_closed_corrections_of_an_average_agree(case: str) -> None:
    problem = problems.PROBLEMS[case]()
    scape, keep = Landscape(problem), 0.6
    g, H, T = (part.mean(0) for part in dense(problem))
    found = modified_flow(averaged_gd(scape, keep=keep), order=2).corrections(scape.start)
    bent = oracles.gd_second(g, H, T) - keep / (2 * (1 - keep) ** 2) * (T @ g @ g)
    assert relative(found[0], -g) < 1e-12
    assert relative(found[1], -H @ g / 2) < 1e-12
    assert relative(found[2], bent) < 1e-8  # the third derivatives of the oracle are differences


def test_a_mean_over_the_next_iterates_is_the_readout_of_a_map() -> None:
    scape = Landscape(problems.logistic())
    update = gd_update(scape)

    def polyak(w: Tensor, rate: Tensor) -> Tensor:
        points = [w]
        for _ in range(2):
            points.append(update(points[-1], rate))
        return torch.stack(points).mean(0)

    found = modified_flow(update, order=2, readout=polyak).corrections(scape.start)
    g = scape.gradient(scape.start)
    plain = modified_flow(update, order=2).corrections(scape.start)
    expected = plain[2] - (9 - 1) / 24 * scape.third(scape.start, g, g)
    assert (found[2] - expected).norm() < 1e-9 * expected.norm()
    assert (found[1] - plain[1]).norm() < 1e-10


def test_the_flow_of_the_iterate_is_not_that_of_the_average() -> None:
    scape = Landscape(problems.logistic())
    method = averaged_gd(scape, keep=0.5)
    own, raw = (modified_flow(method, order=2, readout=r).corrections(scape.start)[2] for r in (None, lambda w, m: w))
    assert (own - raw).norm() > 0.1 * raw.norm()


# -- the rule: a memory that lasts and that no direction reads ---------------------------------------------------------
def unread(scape: Landscape, readout: Any = None) -> MemoryMethod:
    return MemoryMethod(lambda w, memory: (scape.gradient(w), 0.9 * memory + 0.1 * w), readout=readout)


def test_an_average_that_nobody_reads_is_refused_and_both_remedies_work() -> None:
    scape = Landscape(problems.logistic())
    with pytest.raises(tacit.InputError, match=r"memory 0 lasts and no direction reads it.*readout=lambda w, memory"):
        modified_flow(unread(scape)).corrections(scape.start)
    with pytest.raises(tacit.InputError, match="memory 0 lasts"):
        verify_update(unread(scape), scape)
    average = modified_flow(unread(scape), order=2, readout=lambda w, memory: memory[0]).corrections(scape.start)
    iterate = modified_flow(unread(scape), order=2, readout=lambda w, memory: w).corrections(scape.start)
    plain = modified_flow(gd_update(scape), order=2).corrections(scape.start)
    assert torch.allclose(iterate[2], plain[2], rtol=1e-9)
    assert not torch.allclose(average[2], plain[2], rtol=1e-2)


@pytest.mark.parametrize(
    "method",
    [
        lambda scape: heavy_ball(scape, momentum=0.0),  # its buffer is the gradient: it keeps nothing
        lambda scape: adam(scape, beta1=0.0, beta2=0.9),
        lambda scape: adam(scape, beta1=0.9, beta2=0.0),
        lambda scape: adam(scape, beta1=0.5, beta2=0.9, weight_decay=0.1),
    ],
)
def test_memories_that_keep_nothing_or_are_read_are_accepted(method: Any) -> None:
    scape = Landscape(problems.quadratic())
    minimum = torch.linalg.solve(torch.func.hessian(scape.loss)(scape.start), -scape.gradient(0 * scape.start))
    # At the minimum no direction changes with the average of squares, and yet it is read.
    for w in (scape.start, minimum):
        method(scape).check(w)


def test_a_readout_that_is_another_point_is_refused() -> None:
    scape = Landscape(problems.logistic())
    with pytest.raises(tacit.InputError, match="another point than the parameters"):
        modified_flow(unread(scape, lambda w, memory: 0.5 * memory[0])).corrections(scape.start)
    with pytest.raises(tacit.InputError, match="another point than the parameters"):
        modified_flow(gd_update(scape), readout=lambda w, rate: 0.5 * w).corrections(scape.start)
    with pytest.raises(tacit.InputError, match="has a kink"):
        modified_flow(unread(scape, lambda w, memory: torch.maximum(w, memory[0]))).corrections(scape.start)
