"""Whether an approximate method takes a step, or an exact one in its place.

An approximate method estimates its own relative error every `check_every` steps. Where the estimate is larger than a
tenth of the penalty's part, `when_uncertain` says what happens: an exact method takes the steps up to the next check
(`exact`), an error is raised (`raise`), or the approximation is applied with a warning (`warn`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from tacit._util.errors import InputError
from tacit.penalty.objective import LARGEST_ERROR, Objective, Outcome
from tacit.penalty.registry import METHODS, Method, fastest_exact
from tacit.penalty.surroundings.refusals import TranslatedErrors, UnsupportedModelError
from tacit.penalty.surroundings.state import RandomState, second_pass

CHOICES = ("exact", "raise", "warn")
_log = logging.getLogger("tacit")


class Approximation:
    """Steps of an approximate method: when its error is estimated, and what follows when it is too large."""

    def __init__(
        self, model: nn.Module, *, when_uncertain: str, check_every: int, generators: tuple[torch.Generator, ...]
    ) -> None:
        if when_uncertain not in CHOICES:
            raise InputError(f"when_uncertain={when_uncertain!r} is unknown; use 'exact', 'raise' or 'warn'.")
        self.model, self.generators = model, generators
        self.when_uncertain, self.check_every = when_uncertain, check_every
        self.checked_at: int | None = None  # the last step at which the error was estimated
        self.uncertain = False  # whether it was too large there
        self.step = 0

    @property
    def tolerance(self) -> float | None:
        """The largest error with which a method delivers its gradient; None: any."""
        return None if self.when_uncertain == "warn" else LARGEST_ERROR

    def begin(self, step: int) -> bool:
        """Whether the error is estimated at this step."""
        self.step = step
        due = self.checked_at is None or step - self.checked_at >= self.check_every
        if not (self.check_every and due):
            return False
        self.checked_at, self.uncertain = step, False
        return True

    def run(
        self, method: Method, objective: Objective, *, run_exact: Callable[[Method, Objective], Outcome]
    ) -> Outcome:
        """The step by the approximate `method`, or by an exact one through `run_exact`."""
        if self.uncertain and not objective.check_error:
            return self._run_exact_instead(method, objective, run_exact)
        start = RandomState.now(self.model, self.generators) if objective.check_error and objective.tolerance else None
        outcome = method.backward(objective)
        if (
            objective.check_error and outcome.error is None
        ):  # half precision overflowed: the next step is checked instead
            self.checked_at = None
        if outcome.delivered:
            return outcome
        estimate = (
            f"method={method.name!r}: the penalty's gradient has an estimated relative error of {outcome.error:.0%}"
        )
        if self.when_uncertain == "raise":
            raise InputError(
                f"{estimate} at step {self.step}; expected at most {LARGEST_ERROR:.0%}. Use an exact method, "
                "when_uncertain='exact' (the exact method for such steps) or 'warn'."
            )
        if not self.uncertain:
            self.uncertain = True
            _log.warning("%s at step %d; an exact method takes its place until the next check", estimate, self.step)
        assert start is not None
        with second_pass(self.model, start, self.generators):  # the same dropout masks, and buffers count once
            return self._run_exact_instead(method, objective, run_exact)

    def _run_exact_instead(
        self, method: Method, objective: Objective, run_exact: Callable[[Method, Objective], Outcome]
    ) -> Outcome:
        causes: list[InputError] = []
        one_gradient = (
            len(objective.closures) == 1 and objective.mean is None
        )  # `gram` has neither two views nor workers' means
        fastest = fastest_exact(self.model).name if one_gradient else "double_backward"
        for name in dict.fromkeys((fastest, "double_backward")):
            try:
                with TranslatedErrors():
                    return replace(run_exact(METHODS[name], objective.but(exact=True)), method=name)
            except InputError as error:
                causes.append(error)
        raise InputError(
            f"method={method.name!r} has an estimated relative error of more than {LARGEST_ERROR:.0%} at step "
            f"{self.step}, and no exact method can take its place: {_cause(causes[-1])} Pass when_uncertain='warn' to "
            "apply the approximation as it is."
        ) from causes[-1]


def _cause(error: InputError) -> str:
    """Why a method refused, without its remedy, where the two are known apart."""
    return error.cause if isinstance(error, UnsupportedModelError) else str(error)
