"""Every figure by its id: those of `tacit.report.figures`, and one that a study brings as "module:name"."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from tacit._util.errors import InputError
from tacit._util.own_code import import_object
from tacit.report import figures as folder
from tacit.report.figure import Figure
from tacit.report.own_figure import own_figure
from tacit.report.rows import Options


@cache
def catalogue() -> dict[str, Figure]:
    """The figures of the package: every `Figure`, or tuple of them, in a file of `figures/`, by id."""
    found: dict[str, Figure] = {}
    for file in pkgutil.iter_modules(folder.__path__):
        module = importlib.import_module(f"{folder.__name__}.{file.name}")
        for value in vars(module).values():
            for figure in value if isinstance(value, tuple) else (value,):
                if isinstance(figure, Figure) and found.setdefault(figure.id, figure) is not figure:
                    raise InputError(f"two figures have the id {figure.id}; the second is in {module.__name__}.")
    return dict(sorted(found.items(), key=lambda item: (not item[0][:1].isdigit(), item[0])))


def find_figure(id: str, options: Options) -> Figure:
    """The figure that a study names: its own code, one of the package, or one drawn from the options alone."""
    if "figure" in options:
        return load_figure(str(options["figure"]))
    return catalogue().get(id) or own_figure(id)


def load_figure(place: str) -> Figure:
    """The `Figure` that "module:name" names, of the user's own code."""
    found = import_object(place)
    if not isinstance(found, Figure):
        raise InputError(f"figure = {place!r} is not a tacit.report.Figure; expected one under that name.")
    return found
