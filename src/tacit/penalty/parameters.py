"""Which parameters a penalty's norm runs over."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from torch import nn
from torch.nn.parameter import UninitializedParameter

from tacit._errors import InputError


def penalised_parameters(model: nn.Module, exclude: Iterable[str]) -> dict[str, nn.Parameter]:
    """The model's trainable parameters by name, without those that a name or pattern of `exclude` matches."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}; expected a torch.nn.Module.")
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not trainable:
        raise InputError("the model has no trainable parameters; expected at least one with requires_grad=True.")
    if any(isinstance(parameter, UninitializedParameter) for parameter in trainable.values()):
        raise InputError("the model has lazy parameters without a shape; run one forward pass first.")
    patterns = list(exclude)
    left_out: set[str] = set()
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise InputError(f"exclude holds {pattern!r}; expected names or patterns of parameters.")
        matched = set(fnmatch.filter(trainable, pattern))
        if not matched:
            raise InputError(
                f"exclude={pattern!r} matches no trainable parameter; expected a name or pattern among "
                f"{', '.join(list(trainable)[:6])}{', …' if len(trainable) > 6 else ''}."
            )
        left_out |= matched
    kept = {name: parameter for name, parameter in trainable.items() if name not in left_out}
    if not kept:
        raise InputError(f"exclude={patterns} leaves no parameter in the norm; expected at least one.")
    return kept
