"""Captions: what is drawn, how many runs, which were left out, and what the bars are."""

from __future__ import annotations

from collections.abc import Sequence

from tacit._util.plural import counted
from tacit.report.figure import Drawing, Source
from tacit.report.layout import Layout
from tacit.report.points import by_point
from tacit.report.rows import Row

PROTOCOL = {
    ("schedule", "constant"): "constant rate",
    ("schedule", "paper_decay"): "rate constant for half of the run, then halved every tenth",
    ("order", "shuffled"): "shuffled every epoch",
    ("weight_decay", 0.0): "no weight decay",
}


def caption(source: Source, drawing: Drawing, rows: Sequence[Row]) -> str:
    diverged = sum(row["status"] != "finished" for row in rows)
    counts = seed_counts(rows)
    runs = f"{len(rows)} runs, {seeds_text(rows)} per point{protocol_text(rows)}."
    if drawing.means:
        means = drawing.means
        failed = f"{diverged} runs diverged." if diverged else "No run diverged."
    else:
        left_out = sum(max(0, count - source.best) for count in counts) if source.best else 0
        kept = f"of the best {source.best} of {source.of} by highest accuracy" if left_out else "of all runs"
        hollow = f" The {left_out} runs left out of those means are drawn hollow." if left_out else ""
        means = f"Points are runs; lines are means {kept}.{hollow}"
        failed = (
            f"{diverged} runs diverged and count with what they reached before." if diverged else "No run diverged."
        )
    bars = f" {bars_text(drawing.scatter or source.points.layout)}" if drawing.bars else ""
    return f"{drawing.says} {runs} {means.rstrip('.')}.{bars} {failed}"


def bars_text(layout: Layout) -> str:
    """What error bars and bands are, with the degrees of freedom they rest on."""
    return (
        "Bars and bands are 95 % Student intervals for comparing points, from the scatter that is left after each "
        f"seed’s own effect, pooled over the {len(layout.pooled_points)} of {len(layout.cells)} points that train "
        f"alike ({layout.freedom} degrees of freedom)."
    )


def seed_counts(rows: Sequence[Row]) -> list[int]:
    return [len(runs) for runs in by_point(rows)] or [0]


def seeds_text(rows: Sequence[Row]) -> str:
    """How many seeds a point has: a range when points differ, as in unfinished studies."""
    fewest, most = min(seed_counts(rows)), max(seed_counts(rows))
    return counted(most, "seed") if fewest == most else f"{fewest} to {most} seeds"


def protocol_text(rows: Sequence[Row]) -> str:
    """What all runs have in common, as far as it has words here."""
    words = [said for (key, value), said in PROTOCOL.items() if rows and all(row["spec"][key] == value for row in rows)]
    return f" ({', '.join(words)})" if words else ""
