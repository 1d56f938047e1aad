"""The one exception for bad input: a sentence that says what was found, what was expected and the remedy."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input, said in one sentence: found, expected, remedy.

    The command line prints it without a traceback and exits with code 2.
    """
