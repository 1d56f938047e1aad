"""The study files that come with tacit: where they are, and which figures each one feeds."""

from __future__ import annotations

from pathlib import Path

from tacit._util.errors import InputError
from tacit.studies.describe.study import Study, load_study

BY_DATASET = ("quick", "standard")  # studies/DATASET/SCALE/: the same figures on one task
MIXED = ("small", "paper")  # studies/SCALE/: each figure on the dataset that the paper uses for it
SCALES = (*BY_DATASET, *MIXED)
DEFAULT_DATASET = "mnist1d"


def library_folder() -> Path:
    """`studies/` of the checkout, or its copy inside the installed package."""
    here = Path(__file__).parents[1]
    for found in (here / "files", here.parents[2] / "studies"):
        if found.is_dir():
            return found
    raise InputError(f"the study files are missing beside {here}; reinstall tacit or run from a checkout.")


def study_names() -> list[str]:
    """The names of all study files that come with tacit: `mnist1d/quick/rates`, `paper/fig1b-cifar10`, …"""
    folder = library_folder()
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.toml"))


def find_study_file(given: Path) -> Path:
    """The file that is named: a file of the user's own, or a study file of tacit by its name.

    A name that is neither is returned as it is, so that reading it says that there is no such file.
    """
    name = given.as_posix().removesuffix(".toml")
    return library_folder() / f"{name}.toml" if not given.exists() and name in study_names() else given


def datasets(scale: str = "quick") -> list[str]:
    """Datasets that have study files at this scale."""
    if scale in BY_DATASET:
        return sorted(path.name for path in library_folder().iterdir() if (path / scale).is_dir())
    return sorted({run.dataset for study in _read(library_folder() / scale).values() for run in study.runs})


def library(dataset: str | None, scale: str) -> dict[str, Study]:
    """The studies of one scale, by name: of one dataset, or without one of all that the scale mixes."""
    if scale not in SCALES:
        raise InputError(f"scale={scale!r} is unknown; use one of {', '.join(SCALES)}.")
    if scale in BY_DATASET:
        chosen = dataset or DEFAULT_DATASET
        _check(chosen, datasets(scale), scale)
        return _read(library_folder() / chosen / scale)
    studies = _read(library_folder() / scale)
    if dataset is None:
        return studies
    _check(dataset, datasets(scale), scale)
    return {name: study for name, study in studies.items() if any(run.dataset == dataset for run in study.runs)}


def results_name(dataset: str | None, scale: str) -> str:
    """The folder of results of a dataset and scale: `mnist1d-quick`, `cifar10-paper`, or `paper` for all of it."""
    if scale in BY_DATASET:
        return f"{dataset or DEFAULT_DATASET}-{scale}"
    return f"{dataset}-{scale}" if dataset else scale


def studies_for(figures: list[str], studies: dict[str, Study]) -> dict[str, Study]:
    """Those studies that feed any of these figures; all of them when none is named."""
    known = list(dict.fromkeys(id for study in studies.values() for id in study.figures))
    for figure in figures:
        if figure not in known:
            raise InputError(f"figure {figure!r} is unknown; use one of {', '.join(sorted(known))}.")
    return {name: study for name, study in studies.items() if not figures or any(id in study.figures for id in figures)}


def _read(folder: Path) -> dict[str, Study]:
    files = sorted(folder.glob("*.toml"))
    if not files:
        raise InputError(f"there are no study files in {folder}; reinstall tacit or run from a checkout.")
    return {study.name: study for study in map(load_study, files)}


def _check(dataset: str, known: list[str], scale: str) -> None:
    if dataset not in known:
        raise InputError(f"dataset={dataset!r} has no study files at scale {scale}; use one of {', '.join(known)}.")
