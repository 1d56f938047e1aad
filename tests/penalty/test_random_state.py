"""numpy's state is read in full only where it was drawn from, and what is put back is the same to the bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from torch import nn

from tacit.penalty.surroundings.state import RandomState

DRAWS: dict[str, Callable[[], object]] = {
    "uniform": lambda: np.random.random(3).tolist(),
    "a normal number, whose pair is kept": lambda: float(np.random.randn()),
    "more than the key holds": lambda: np.random.random(2000).sum(),
}


@pytest.mark.parametrize("before", [0, 1, 2], ids=["nothing", "half a pair", "a pair"])
@pytest.mark.parametrize("draw", DRAWS.values(), ids=list(DRAWS))
def test_what_numpy_draws_after_a_state_is_put_back_is_the_same(draw: Callable[[], object], before: int) -> None:
    model, kept = nn.Linear(2, 1), np.random.get_state()
    try:
        np.random.seed(3)
        for _ in range(before):
            np.random.randn()
        RandomState.now(model)
        start = RandomState.now(model)
        assert not start.python_has_drawn()
        drawn = [draw() for _ in range(3)]
        assert start.python_has_drawn()
        for _ in range(2):
            start.restore()
            assert not start.python_has_drawn()
            assert [draw() for _ in range(3)] == drawn
    finally:
        np.random.set_state(kept)


def test_another_generator_of_numpys_is_put_back() -> None:
    model, kept = nn.Linear(2, 1), np.random.get_bit_generator()  # type: ignore[attr-defined]
    try:
        np.random.set_bit_generator(np.random.MT19937(5))  # type: ignore[attr-defined]
        start = RandomState.now(model)
        drawn = np.random.random(3).tolist()
        start.restore()
        assert np.random.random(3).tolist() == drawn
    finally:
        np.random.set_bit_generator(kept)  # type: ignore[attr-defined]
