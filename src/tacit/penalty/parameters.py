"""Which parameters a penalty's norm runs over."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable
from operator import is_

from torch import nn
from torch.nn.parameter import UninitializedParameter

from tacit._util.errors import InputError


class PenalisedParameters:
    """The penalised parameters by name. They are looked up again only where the model has changed.

    Layers may be frozen or replaced between two steps. Walking over all modules and names takes longer than a step of a
    small model; comparing the objects that are there with those of the last walk does not.
    """

    def __init__(self, model: nn.Module, exclude: Iterable[str], *, on_change: Callable[[], None]) -> None:
        self.model, self.exclude, self.on_change = model, tuple(exclude), on_change
        self._walk()

    def now(self) -> dict[str, nn.Parameter]:
        if self._has_changed():
            self._walk()
            self.on_change()
        return self.by_name

    def _walk(self) -> None:
        self.by_name = penalised_parameters(self.model, self.exclude)
        self.modules = list(self.model.modules())
        self._seen = [
            (module._modules, [*module._modules.values()], module._parameters, [*module._parameters.values()])
            for module in self.modules
        ]
        self._trainable = [(p, p.requires_grad) for p in self.model.parameters()]

    def _has_changed(self) -> bool:
        for modules, children, parameters, own in self._seen:
            if len(modules) != len(children) or not all(map(is_, modules.values(), children)):
                return True
            if len(parameters) != len(own) or not all(map(is_, parameters.values(), own)):
                return True
        return any(parameter.requires_grad is not was for parameter, was in self._trainable)


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
