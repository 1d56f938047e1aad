"""What a study file may say about each of its figures, so that a slip is refused before anything is trained.

The figures themselves are in `tacit.report`; a test compares this vocabulary with what they read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tacit.studies.describe.error_messages import shorten
from tacit.studies.describe.spec import LARGEST, NAME, NAME_IN_WORDS, RunSpec, number

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


def _place(value: Any) -> str | None:
    right = isinstance(value, str) and value.count(":") == 1 and all(value.split(":"))
    return None if right else 'a figure of your own as "module:name"'


# Every option that a figure may take. Each figure names those that it takes (`tacit.report.figures`): the report
# refuses the others, whose rows are as good.
OPTIONS: dict[str, Problem] = {
    "x": _one_of(AXES),
    "y": _one_of(SCORES),
    "curve": _one_of(tuple(RunSpec.model_fields)),
    "title": _text,
    "strength": _positive,
    "epochs": _count,
    "updates": _count,
    "figure": _place,
}


def check_figures(figures: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ValueError, with a sentence that names the key, for an id or an option that no figure understands.

    A figure of one's own (`figure = "module:name"`) may take options of its own.
    """
    for id, options in figures.items():
        if not NAME.fullmatch(id):
            raise ValueError(f"figures has the id {shorten(id)}; expected {NAME_IN_WORDS}")
        for key, value in options.items():
            if key not in OPTIONS:
                if "figure" in options:
                    continue
                raise ValueError(f"figures.{id}: the key {key[:60]} is unknown; known keys: {', '.join(OPTIONS)}")
            expected = OPTIONS[key](value)
            if expected is not None:
                raise ValueError(f"figures.{id}.{key} is {shorten(value)}; expected {expected}")
