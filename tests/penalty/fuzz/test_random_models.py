"""Random models under every method against finite differences in float64: 2,000 cases here, 20,000 with the slow ones.

A case passes when the gradient is exact, within the stated error of an approximate method, or refused with a sentence;
and when buffers, generators, parameters and hooks are as after a plain step. What fails is shrunk by hypothesis to a
`Scenario(...)` of a few operations: put it into `fuzz_cases.py` under a name.
"""

from __future__ import annotations

from collections import Counter

import pytest
from fuzz_cases import NAMED
from fuzz_checks import SEARCH, judge
from hypothesis import given, seed, settings
from random_scenarios import Scenario, scenarios

METHODS = {  # cases by method: 2,000 in all
    "gram": 800,
    "auto": 200,
    "loss": 200,
    "FactoredSGD": 300,
    "double_backward": 200,
    "finite_difference": 300,
}
CHUNK = 100
SLOW_CHUNK = 900  # nine times more, with other seeds
# Nearly all in float64, where nothing hides in rounding.
DTYPES = ("float64",) * 6 + ("float32", "autocast")
FEW = 0.1  # of cases may be refused otherwise, invalid in a plain step too, or too close to a kink for the oracle


def search(method: str, *, cases: int, start: int, sampled: bool = False) -> None:
    ends: Counter[str] = Counter()

    @seed(start)
    @settings(SEARCH, max_examples=cases)
    @given(scenarios(dtypes=DTYPES, whole=method == "FactoredSGD", sampled=sampled))
    def check(scenario: Scenario) -> None:
        verdict = judge(scenario, method)
        ends[verdict.kind] += 1
        assert not verdict.failed, f"{method} on {scenario}: {verdict.kind}, {verdict.detail}"

    check()
    assert ends.total() >= cases
    assert ends["refused"] <= FEW * ends.total(), ends
    assert ends["invalid"] + ends["undecided"] <= FEW * ends.total(), ends


CHUNKS = [(method, number) for method, cases in METHODS.items() for number in range(cases // CHUNK)]


@pytest.mark.parametrize(("method", "number"), CHUNKS)
def test_no_gradient_of_a_random_model_is_wrong(method: str, number: int) -> None:
    search(method, cases=CHUNK, start=number)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "number"), CHUNKS)
def test_no_gradient_of_many_random_models_is_wrong(method: str, number: int) -> None:
    search(method, cases=SLOW_CHUNK, start=1000 + number)


SAMPLED = {"gram": 2, "auto": 1, "loss": 1, "FactoredSGD": 1, "double_backward": 1, "finite_difference": 1}
SAMPLED_CHUNKS = [(method, number) for method, count in SAMPLED.items() for number in range(count)]


@pytest.mark.parametrize(("method", "number"), SAMPLED_CHUNKS)
def test_no_gradient_of_a_random_model_is_wrong_where_its_penalty_is_sampled(method: str, number: int) -> None:
    search(method, cases=CHUNK, start=2000 + number, sampled=True)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "number"), SAMPLED_CHUNKS)
def test_no_gradient_of_many_random_models_is_wrong_where_its_penalty_is_sampled(method: str, number: int) -> None:
    search(method, cases=SLOW_CHUNK, start=3000 + number, sampled=True)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", NAMED)
def test_a_case_that_was_once_wrong_is_right(name: str, method: str) -> None:
    verdict = judge(NAMED[name], method)
    assert not verdict.failed, f"{verdict.kind}: {verdict.detail}"
