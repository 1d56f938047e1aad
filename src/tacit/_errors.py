"""The two exceptions of the package. The command line prints each as one sentence and exits with code 2."""

from __future__ import annotations


class TacitError(Exception):
    """Something outside the program went wrong; the message is one sentence: a full disk, a lost network, a damaged file."""


class InputError(TacitError, ValueError):
    """A wrong argument or study file; the message is one sentence: found, expected, remedy."""
