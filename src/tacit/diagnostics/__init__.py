"""Diagnostics: what SGD regularizes in a run, each number with its interval, and what another batch size would do."""

from tacit.diagnostics.per_example import ExampleGradients, example_squared_norms

__all__ = ["ExampleGradients", "example_squared_norms"]
