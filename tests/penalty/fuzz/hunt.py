"""Look for failures instead of stopping at the first: `python tests/penalty/fuzz/hunt.py METHOD COUNT [SEED [DTYPES]]`.

Prints how many cases ended how, the refusals, and one scenario of each kind of failure, shrunk.
"""

from __future__ import annotations

import random
import re
import sys
from collections import Counter

import torch
from fuzz_checks import Verdict, judge
from hypothesis import HealthCheck, Phase, find, given, seed, settings
from hypothesis.errors import NoSuchExample
from random_scenarios import Scenario, scenarios

QUIET = {"database": None, "deadline": None, "suppress_health_check": list(HealthCheck)}


def signature(verdict: Verdict) -> str:
    """The failure without its numbers and names: failures with one signature are one kind."""
    return verdict.kind + ": " + re.sub(r"[-\d.e+]+|op\S+", "#", verdict.detail.splitlines()[0])[:90]


def hunt(method: str, count: int, start: int, dtypes: tuple[str, ...]) -> None:
    strategy = scenarios(dtypes=dtypes, whole=method == "FactoredSGD")
    kinds: Counter[str] = Counter()
    others: Counter[str] = Counter()
    shortest: dict[str, tuple[Scenario, Verdict]] = {}

    @seed(start)
    @settings(max_examples=count, phases=[Phase.generate], **QUIET)
    @given(strategy)
    def look(scenario: Scenario) -> None:
        verdict = judge(scenario, method)
        kinds[verdict.kind] += 1
        if verdict.kind in ("refused", "invalid"):
            others[verdict.kind + ": " + verdict.detail[:110]] += 1
        if verdict.failed:
            key = signature(verdict)
            if key not in shortest or len(repr(scenario)) < len(repr(shortest[key][0])):
                shortest[key] = (scenario, verdict)

    look()
    print(method, dict(kinds))
    for sentence, times in others.most_common(12):
        print("   ", times, sentence)
    for key, (scenario, verdict) in shortest.items():
        small = shrunk(strategy, method, key, start) or scenario
        print("  *", small, "\n     ", (judge(small, method) if small != scenario else verdict).detail[:600])


def shrunk(strategy, method: str, key: str, start: int) -> Scenario | None:
    """A smaller scenario that fails in the same way, if a short search finds one."""
    same = lambda scenario: signature(judge(scenario, method)) == key  # noqa: E731
    try:
        return find(strategy, same, settings=settings(max_examples=400, **QUIET), random=random.Random(start))
    except NoSuchExample:
        return None


if __name__ == "__main__":
    torch.set_num_threads(1)
    name, cases, *rest = sys.argv[1:]
    hunt(name, int(cases), int(rest[0]) if rest else 0, tuple(rest[1].split(",")) if len(rest) > 1 else ("float64",))
