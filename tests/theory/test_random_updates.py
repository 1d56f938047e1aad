"""Printed coefficients are right for every update: 10,000 random ones, read back from text, LaTeX and loss.

python -m pytest tests/theory/test_random_updates.py -m slow     # all 10,000; the default suite has 1,000 of them
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from printed_flows import read_latex, read_loss, read_text
from random_updates import TREES, VALUES, Update, random_update, value

import tacit
from tacit.theory import modified_flow_symbolic
from tacit.theory.trees import tree_text

UPDATES = 10_000
IN_THE_DEFAULT_SUITE = 1_000


def problems_of(update: Update) -> list[str]:
    """What is wrong with the flow of this update; nothing when all of it is right."""
    flow = modified_flow_symbolic(update.algorithm(), order=2)
    terms = [{tree_text(t): value(c) for t, c in part.items()} for part in flow.terms]
    known, wrong = update.known(), []
    for tree, size in zip(TREES, (0, 1, 2, 2), strict=True):
        # ρʲ moves a tree of n nodes from f₍n−1₎ to f₍n−1−j₎: with ρ = (ρ/ε) ε they are one power of ε again.
        total = sum(terms[k].get(tree, Fraction(0)) for k in range(size + 1))
        if total != known[tree]:
            wrong.append(f"terms: {tree} has {total}, expected {known[tree]}")
    for name, seen in (("str", read_text(str(flow), VALUES)), ("latex", read_latex(flow.latex(), VALUES))):
        if seen != terms:
            wrong.append(f"{name}: {seen}, expected {terms}")
    return wrong + _wrong_loss(flow, terms)


def _wrong_loss(flow: Any, terms: list[dict[str, Fraction]]) -> list[str]:
    speed = terms[0].get("f", Fraction(0))
    try:
        printed = flow.modified_loss()
    except tacit.InputError as error:
        return [] if speed == 0 and "expected" in str(error) else [f"modified_loss refused: {error}"]
    if speed == 0:
        return [f"modified_loss: {printed} although f₀ has no f"]
    seen = read_loss(printed, VALUES)
    right = {"ε": -terms[1].get("f'f", Fraction(0)) / (2 * speed), "ρ": -terms[0].get("f'f", Fraction(0)) / (2 * speed)}
    right["ρ"] /= VALUES["ρ"]  # the loss names ρ, the term carries its value
    return [] if seen == right else [f"modified_loss: {printed} is {seen}, expected {right}"]


def assert_right(seeds: range) -> None:
    wrong = []
    for seed in seeds:
        update = random_update(seed)
        try:
            found = problems_of(update)
        except Exception as error:
            found = [f"{type(error).__name__}: {error}"]
        if found:
            wrong.append(f"seed {seed}, {update.kind}: {found[0]}\n    {update}")
    assert not wrong, f"{len(wrong)} of {len(seeds)} updates:\n" + "\n".join(wrong[:8])


def test_a_thousand_random_updates_print_what_they_are() -> None:
    assert_right(range(IN_THE_DEFAULT_SUITE))


@pytest.mark.slow
def test_ten_thousand_random_updates_print_what_they_are() -> None:
    assert_right(range(UPDATES))


# -- one by one, what the issue names ---------------------------------------------------------------------------------
def test_a_step_of_a_half_is_printed_as_a_half() -> None:
    flow = modified_flow_symbolic(lambda p, step: p + 0.5 * step(p), order=1)
    assert str(flow) == "f₀ = ½ f\nf₁ = − ⅛ f'f"
    assert flow.modified_loss() == "C + ⅛ ε‖∇C‖²"


@pytest.mark.parametrize("half", [0.5, Fraction(1, 2), np.float64(0.5)])
def test_lookahead_prints_the_same_with_a_float_and_with_a_fraction(half: Any) -> None:
    def lookahead(p: Any, step: Any) -> Any:
        fast = p
        for _ in range(5):
            fast = fast + step(fast)
        return p + half * (fast - p)

    flow = modified_flow_symbolic(lookahead, order=1)
    assert str(flow).splitlines()[0] == "f₀ = 5/2 f"
    assert flow.modified_loss() == "C − ⅜ ε‖∇C‖²"


def test_points_can_be_divided_and_multiplied_from_both_sides() -> None:
    printed = str(modified_flow_symbolic(lambda p, step: p + 0.5 * step(p), order=2))
    for update in (
        lambda p, step: p + ((p + step(p)) - p) / 2,
        lambda p, step: p + step(p) * Fraction(1, 2),
        lambda p, step: p - (-step(p)) / 2,
        lambda p, step: (p + (p + step(p))) / 2,
        lambda p, step: p + step(p) * np.float64(0.5),
    ):
        assert str(modified_flow_symbolic(update, order=2)) == printed


def test_a_float_is_the_decimal_that_was_written() -> None:
    flow = modified_flow_symbolic(lambda p, step: p + 0.1 * step(p), order=1)
    assert flow.coefficient(0, "f") == Fraction(1, 10)
    third = modified_flow_symbolic(lambda p, step: p + (1 / 3) * step(p), order=0)
    assert str(third) == "f₀ = 3333333333333333/10000000000000000 f"  # its digits; a third is Fraction(1, 3)


def test_a_momentum_is_the_decimal_that_was_written_too() -> None:
    flow = modified_flow_symbolic("heavy_ball", order=0, momentum=0.123456789012)
    assert flow.coefficient(0, "f") == 1 / (1 - Fraction("0.123456789012"))


def test_weights_that_rounding_keeps_from_one_are_refused_with_a_form_that_works() -> None:
    weight = 0.7  # 1 − 0.7 is 0.30000000000000004
    with pytest.raises(tacit.InputError, match=r"expected 1, .* is p \+ c \* \(q - p\)"):
        modified_flow_symbolic(lambda p, step: (1 - weight) * p + weight * (p + step(p)), order=1)
    flow = modified_flow_symbolic(lambda p, step: p + weight * ((p + step(p)) - p), order=1)
    assert flow.coefficient(0, "f") == Fraction(7, 10)


def test_names_of_symbols_and_roots_are_printed() -> None:
    import sympy

    pull, beta_1 = sympy.symbols("pull beta_1")
    flow = modified_flow_symbolic(lambda p, step: p + pull * beta_1**2 * step(p), order=0)
    assert str(flow) == "f₀ = beta_1²·pull f"
    root = modified_flow_symbolic(lambda p, step: p + sympy.sqrt(2) * step(p), order=1)
    assert str(root) == "f₀ = (sqrt(2)) f\nf₁ = − f'f"
    assert root.latex().splitlines()[1] == r"\tilde{f}_{0} &= \left(\sqrt{2}\right) f \\"


def test_symbols_without_a_number_are_refused_when_numbers_are_asked_for() -> None:
    import sympy

    flow = modified_flow_symbolic(lambda p, step: p + sympy.Symbol("α") * step(p), order=0)
    with pytest.raises(tacit.InputError, match="contains α; expected"):
        flow.evaluate(tacit.theory.problems.logistic())
