"""tacit: SGD's tacit regularizer, made explicit.

The public names, and nothing else. They are imported on first use: a report can be rebuilt, and `tacit --help`
printed, without importing torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "BatchSampler": "tacit.batching",
    "FactoredSGD": "tacit.penalty",
    "GradientPenalty": "tacit.penalty",
    "InputError": "tacit._util.errors",
    "NStepSGD": "tacit.nstep",
    "Problem": "tacit.problem",
    "Recorder": "tacit.diagnostics",
    "Relative": "tacit.penalty",
    "SharpnessAware": "tacit.penalty",
    "match": "tacit.advice",
    "measure": "tacit.diagnostics",
    "search_strength": "tacit.advice",
}
_MODULES = ("advice", "batching", "convert", "diagnostics", "schedules", "sinks", "studies", "theory")
_FRAMEWORK_MODULES = ("lightning", "transformers")  # not in __all__: each needs its framework

__all__ = [
    "BatchSampler",
    "FactoredSGD",
    "GradientPenalty",
    "InputError",
    "NStepSGD",
    "Problem",
    "Recorder",
    "Relative",
    "SharpnessAware",
    "__version__",
    "advice",
    "batching",
    "convert",
    "diagnostics",
    "match",
    "measure",
    "schedules",
    "search_strength",
    "sinks",
    "studies",
    "theory",
]

if TYPE_CHECKING:
    from tacit import advice, batching, convert, diagnostics, schedules, sinks, studies, theory
    from tacit._util.errors import InputError
    from tacit.advice import match, search_strength
    from tacit.batching import BatchSampler
    from tacit.diagnostics import Recorder, measure
    from tacit.nstep import NStepSGD
    from tacit.penalty import FactoredSGD, GradientPenalty, Relative, SharpnessAware
    from tacit.problem import Problem


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _MODULES or name in _FRAMEWORK_MODULES:
        return importlib.import_module(f"tacit.{name}")
    raise AttributeError(f"module 'tacit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
