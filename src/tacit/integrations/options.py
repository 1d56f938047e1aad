"""Options of a penalty that a trainer's adapter passes on, checked before data and models are loaded."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from tacit._errors import InputError
from tacit.penalty import GradientPenalty
from tacit.penalty.strength import Value


def check_penalty_options(strength: Value, options: Mapping[str, Any], *, accumulation: str) -> None:
    """Refuse what `GradientPenalty` would refuse, on a stand-in model; `accumulation` replaces micro-batches."""
    if options.get("micro_batch_size") is not None:
        raise InputError(
            f"micro_batch_size={options['micro_batch_size']} needs a closure that takes parts of the batch, which only "
            f"a plain loop has. Use smaller batches with {accumulation}: the penalty is the same."
        )
    known = set(inspect.signature(GradientPenalty).parameters) - {"model", "strength", "micro_batch_size"}
    for name in options:
        if name not in known | {"micro_batch_size"}:
            raise InputError(f"option {name!r} is unknown; expected one of {', '.join(sorted(known))}.")
    GradientPenalty(nn.Linear(1, 1), strength, **{name: options[name] for name in options if name != "exclude"})
