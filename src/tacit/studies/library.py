"""The study files that come with tacit: where they are, and which figures each one feeds."""

from __future__ import annotations

from pathlib import Path

from tacit._errors import InputError
from tacit.studies.study import Study, load_study

SCALES = ("quick", "standard")


def library_folder() -> Path:
    """`studies/` of the checkout, or its copy inside the installed package."""
    here = Path(__file__).parent
    for found in (here / "files", here.parents[2] / "studies"):
        if found.is_dir():
            return found
    raise InputError(f"the study files are missing beside {here}; reinstall tacit or run from a checkout.")


def datasets() -> list[str]:
    """Datasets that have studies for every figure."""
    return sorted(path.name for path in library_folder().iterdir() if all((path / scale).is_dir() for scale in SCALES))


def library(dataset: str, scale: str) -> dict[str, Study]:
    """The studies of one dataset and scale, by name."""
    if dataset not in datasets():
        raise InputError(f"dataset={dataset!r} has no study files; use one of {', '.join(datasets())}.")
    if scale not in SCALES:
        raise InputError(f"scale={scale!r} is unknown; use one of {', '.join(SCALES)}.")
    files = sorted((library_folder() / dataset / scale).glob("*.toml"))
    return {study.name: study for study in map(load_study, files)}


def studies_for(figures: list[str], studies: dict[str, Study]) -> dict[str, Study]:
    """Those studies that feed any of these figures; all of them when none is named."""
    known = list(dict.fromkeys(id for study in studies.values() for id in study.figures))
    for figure in figures:
        if figure not in known:
            raise InputError(f"figure {figure!r} is unknown; use one of {', '.join(sorted(known))}.")
    return {name: study for name, study in studies.items() if not figures or any(id in study.figures for id in figures)}
