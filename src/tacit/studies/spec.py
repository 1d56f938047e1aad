"""`RunSpec`: everything that decides one training run, frozen, and hashed into the run's identity."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from tacit._errors import InputError
from tacit.studies.datasets import DATASETS

POWER_OF_TWO = re.compile(r"\s*2\^(-?\d+(?:\.\d+)?)\s*")
SMALLEST, LARGEST = 2.0**-126, 2.0**127  # fleets train in float32: smaller numbers are flushed to 0, larger overflow
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")  # of studies and figures: both become file names
NAME_IN_WORDS = "letters, digits, dots, dashes and underscores, a letter or digit first, at most 80 characters"


def number(value: Any) -> Any:
    """A power of two written `"2^-9"` as a float, -0.0 as 0.0; anything else as it came.

    >>> number("2^-9") == 1 / 512
    True
    """
    found = POWER_OF_TWO.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return value + 0.0 if isinstance(value, float) else value  # -0.0 + 0.0 is 0.0: one value, one hash
    exponent = float(found[1])
    return 2.0**exponent if abs(exponent) < 1024 else value


Number = Annotated[float, BeforeValidator(number), Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
NotNegative = Annotated[Number, Field(ge=0)]
Count = Annotated[int, Field(ge=1, le=10**9)]  # the upper end turns a typing error into a sentence


class RunSpec(BaseModel):
    """One run. `learning_rate` is ε: n-step SGD makes `inner_steps` updates per minibatch, each with ε/n.

    Exactly one of `epochs` and `updates` sets the length; an update is one change of the parameters, so n-step SGD
    makes n of them per minibatch. `bare_learning_rate` α may be given instead of `learning_rate`; ε = nα is stored.

    >>> run = RunSpec(learning_rate="2^-4", epochs=2, train_size=64, batch_size=16, evaluations=2)
    >>> run.batches_per_epoch, run.minibatches
    (4, 8)
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    dataset: Literal["mnist1d"] = "mnist1d"
    train_size: Count = 4000
    model: Literal["mlp"] = "mlp"
    width: Annotated[int, Field(ge=1, le=65536)] = 64
    depth: Annotated[int, Field(ge=1, le=64)] = 3
    learning_rate: Positive
    strength: NotNegative = 0.0
    method: Literal["gram"] = "gram"
    batch_size: Count = 32
    inner_steps: Count = 1
    order: Literal["shuffled", "fixed", "mirrored", "shuffle_once", "with_replacement"] = "shuffled"
    schedule: Literal["constant", "paper_decay"] = "constant"
    weight_decay: NotNegative = 0.0
    augmentation: Literal["none"] = "none"
    epochs: Count | None = None
    updates: Count | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    evaluations: Count = 10

    @model_validator(mode="before")
    @classmethod
    def _learning_rate_from_bare(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or "bare_learning_rate" not in given:
            return given
        if "learning_rate" in given:
            raise ValueError("learning_rate and bare_learning_rate are both given; expected one of them")
        rest = {key: value for key, value in given.items() if key != "bare_learning_rate"}
        bare, steps = number(given["bare_learning_rate"]), rest.get("inner_steps", 1)
        if isinstance(bare, bool) or not isinstance(bare, int | float) or not 0 < bare < math.inf:
            raise ValueError(f"bare_learning_rate is {shorten(bare)}; expected a number greater than 0")
        return {**rest, "learning_rate": bare * steps if isinstance(steps, int) else bare}

    @model_validator(mode="after")
    def _combination(self) -> RunSpec:
        largest = DATASETS[self.dataset].train_size
        if self.train_size > largest:
            raise ValueError(f"train_size is {self.train_size}; {self.dataset} has {largest} training examples")
        left_over = self.train_size % self.batch_size
        if self.batch_size > self.train_size:
            raise ValueError(f"batch_size is {self.batch_size}; expected at most train_size {self.train_size}")
        if left_over:
            raise ValueError(
                f"train_size {self.train_size} is not a multiple of batch_size {self.batch_size}; the theory needs "
                f"equal batches: use train_size {self.train_size - left_over}"
            )
        if (self.epochs is None) == (self.updates is None):
            found = "both" if self.epochs is not None else "neither"
            raise ValueError(f"exactly one of epochs and updates must be given, found {found}")
        if self.updates is not None and self.updates % self.inner_steps:
            raise ValueError(
                f"updates {self.updates} is not a multiple of inner_steps {self.inner_steps}; "
                f"use updates {math.ceil(self.updates / self.inner_steps) * self.inner_steps}"
            )
        for key in ("learning_rate", "strength", "weight_decay", "bare_learning_rate"):
            value = getattr(self, key)
            if value > LARGEST or 0 < value < SMALLEST:
                raise ValueError(
                    f"{key} is {value!r}; expected at least 2^-126 and at most 2^127: fleets train in float32"
                )
        if self.evaluations > self.minibatches:
            raise ValueError(f"evaluations is {self.evaluations}; this run has only {self.minibatches} minibatches")
        return self

    @property
    def batches_per_epoch(self) -> int:
        """m = N/B."""
        return self.train_size // self.batch_size

    @property
    def minibatches(self) -> int:
        """How many minibatches the whole run visits."""
        if self.epochs is not None:
            return self.epochs * self.batches_per_epoch
        assert self.updates is not None
        return self.updates // self.inner_steps

    @property
    def total_updates(self) -> int:
        return self.minibatches * self.inner_steps

    @property
    def bare_learning_rate(self) -> float:
        """α = ε/n, the rate of each of the n updates on one minibatch."""
        return self.learning_rate / self.inner_steps

    @cached_property
    def hash(self) -> str:
        """The run's identity: 16 hex digits of the sha256 of its canonical JSON."""
        return digest(self.model_dump())


RUN_KEYS = (*RunSpec.model_fields, "bare_learning_rate")


def make_run(values: Mapping[str, Any], *, where: str = "run") -> RunSpec:
    """The validated run, or one sentence that names the key."""
    try:
        return RunSpec.model_validate(dict(values))
    except ValidationError as error:
        raise InputError(sentence(error, where=where, known=RUN_KEYS)) from None


def digest(value: Any) -> str:
    """16 hex digits of the sha256 of canonical JSON: sorted keys, no spaces, shortest exact floats."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:16]


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


# -- sentences for bad input ----------------------------------------------------------------------------------------
NUMBERS = ("learning_rate", "strength", "weight_decay", "bare_learning_rate")
EXPECTED = {
    "float_type": "a number",
    "finite_number": "a finite number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number of ordinary size",
    "greater_than": "a number greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "a number less than {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "string_type": "text",
    "dict_type": "a table",
    "list_type": "a table, or a list of tables",
    "model_type": "a table",
    "model_attributes_type": "a table",
}
WHY = {  # the reason belongs to the sentence where a key has one value so far
    "method": "fleets compute the exact penalty by the Gram form alone; other methods are for tacit.GradientPenalty",
}


def sentence(error: ValidationError, *, where: str, known: Iterable[str]) -> str:
    """The first problem of a pydantic error: the key, what was found, what was expected."""
    first = error.errors(include_url=False)[0]
    steps = [str(step) for step in first["loc"]]
    key = ".".join(steps)
    if first["type"] == "extra_forbidden":
        return unknown_key(where, steps[-1], known)
    if first["type"] == "missing":
        return f"{where}: the key {key} is missing; expected it to be given."
    if first["type"] == "value_error":
        return f"{where}: {str(first['ctx']['error']).rstrip('.')}."
    expected = EXPECTED.get(first["type"], "a value of another kind").format(**first.get("ctx", {}))
    if steps[-1] in NUMBERS:
        expected += ', such as 0.002 or "2^-9"'
    if steps[-1] in RUN_KEYS and isinstance(first["input"], list | str) and _is_several(first["input"]):
        expected += "; several values go into [grid]"
    if steps[-1] in WHY:
        expected += f": {WHY[steps[-1]]}"
    return f"{where}: {key} is {shorten(first['input'])}; expected {expected}."


def _is_several(value: list[Any] | str) -> bool:
    return isinstance(value, list) or re.fullmatch(r"\s*\d+:\d+\s*", value) is not None


def unknown_key(where: str, key: str, known: Iterable[str]) -> str:
    known = list(known)
    close = difflib.get_close_matches(key, known, n=1)
    hint = f" did you mean {close[0]}?" if close else ""
    return f"{where}: the key {key} is unknown;{hint} known keys: {', '.join(known)}."


def shorten(value: Any, *, length: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= length else text[: length - 1] + "…"
