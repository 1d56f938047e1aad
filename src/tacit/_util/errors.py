"""The two exceptions of the package. The command line prints each as one sentence and exits with code 2."""

from __future__ import annotations


class TacitError(Exception):
    """Something outside the program went wrong (a full disk, a damaged file); the message is one sentence."""


class InputError(TacitError, ValueError):
    """A wrong argument or study file; the message is one sentence: found, expected, remedy."""
