"""Diagnostics: what SGD regularizes in a run, each number with its interval."""

from tacit.diagnostics.estimates import Estimate
from tacit.diagnostics.measurement import Measurement
from tacit.diagnostics.measuring import measure
from tacit.diagnostics.per_example import ExampleGradients, example_squared_norms
from tacit.diagnostics.recorder import Recorder
from tacit.diagnostics.spectrum import Spectrum

__all__ = [
    "Estimate",
    "ExampleGradients",
    "Measurement",
    "Recorder",
    "Spectrum",
    "example_squared_norms",
    "measure",
]
