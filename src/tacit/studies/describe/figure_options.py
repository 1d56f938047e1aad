"""What a study file may say about each of its figures, so that a slip is refused before anything is trained.

The figures themselves are in `tacit.report`; a test compares this table with what they read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tacit.studies.describe.spec import LARGEST, NAME, NAME_IN_WORDS, RunSpec, number, shorten

# Axes, scores and options of a figure that the paper does not have.
AXES = (
    "learning_rate", "strength", "total", "temperature", "strength_ratio", "bare_learning_rate",
    "effective_learning_rate", "batch_size", "inner_steps", "epochs", "width", "train_size", "weight_decay",
)  # fmt: skip
SCORES = ("best_test_accuracy", "final_test_accuracy", "best_train_accuracy", "final_train_accuracy")

Problem = Callable[[Any], str | None]  # what was expected instead; None when the value is right


def _one_of(known: tuple[str, ...]) -> Problem:
    return lambda value: None if isinstance(value, str) and value in known else f"one of {', '.join(known)}"


def _positive(value: Any) -> str | None:
    given = number(value)
    right = isinstance(given, int | float) and not isinstance(given, bool) and 0 < given <= LARGEST
    return None if right else 'a number greater than 0, such as 0.5 or "2^-1"'


def _count(value: Any) -> str | None:
    right = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return None if right else "a whole number, at least 1"


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) else "text"


GENERIC: dict[str, Problem] = {
    "x": _one_of(AXES),
    "y": _one_of(SCORES),
    "curve": _one_of(tuple(RunSpec.model_fields)),
    "title": _text,
}
NONE: dict[str, Problem] = {}
OF_THE_PAPER: dict[str, dict[str, Problem]] = {
    **dict.fromkeys(["1b", "1c", "2a", "2b", "3a", "3b", "4c", "5a", "5b", "6a", "6b", "6c", "7c", "orders"], NONE),
    "1a": {"strength": _positive},
    "4a": {"epochs": _count},
    "4b": {"updates": _count},
    "7a": {"epochs": _count},
    "7b": {"updates": _count},
}


def check_figures(figures: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ValueError, with a sentence that names the key, for an id or an option that no figure understands."""
    for id, options in figures.items():
        if not NAME.fullmatch(id):
            raise ValueError(f"figures has the id {shorten(id)}; expected {NAME_IN_WORDS}")
        known = OF_THE_PAPER.get(id, GENERIC)
        for key, value in options.items():
            if key not in known:
                listed = f"known keys: {', '.join(known)}" if known else "this figure takes no options"
                raise ValueError(f"figures.{id}: the key {key[:60]} is unknown; {listed}")
            expected = known[key](value)
            if expected is not None:
                raise ValueError(f"figures.{id}.{key} is {shorten(value)}; expected {expected}")
