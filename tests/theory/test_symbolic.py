"""Exact coefficients on rooted trees."""

from __future__ import annotations

from fractions import Fraction

import pytest

import tacit
from tacit.theory import modified_flow_symbolic
from tacit.theory.trees import TreeSeries


def test_gradient_descent_prints_its_known_corrections() -> None:
    assert str(modified_flow_symbolic("gd", order=3)).splitlines() == [
        "f₀ = f",
        "f₁ = − ½ f'f",
        "f₂ = ⅓ f'f'f + 1/12 f''[f,f]",
        "f₃ = − ¼ f'f'f'f − 1/12 f'f''[f,f] − 1/12 f''[f,f'f]",
    ]


def test_chains_of_gradient_descent_are_the_series_of_the_logarithm() -> None:
    # On a quadratic only chains are left, and f̃ must be log(1 − ελ)/ε.
    flow = modified_flow_symbolic("gd", order=6)
    for k in range(7):
        assert flow.coefficient(k, "f'" * k + "f") == Fraction((-1) ** k, k + 1)


@pytest.mark.parametrize("inner_steps", [2, 5])
def test_inner_steps_divide_the_kth_correction_by_their_kth_power(inner_steps: int) -> None:
    one, many = modified_flow_symbolic("gd", order=4), modified_flow_symbolic("nstep", order=4, inner_steps=inner_steps)
    for k in range(5):
        assert many.terms[k] == {t: c / inner_steps**k for t, c in one.terms[k].items()}


def test_mean_sgd_has_no_term_with_three_free_batches() -> None:
    # All m³ε³ terms of the mean are those of a flow: the remainder of the paper's theorem is O(m²ε³).
    printed = str(modified_flow_symbolic("sgd", order=2))
    assert "m^2" not in printed
    assert "⅓ ⟨fᵢ'fᵢ'fᵢ⟩ + 1/12 ⟨fᵢ''[fᵢ,fᵢ]⟩ + 1/12 m⟨fᵢ'fᵢ'fⱼ⟩ − ⅙ m⟨fᵢ'fⱼ'fᵢ⟩" in printed


def test_inner_steps_leave_the_bracket_of_mean_sgd_alone() -> None:
    one, two = (modified_flow_symbolic("sgd", order=2, inner_steps=n) for n in (1, 2))
    for text in ("fᵢ'fᵢ'fⱼ", "fᵢ'fⱼ'fᵢ", "fᵢ'fⱼ'fⱼ", "fᵢ''[fᵢ,fⱼ]", "fᵢ''[fⱼ,fⱼ]"):
        assert one.coefficient(2, text) == two.coefficient(2, text) != 0
    assert two.coefficient(2, "fᵢ'fᵢ'fᵢ") == one.coefficient(2, "fᵢ'fᵢ'fᵢ") / 4


def test_heavy_ball_in_symbols() -> None:
    assert str(modified_flow_symbolic("heavy_ball", order=2)).splitlines() == [
        "f₀ = 1/(1−β) f",
        "f₁ = − (β + 1)/(2(1−β)³) f'f",
        "f₂ = (β^2 + 4β + 1)/(3(1−β)⁵) f'f'f + (β^2 + 10β + 1)/(12(1−β)⁵) f''[f,f]",
    ]


def test_nesterov_in_symbols() -> None:
    assert "f₁ = − (2β^2 − β + 1)/(2(1−β)³) f'f" in str(modified_flow_symbolic("nesterov", order=1))


def test_symbols_and_fractions_agree() -> None:
    import sympy

    symbols, numbers = (
        modified_flow_symbolic("nesterov", order=2),
        modified_flow_symbolic("nesterov", order=2, momentum=0.5),
    )
    for k in range(3):
        for t, c in symbols.terms[k].items():
            assert c.subs(sympy.Symbol("β"), sympy.Rational(1, 2)) == numbers.terms[k][t]


def test_momentum_zero_is_gradient_descent() -> None:
    assert (
        modified_flow_symbolic("heavy_ball", order=3, momentum=0).terms == modified_flow_symbolic("gd", order=3).terms
    )


def test_a_runge_kutta_method_of_ones_own_loses_its_low_corrections() -> None:
    def classical(point: TreeSeries, step) -> TreeSeries:
        half = Fraction(1, 2)
        a = step(point)
        b = step(point + half * a)
        c = step(point + half * b)
        d = step(point + c)
        return point + Fraction(1, 6) * (a + 2 * b + 2 * c + d)

    flow = modified_flow_symbolic(classical, order=4)
    assert [len(terms) for terms in flow.terms[:4]] == [1, 0, 0, 0]  # a method of order four
    assert flow.terms[4]


def test_latex_is_made_of_fractions_and_primes() -> None:
    assert modified_flow_symbolic("gd", order=2).latex().splitlines()[2] == (
        r"\tilde f_2 &= \tfrac{1}{3} f'f'f + \tfrac{1}{12} f''[f,f] \\"
    )
    assert r"- \frac{\beta + 1}{2(1-\beta)^3} f'f" in modified_flow_symbolic("heavy_ball", order=1).latex()


def test_an_unknown_method_is_refused_with_the_known_ones() -> None:
    with pytest.raises(tacit.InputError, match="gd, nstep, sgd, heavy_ball, nesterov"):
        modified_flow_symbolic("adamw")


def test_a_momentum_of_one_is_refused() -> None:
    with pytest.raises(tacit.InputError, match="expected 0 <= momentum < 1"):
        modified_flow_symbolic("heavy_ball", momentum=1)
