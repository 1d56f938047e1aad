"""Checks of arguments raise one sentence with the argument's name and value."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tacit._util.arguments import finite_number, whole_number
from tacit._util.errors import InputError


@pytest.mark.parametrize("value", [3, np.int32(3), torch.tensor(3)])
def test_whole_numbers_of_any_library_are_accepted(value: object) -> None:
    assert whole_number("steps", value, at_least=1) == 3


@pytest.mark.parametrize("value", [True, 3.0, "3", None, 0])
def test_other_values_are_refused_by_name(value: object) -> None:
    with pytest.raises(InputError, match=r"^steps=.*expected a whole number of at least 1\.$"):
        whole_number("steps", value, at_least=1)


@pytest.mark.parametrize("value", [0.5, 1, np.float32(0.5), torch.tensor(0.5)])
def test_finite_numbers_are_returned_as_floats(value: object) -> None:
    assert isinstance(finite_number("strength", value), float)


@pytest.mark.parametrize("value", [-1, math.inf, math.nan, True, "0.5", None, torch.ones(2)])
def test_numbers_that_are_not_finite_or_negative_are_refused(value: object) -> None:
    with pytest.raises(InputError, match=r"^strength="):
        finite_number("strength", value)


def test_zero_is_not_positive() -> None:
    assert finite_number("rate", 0.0) == 0.0
    with pytest.raises(InputError, match="expected a positive number"):
        finite_number("rate", 0.0, positive=True)
