"""Diagnostics: what SGD regularizes in a run, each number with its interval, and what another batch size would do."""

from tacit.diagnostics.advice import Advice, match
from tacit.diagnostics.estimates import Estimate
from tacit.diagnostics.measurement import Measurement
from tacit.diagnostics.measuring import measure
from tacit.diagnostics.per_example import ExampleGradients, example_squared_norms
from tacit.diagnostics.recorder import Recorder

__all__ = [
    "Advice",
    "Estimate",
    "ExampleGradients",
    "Measurement",
    "Recorder",
    "example_squared_norms",
    "match",
    "measure",
]
