"""Diagnostics: what SGD regularizes in a run, each number with its interval, and what another batch size would do."""

from tacit.diagnostics.advice import Advice, match
from tacit.diagnostics.estimates import Estimate
from tacit.diagnostics.measure import measure
from tacit.diagnostics.measurement import Measurement
from tacit.diagnostics.per_example import ExampleGradients, example_squared_norms

__all__ = ["Advice", "Estimate", "ExampleGradients", "Measurement", "example_squared_norms", "match", "measure"]
