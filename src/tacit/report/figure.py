"""`Figure`: everything about one figure in one place — its rows, quotation, options, drawing and verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from tacit._util.errors import InputError
from tacit.report.layout import Layout
from tacit.report.points import Panel, Points, accuracy, points_of
from tacit.report.rows import MissingRowsError, Options, Reader, Row, check_alike
from tacit.report.verdict import OUTCOMES, Criterion, Outcome, Verdict

if TYPE_CHECKING:
    from tacit.report.settings import Setting

T = TypeVar("T")
# Plain SGD: most figures read runs that follow it.
SGD: dict[str, Any] = {"order": "shuffled", "schedule": "constant", "inner_steps": 1}


@dataclass(frozen=True)
class Quote:
    """At most 25 words of the paper (symbols written in Unicode), and their place."""

    text: str
    where: str


@dataclass(frozen=True)
class Source:
    """The rows of one figure. Lines are means of the best `best` of `of` runs by `score`; None: means of all."""

    rows: Sequence[Row]
    best: int | None = None
    of: int | None = None
    score: str = "best_test_accuracy"
    options: Options = field(default_factory=dict)

    @cached_property
    def points(self) -> Points:
        return points_of(self.rows, accuracy(self.score))


@dataclass(frozen=True)
class Drawing:
    """What a figure makes of its rows: panels, what is seen in words, and the criteria of its claim (none: no verdict).

    `says` begins the caption; `means` tells what lines and points are, where it is not the usual.
    """

    panels: tuple[Panel, ...]
    says: str
    seen: str = ""
    criteria: tuple[Criterion, ...] = ()
    means: str = ""
    title: str = ""
    scatter: Layout | None = None  # the layout behind the bars, where it is not that of the test accuracies
    bars: bool = True  # False: its bands are other intervals, which `means` names
    rows: Sequence[Row] | None = None  # where only some of the rows read are drawn


@dataclass(frozen=True)
class Figure:
    """One figure. `reads` chooses rows by their specs alone; all of them follow `protocol` and differ in nothing but
    `varying`, the seed and, unless it is `length` (epochs or updates), how long they are.
    """

    id: str
    title: str
    draw: Callable[[Source], Drawing]
    shows: str = ""  # one line of `tacit reproduce --list`
    claim: str = ""
    quote: Quote | None = None
    reads: Reader = lambda rows, options: list(rows)
    varying: tuple[str, ...] | None = None  # None: an own figure that sees to its rows itself
    protocol: Mapping[str, Any] = field(default_factory=lambda: SGD)
    length: str | None = "epochs"
    options: tuple[str, ...] = ()  # keys of a study's [figures] table, of those that `figure_options` knows
    paper: str = ""  # the paper's own numbers, in words
    small_rate: bool = False  # whether its strengths are swept at one small rate

    def check(self, options: Options) -> None:
        """Refuse an option that this figure does not take."""
        for key in options:
            if key not in self.options:
                known = f"known keys: {', '.join(self.options)}" if self.options else "this figure takes no options"
                raise InputError(f"figure {self.id}: the key {key} is unknown; {known}.")

    def chosen(self, rows: Sequence[Row], options: Options) -> list[Row]:
        """The rows it takes, or a sentence that says what they lack."""
        self.check(options)
        found = self.reads(rows, options)
        if not found:
            raise MissingRowsError("needs rows; the rows at hand have none of those that it reads.")
        if self.varying is not None:
            check_alike(found, varying=self.varying, length=self.length, protocol=self.protocol)
        return found


@dataclass(frozen=True)
class FigureResult:
    """One figure made of rows. `verdict` is None without a claim; `regime` says whether its runs were augmented;
    `seconds` are the CPU seconds of its runs, or the time that passed where those are not known, summed.
    """

    id: str
    title: str
    panels: tuple[Panel, ...]
    verdict: Verdict | None
    caption: str
    runs: int
    diverged: int
    seconds: float = 0.0
    settings: tuple[Setting, ...] = ()  # of its runs, beside the paper's
    paper: str = ""
    regime: str = ""
    answer: str = ""  # of a figure without a claim: what it says in words

    @property
    def name(self) -> str:
        """What it is called: "Figure 1b"; one that the paper has no number for, by its id."""
        return f"Figure {self.id}" if self.id[:1].isdigit() else self.id.capitalize()


def need(points: Iterable[T], what: str, *, at_least: int = 1) -> list[T]:
    """The points, or a sentence that says what the figure lacks."""
    found = list(points)
    if len(found) < at_least:
        raise MissingRowsError(f"needs {what}; the rows at hand have {len(found)} of at least {at_least}.")
    return found


def outcome_counts(figures: Iterable[FigureResult]) -> dict[Outcome, int]:
    """How many claims have each outcome."""
    return _counts(figure.verdict.outcome for figure in figures if figure.verdict)


def shown_counts(figures: Iterable[FigureResult]) -> dict[Outcome, int]:
    """The same as pages show them: what rests on too few runs is undecided."""
    return _counts(figure.verdict.shown_outcome for figure in figures if figure.verdict)


def _counts(outcomes: Iterable[Outcome]) -> dict[Outcome, int]:
    counts = Counter(outcomes)
    return {outcome: counts[outcome] for outcome in OUTCOMES}
