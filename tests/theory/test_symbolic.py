"""Exact coefficients on rooted trees."""

from __future__ import annotations

import shutil
import subprocess
from fractions import Fraction
from pathlib import Path

import pytest

import tacit
from tacit.theory import Landscape, modified_flow, modified_flow_symbolic, problems
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
    assert "m²" not in printed
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
        "f₂ = (β² + 4β + 1)/(3(1−β)⁵) f'f'f + (β² + 10β + 1)/(12(1−β)⁵) f''[f,f]",
    ]


def test_nesterov_in_symbols() -> None:
    assert "f₁ = − (2β² − β + 1)/(2(1−β)³) f'f" in str(modified_flow_symbolic("nesterov", order=1))


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


def sam(point: TreeSeries, step, probe) -> TreeSeries:
    """Unnormalized: the gradient of the point ω + ρ∇C = ω − ρ f."""
    return point + step(point - probe(point))


FLOWS = {
    "gd": modified_flow_symbolic("gd", order=3),
    "sgd": modified_flow_symbolic("sgd", order=2),
    "heavy_ball": modified_flow_symbolic("heavy_ball", order=2),
    "nesterov": modified_flow_symbolic("nesterov", order=2),
    "sam": modified_flow_symbolic(sam, order=3),
}


def test_latex_is_made_of_fractions_and_primes() -> None:
    assert modified_flow_symbolic("gd", order=2).latex().splitlines() == [
        r"\begin{aligned}",
        r"\tilde{f}_{0} &= f \\",
        r"\tilde{f}_{1} &= - \frac{1}{2} f'f \\",
        r"\tilde{f}_{2} &= \frac{1}{3} f'f'f + \frac{1}{12} f''[f,f]",
        r"\end{aligned}",
    ]
    assert r"- \frac{\beta + 1}{2(1-\beta)^{3}} f'f" in FLOWS["heavy_ball"].latex()


@pytest.mark.parametrize("name", FLOWS)
def test_latex_has_no_first_power_and_text_one_kind_of_exponent(name: str) -> None:
    latex = FLOWS[name].latex()
    assert "^1" not in latex
    assert "^{1}" not in latex
    assert not {"β", "ρ", "−"} & set(latex)  # these would need a font
    assert "^" not in str(FLOWS[name])


@pytest.mark.parametrize("name", FLOWS)
def test_latex_compiles_as_it_is(name: str, tmp_path: Path) -> None:
    """By a TeX if there is one; else matplotlib's mathtext parses every line, without the two marks of `aligned`."""
    latex, tex = FLOWS[name].latex(), shutil.which("pdflatex")
    if tex is not None:
        page = r"\documentclass{article}\usepackage{amsmath}\begin{document}$" + latex + r"$\end{document}"
        (tmp_path / "flow.tex").write_text(page)
        command = [tex, "-interaction=nonstopmode", "-halt-on-error", "flow.tex"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout.decode(errors="replace")[-800:]
        return
    from matplotlib.mathtext import MathTextParser

    first, *lines, last = latex.splitlines()
    assert (first, last) == (r"\begin{aligned}", r"\end{aligned}")
    for line in lines:
        MathTextParser("path").parse(f"${line.removesuffix(chr(92) * 2).replace('&', '')}$")


def test_a_notebook_shows_the_formulas() -> None:
    assert FLOWS["gd"]._repr_latex_() == rf"$\displaystyle {FLOWS['gd'].latex()}$"


def test_a_radius_that_does_not_depend_on_the_rate_is_kept_apart() -> None:
    printed = str(FLOWS["sam"]).splitlines()
    assert printed[0] == "f₀ = f − ρ f'f + ½ ρ² f''[f,f] − ⅙ ρ³ f'''[f,f,f]"  # f(ω − ρf), expanded
    assert printed[3] == str(FLOWS["gd"]).splitlines()[3]  # without ρ it is gradient descent


def test_a_symbolic_flow_with_a_radius_agrees_with_the_automatic_one() -> None:
    # Terms beyond second order in ε and ρ together are left out: halving both must divide the distance by about 2³.
    scape = Landscape(problems.tanh_mlp(batches=1))
    distances = []
    for radius in (0.04, 0.02):
        update = lambda w, rate, r=radius: w - rate * scape.gradient(w + r * scape.gradient(w))  # noqa: E731
        numeric = modified_flow(update, order=2)(scape.start, radius)
        symbolic = modified_flow_symbolic(sam, order=2).evaluate(scape, radius=radius)
        distances.append((numeric - sum(radius**k * f for k, f in enumerate(symbolic))).norm().item())
    assert 6.5 < distances[0] / distances[1] < 9.5


@pytest.mark.parametrize(
    "name,loss",
    [
        ("gd", "C + ¼ ε‖∇C‖²"),
        ("sgd", "C + ¼ ε⟨‖∇Ĉᵢ‖²⟩"),
        ("heavy_ball", "C + (β + 1)/(4(1−β)²) ε‖∇C‖²"),
        ("sam", "C + ¼ ε‖∇C‖² + ½ ρ‖∇C‖²"),
    ],
)
def test_the_modified_loss_is_named(name: str, loss: str) -> None:
    assert FLOWS[name].modified_loss() == loss


def test_a_missing_radius_is_refused() -> None:
    with pytest.raises(tacit.InputError, match="expected its value"):
        FLOWS["sam"].evaluate(problems.logistic())
