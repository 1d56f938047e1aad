"""A figure for any study: what its `[figures]` table says, or the score against its longest axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tacit._errors import InputError
from tacit.report.draw import PALETTE
from tacit.report.ensemble import Row
from tacit.report.figure import Figure, Panel, all_count, caption, score_curve
from tacit.report.selection import VARIABLES, MissingRowsError, Source
from tacit.report.strengths import figure

SCORES = {
    "best_test_accuracy": "highest test accuracy",
    "final_test_accuracy": "final test accuracy",
    "best_train_accuracy": "highest training accuracy",
    "final_train_accuracy": "final training accuracy",
}
OPTIONS = ("x", "y", "curve", "title")


def generic_figure(id: str, source: Source) -> Figure:
    """y against x, one curve per value of `curve`; what the study leaves out is chosen from what varies."""
    for key in source.options:
        if key not in OPTIONS:
            raise InputError(f"figure {id}: the key {key} is unknown; known keys: {', '.join(OPTIONS)}.")
    varying = [key for key in VARIABLES if len({VARIABLES[key].of(row["spec"]) for row in source.rows}) > 1]
    x = _choice(id, "x", source.options.get("x") or (varying or ["learning_rate"])[0], VARIABLES)
    y = _choice(id, "y", source.options.get("y") or source.score, SCORES)
    curve = source.options.get("curve") or next(iter(_other_axes(source.rows, x)), None)
    if curve is not None and source.rows and curve not in source.rows[0]["spec"]:
        raise InputError(f"figure {id}: curve is {curve!r}; expected one of {', '.join(source.rows[0]['spec'])}.")
    # Whatever else varies tells curves apart too: runs of different settings are not runs of different seeds.
    axes = list(dict.fromkeys([*([curve] if curve else []), *_other_axes(source.rows, x)]))
    groups: dict[str, list[Row]] = {}
    for row in source.rows:
        groups.setdefault(", ".join(f"{key} = {row['spec'][key]}" for key in axes), []).append(row)
    if not groups:
        raise MissingRowsError("needs rows; there are none yet.")
    curves = tuple(
        all_count(
            score_curve(
                source, rows, x=VARIABLES[x].of, label=value or SCORES[y],
                colour=PALETTE[index % len(PALETTE)], score=y,
            )
        )
        for index, (value, rows) in enumerate(sorted(groups.items(), key=lambda item: item[0]))
    )  # fmt: skip
    positive = all(point.x > 0 for made in curves for point in made.points)
    panel = Panel(curves, VARIABLES[x].label, SCORES[y], x_scale="log2" if positive else "linear")
    says = f"{SCORES[y].capitalize()} against {VARIABLES[x].label}."
    title = str(source.options.get("title") or f"{SCORES[y]} against {VARIABLES[x].words}")
    return figure(id, title, (panel,), None, caption(source, source.rows, says=says), list(source.rows))


def _choice(id: str, key: str, value: str, known: Mapping[str, object]) -> str:
    if value not in known:
        raise InputError(f"figure {id}: {key} is {value!r}; expected one of {', '.join(known)}.")
    return value


def _other_axes(rows: Sequence[Row], x: str) -> list[str]:
    """Spec keys that vary besides x and the seed. With ε = nα, the rate follows from the other two."""
    keys = [key for key in (rows[0]["spec"] if rows else {}) if key not in ("seed", x)]
    hidden = {"learning_rate"} if x in ("bare_learning_rate", "temperature", "effective_learning_rate") else set()
    hidden |= {"strength"} if x in ("strength_ratio", "total") else set()
    return [key for key in keys if key not in hidden and len({str(row["spec"][key]) for row in rows}) > 1]
