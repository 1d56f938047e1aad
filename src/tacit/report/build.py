"""Study folders → figures with verdicts: the one place that reads rows, and the one that builds figures from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tacit._util.errors import InputError
from tacit.report.caption import caption
from tacit.report.figure import Figure, FigureResult, Source
from tacit.report.registry import catalogue, find_figure
from tacit.report.rows import MissingRowsError, Row, core_seconds, unshared_seeds
from tacit.report.settings import compared, used
from tacit.report.verdict import Verdict
from tacit.studies.describe.spec import NAME, canonical
from tacit.studies.describe.study import Study
from tacit.studies.store.folder import ResultsFolder, results_folders

# Figures of appendix D and those of the main text that ask the same. On a task whose one protocol serves both, they
# read the same runs.
TWINS = {"6a": "1b", "6b": "3a", "6c": "3b"}
# The paper's networks see every image shifted at random and never learn them by heart; without that, small networks on
# small data do. Most claims are about the first case, so it leads where there are runs of both.
AUGMENTED, PLAIN = "with augmentation", "without augmentation"


@dataclass(frozen=True)
class Part:
    """One study: its description, the rows it has so far, and where they come from."""

    study: Study
    rows: Sequence[Row]
    metas: list[dict[str, Any]]
    folder: str

    @property
    def missing(self) -> int:
        return len(self.study.runs) - len(self.rows)


@dataclass(frozen=True)
class Report:
    """Everything a report shows. `beside` has the figures of the other regime, by id; `absent` maps a figure that could
    not be built to the reason.
    """

    parts: tuple[Part, ...]
    figures: tuple[FigureResult, ...]
    absent: dict[str, str]
    beside: dict[str, FigureResult] = field(default_factory=dict)

    @property
    def twins(self) -> dict[str, str]:
        """Figures of appendix D that rest on the same runs as one of the main text, and that one."""
        shown = {figure.id for figure in self.figures}
        feeding = {id: [part.study.name for part in self.parts if id in part.study.figures] for id in shown}
        return {id: twin for id, twin in TWINS.items() if {id, twin} <= shown and feeding[id] == feeding[twin]}

    @property
    def rows(self) -> dict[str, Row]:
        """Distinct runs."""
        return {row["run"]: row for part in self.parts for row in part.rows}


def read_parts(folders: Sequence[str | Path]) -> tuple[Part, ...]:
    """The studies of these folders of results, and of those directly inside a folder that is none itself."""
    found = [results for folder in folders for results in results_folders(folder)]
    return tuple(part for results in found for part in parts_of(results, results.studies()))


def parts_of(results: ResultsFolder, studies: Sequence[Study]) -> tuple[Part, ...]:
    """Studies that are views on one folder of results."""
    return tuple(
        Part(study, results.rows_of(study.runs), results.metas_of(study.runs), study.name) for study in studies
    )


def build_report(parts: Sequence[Part], *, only: Sequence[str] = ()) -> Report:
    """Every figure that the studies name, or those of `only`, built from all the studies that name it."""
    wanted = list(dict.fromkeys(id for part in parts for id in (part.study.figures or {part.study.name: {}})))
    known = [id for id in catalogue() if id in wanted] + [id for id in wanted if id not in catalogue()]
    for id in only:
        if id not in known:
            raise InputError(f"figure {id!r} is not one of these studies; use one of {', '.join(known)}.")
    figures: list[FigureResult] = []
    absent: dict[str, str] = {}
    beside: dict[str, FigureResult] = {}
    for id in known:
        if only and id not in only:
            continue
        feeding = [part for part in parts if id in part.study.figures or id == part.study.name]
        has_options = any(part.study.figures.get(id) for part in feeding)
        made = []
        for regime, of_regime in by_regime(feeding).items():
            try:
                made.append(_build(id, of_regime, regime))
            except MissingRowsError as reason:
                absent.setdefault(id, f"it {reason}")
            except InputError as reason:
                absent.setdefault(id, str(reason))
            except (ValueError, TypeError) as reason:
                if not has_options:  # then it is a fault of the program
                    raise
                absent.setdefault(id, f"its options cannot be used: {str(reason).rstrip('.')}.")
        figures += made[:1]
        if made:
            absent.pop(id, None)
        if made[1:]:
            beside[id] = made[1]
    found = Report(tuple(parts), tuple(figures), absent, beside)
    return replace(found, figures=tuple(_with_twin(figure, found.twins.get(figure.id)) for figure in found.figures))


def by_regime(parts: Sequence[Part]) -> dict[str, list[Part]]:
    """The studies of a figure by whether their runs augment the training data; the paper's regime first."""
    found = {
        regime: [part for part in parts if any(regime_of(run.augmentation) == regime for run in part.study.runs)]
        for regime in (AUGMENTED, PLAIN)
    }
    return {regime: of_regime for regime, of_regime in found.items() if of_regime}


def regime_of(augmentation: str) -> str:
    return PLAIN if augmentation == "none" else AUGMENTED


def _with_twin(figure: FigureResult, twin: str | None) -> FigureResult:
    if twin is None:
        return figure
    words = f"These are the runs of figure {twin}, which follow appendix D's protocol, judged by the appendix's claim."
    return replace(figure, caption=f"{words} {figure.caption}")


def _build(id: str, parts: Sequence[Part], regime: str) -> FigureResult:
    if not NAME.fullmatch(id):
        raise InputError("its id has characters other than letters, digits, '.', '_' and '-'.")
    options = {key: value for part in parts for key, value in part.study.figures.get(id, {}).items()}
    figure = find_figure(id, options)
    options.pop("figure", None)
    distinct = {row["run"]: row for part in parts for row in part.rows}
    whole = [row for row in distinct.values() if regime_of(row["spec"]["augmentation"]) == regime]
    unshared = unshared_seeds([part.study for part in parts])
    rows = [row for row in whole if row["spec"]["seed"] not in unshared]
    if not rows:
        raise MissingRowsError("needs rows; no run has finished yet.")
    source = _source(parts[0].study, figure.chosen(rows, options), options)
    drawing = figure.draw(source)
    drawn = drawing.rows if drawing.rows is not None else source.rows
    left_out = sum(row["spec"]["seed"] in unshared for row in used(figure, whole, options))
    note = f" {left_out} runs of seeds that not every study of this figure has are left out." if left_out else ""
    return FigureResult(
        id=id,
        title=drawing.title or figure.title,
        panels=drawing.panels,
        verdict=_verdict(figure, drawing.seen, drawing.criteria),
        caption=caption(source, drawing, drawn) + note,
        runs=len(drawn),
        diverged=sum(row["status"] != "finished" for row in drawn),
        seconds=training_seconds(drawn, [meta for part in parts for meta in part.metas]),
        settings=compared(figure, rows, options=options),
        paper=figure.paper,
        regime=regime,
        answer="" if drawing.criteria else drawing.seen,
    )


def training_seconds(rows: Sequence[Row], metas: Sequence[Mapping[str, Any]]) -> float:
    """CPU seconds of these runs, where they are known: a run's part of its fleet's, whose runs are alike."""
    counted = [meta for meta in metas if isinstance(meta.get("runs"), int) and meta["runs"] > 0]
    each = {meta.get("fleet"): core_seconds(meta) / meta["runs"] for meta in counted}
    return float(sum(each.get(row["fleet"], 0.0) for row in rows))


def _verdict(figure: Figure, seen: str, criteria: tuple[Any, ...]) -> Verdict | None:
    if not criteria:
        return None
    quote = figure.quote
    return Verdict(figure.claim, seen, criteria, *((quote.text, quote.where) if quote else ("", "")))


def _source(study: Study, rows: Sequence[Row], options: dict[str, Any]) -> Source:
    summary = study.summary
    if summary.best is None or summary.of is None:
        return Source(rows, score=summary.score, options=options)
    seeds = len({row["spec"]["seed"] for row in rows})
    # With fewer seeds than the study file asks for, the same share of runs is kept: 5 of 7 becomes 2 of 3.
    best = summary.best if seeds >= summary.of else max(1, seeds * summary.best // summary.of)
    return Source(rows, best=best, of=min(seeds, summary.of), score=summary.score, options=options)


def environment_facts(report: Report) -> dict[str, str]:
    """Versions, commit and machine of the runs; several values are listed when they differ."""
    every = [meta for part in report.parts for meta in part.metas]
    metas = list({canonical(meta): meta for meta in every}.values())  # several studies may share a fleet
    versions: dict[str, set[str]] = {}
    for meta in metas:
        for name, value in (meta.get("versions") or {}).items():
            versions.setdefault(name, set()).add(str(value))
    facts = {name: ", ".join(sorted(found)) for name, found in versions.items()}
    facts["commit"] = _distinct([meta.get("commit") for meta in metas])
    machines = [meta.get("machine") or {} for meta in metas]
    facts["machine"] = _distinct(
        [
            ", ".join(str(value) for value in (machine.get("processor"), machine.get("architecture")) if value)
            + (f", {machine['cores']} cores" if machine.get("cores") else "")
            for machine in machines
        ]
    )
    facts["training"] = f"{sum(map(core_seconds, metas)) / 60:.1f} core-minutes"
    facts["ended"] = max((str(meta.get("ended") or "") for meta in metas), default="")
    return {key: value for key, value in facts.items() if value}


def _distinct(values: Sequence[object]) -> str:
    return "; ".join(dict.fromkeys(str(value) for value in values if value))
