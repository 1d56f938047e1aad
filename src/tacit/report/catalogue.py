"""Every figure of the paper by its number, and the one place where study folders become figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tacit._errors import InputError
from tacit.report import collapse, inner_steps, orders, strengths, training
from tacit.report.ensemble import Row
from tacit.report.figure import Figure
from tacit.report.generic import generic_figure
from tacit.report.quotes import QUOTES
from tacit.report.selection import MissingRowsError, Source, unshared_seeds
from tacit.report.settings import compared, used
from tacit.studies.describe.spec import NAME
from tacit.studies.describe.study import Study
from tacit.studies.store.folder import StudyFolder, read_rows


@dataclass(frozen=True)
class Entry:
    """One figure of the paper: what it shows, in a line, and how rows become it."""

    id: str
    shows: str
    build: Callable[[Source], Figure]


CATALOGUE = {
    entry.id: entry
    for entry in (
        Entry("1a", "test accuracy during training, λ = 0 and λ > 0 at a small ε", strengths.figure_1a),
        Entry("1b", "test accuracy against ε and against λ; also against λ + ε", strengths.figure_1b),
        Entry("1c", "C_reg at the end of training against ε and λ", strengths.figure_1c),
        Entry("2a", "training and test accuracy against ε at λ = 0", training.figure_2a),
        Entry("2b", "training and test accuracy against ε at a good λ", training.figure_2b),
        Entry("3a", "batch sizes against ε/B, fixed epochs", collapse.figure_3a),
        Entry("3b", "batch sizes against λ/B, fixed updates", collapse.figure_3b),
        Entry("4a", "n-step SGD against α, fixed epochs, decaying rate", inner_steps.figure_4a),
        Entry("4b", "n-step SGD against α, fixed updates, decaying rate", inner_steps.figure_4b),
        Entry("4c", "n-step SGD at its best rate over epoch budgets, decaying rate", inner_steps.figure_4c),
        Entry("5a", "training accuracy against ε and λ", training.figure_5a),
        Entry("5b", "original loss C at the end against ε and λ", training.figure_5b),
        Entry("6a", "test accuracy against ε and λ, appendix D", strengths.figure_6a),
        Entry("6b", "batch sizes against ε/B, appendix D", collapse.figure_6b),
        Entry("6c", "batch sizes against λ/B, appendix D", collapse.figure_6c),
        Entry("7a", "n-step SGD against α and nα, fixed epochs, constant rate", collapse.figure_7a),
        Entry("7b", "n-step SGD against α and nα, fixed updates, constant rate", collapse.figure_7b),
        Entry("7c", "n-step SGD at its best rate over epoch budgets, constant rate", inner_steps.figure_7c),
        Entry(
            "orders", "orders of the minibatches side by side (argued in the paper, not shown)", orders.figure_orders
        ),
    )
}


@dataclass(frozen=True)
class Part:
    """One study folder: the study, the rows it has so far, and where they come from."""

    study: Study
    rows: Sequence[Row]
    metas: list[dict[str, Any]]
    folder: str

    @property
    def missing(self) -> int:
        return len(self.study.runs) - len(self.rows)


# Figures of appendix D and those of the main text that ask the same. On a task whose one protocol serves both, they
# read the same runs.
TWINS = {"6a": "1b", "6b": "3a", "6c": "3b"}


@dataclass(frozen=True)
class Report:
    """Everything a report shows. `absent` maps a figure that could not be built to the reason."""

    parts: tuple[Part, ...]
    figures: tuple[Figure, ...]
    absent: dict[str, str]

    @property
    def twins(self) -> dict[str, str]:
        """Figures of appendix D that rest on the same runs as one of the main text, and that one."""
        shown = {figure.id for figure in self.figures}
        return {
            id: twin for id, twin in TWINS.items()
            if {id, twin} <= shown and _names(self.parts, id) == _names(self.parts, twin)
        }  # fmt: skip

    @property
    def rows(self) -> dict[str, Row]:
        """Distinct runs."""
        return {row["run"]: row for part in self.parts for row in part.rows}


def read_parts(folders: Sequence[str | Path]) -> tuple[Part, ...]:
    """The study folders given, and those directly inside a folder that is none itself."""
    parts = []
    for folder in folders:
        path = Path(folder)
        if not path.exists():
            raise InputError(f"there is no folder {path}; expected one made by `tacit run` or `tacit reproduce`.")
        inside = (
            [path] if (path / "study.json").exists() else sorted(found.parent for found in path.glob("*/study.json"))
        )
        if not inside:
            raise InputError(f"{path} holds no study; expected a folder made by `tacit run` or `tacit reproduce`.")
        for each in inside:
            store = StudyFolder(each)
            metas = [meta for fleet in store.fleets_on_disk() if (meta := store.meta(fleet)) is not None]
            parts.append(Part(store.study(), read_rows(each), metas, each.name))
    return tuple(parts)


def build_report(parts: Sequence[Part], *, only: Sequence[str] = ()) -> Report:
    """Every figure that the studies name, or those of `only`, built from all the studies that name it."""
    wanted = list(dict.fromkeys(id for part in parts for id in (part.study.figures or {part.study.name: {}})))
    known = [id for id in CATALOGUE if id in wanted] + [id for id in wanted if id not in CATALOGUE]
    for id in only:
        if id not in known:
            raise InputError(f"figure {id!r} is not one of these studies; use one of {', '.join(known)}.")
    figures, absent = [], {}
    for id in known:
        if only and id not in only:
            continue
        feeding = [part for part in parts if id in part.study.figures or id == part.study.name]
        has_options = any(part.study.figures.get(id) for part in feeding)
        try:
            if not NAME.fullmatch(id):
                raise InputError("its id has characters other than letters, digits, '.', '_' and '-'.")
            figures.append(_build(id, feeding))
        except MissingRowsError as reason:
            absent[id] = f"it {reason}"
        except InputError as reason:
            absent[id] = str(reason)
        except (ValueError, TypeError) as reason:
            if not has_options:  # then it is a fault of the program
                raise
            absent[id] = f"its options cannot be used: {str(reason).rstrip('.')}."
    made = Report(tuple(parts), tuple(figures), absent)
    return replace(made, figures=tuple(_with_twin(figure, made.twins.get(figure.id)) for figure in made.figures))


def _names(parts: Sequence[Part], id: str) -> list[str]:
    """The studies that feed a figure."""
    return [part.study.name for part in parts if id in part.study.figures]


def _with_twin(figure: Figure, twin: str | None) -> Figure:
    if twin is None:
        return figure
    words = f"These are the runs of figure {twin}, which follow appendix D's protocol, judged by the appendix's claim."
    return replace(figure, caption=f"{words} {figure.caption}")


def _build(id: str, parts: Sequence[Part]) -> Figure:
    whole = list({row["run"]: row for part in parts for row in part.rows}.values())
    unshared = unshared_seeds([part.study for part in parts])
    rows = [row for row in whole if row["spec"]["seed"] not in unshared]
    if not rows:
        raise MissingRowsError("needs rows; no run has finished yet.")
    options: dict[str, Any] = {}
    for part in parts:
        options.update(part.study.figures.get(id, {}))
    summary = parts[0].study.summary
    seeds = len({row["spec"]["seed"] for row in rows})
    # With fewer seeds than the study file asks for, the same share of runs is kept: 5 of 7 becomes 2 of 3.
    best = summary.best if seeds >= summary.of else max(1, seeds * summary.best // summary.of)
    source = Source(rows, best=best, of=min(seeds, summary.of), score=summary.score, options=options)
    if id not in CATALOGUE:
        return generic_figure(id, source)
    made, said = CATALOGUE[id].build(source), QUOTES[id]
    left_out = sum(row["spec"]["seed"] in unshared for row in used(id, whole, options))
    if left_out:
        words = f"{left_out} runs of seeds that not every study of this figure has are left out."
        made = replace(made, caption=f"{made.caption} {words}")
    verdict = made.verdict and replace(made.verdict, quote=said.text, where=said.where)
    return replace(made, verdict=verdict, settings=compared(id, rows, options=options))
