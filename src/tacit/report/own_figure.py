"""A figure for any study: what its `[figures]` table says, or the score against what varies most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from tacit._errors import InputError
from tacit.report.draw import PALETTE
from tacit.report.figure import Drawing, Figure, Source, need
from tacit.report.points import Panel, accuracy, curve, points_of
from tacit.report.rows import VARIABLES, Row

SCORES = {
    "best_test_accuracy": "highest test accuracy",
    "final_test_accuracy": "final test accuracy",
    "best_train_accuracy": "highest training accuracy",
    "final_train_accuracy": "final training accuracy",
}
OPTIONS = ("x", "y", "curve", "title")


def own_figure(id: str) -> Figure:
    """y against x, one curve per value of `curve`; what the study leaves out is chosen from what varies."""
    return Figure(id=id, title=id, draw=partial(draw, id=id), options=OPTIONS)


def draw(source: Source, id: str) -> Drawing:
    options = source.options
    varying = [key for key in VARIABLES if len({VARIABLES[key].of(row["spec"]) for row in source.rows}) > 1]
    x = _choice(id, "x", options.get("x") or (varying or ["learning_rate"])[0], VARIABLES)
    y = _choice(id, "y", options.get("y") or source.score, SCORES)
    chosen = options.get("curve") or next(iter(_other_axes(source.rows, x)), None)
    if chosen is not None and chosen not in source.rows[0]["spec"]:
        raise InputError(f"figure {id}: curve is {chosen!r}; expected one of {', '.join(source.rows[0]['spec'])}.")
    # Whatever else varies tells curves apart too: runs of different settings are not runs of different seeds.
    axes = list(dict.fromkeys([*([chosen] if chosen else []), *_other_axes(source.rows, x)]))
    points = points_of(source.rows, accuracy(y))
    groups: dict[str, list[int]] = {}
    for index in need(range(len(points.specs)), "finished runs"):
        spec = points.specs[index]
        groups.setdefault(", ".join(f"{key} = {_short(spec[key])}" for key in axes), []).append(index)
    variable = VARIABLES[x]
    curves = tuple(
        curve(
            points, indices, x=variable, label=label or SCORES[y], colour=PALETTE[number % len(PALETTE)],
            best=source.best,
        )
        for number, (label, indices) in enumerate(sorted(groups.items()))
    )  # fmt: skip
    places = points.x(variable)
    # λ = 0 has no place on a logarithmic axis: it gets one of its own, left of the smallest value.
    scale = "log2" if min(places) > 0 else "symlog2" if max(places) > 0 else "linear"
    return Drawing(
        panels=(Panel(curves, variable.label, SCORES[y], x_scale=scale),),  # type: ignore[arg-type]
        says=f"{SCORES[y].capitalize()} against {variable.label}.",
        title=str(options.get("title") or f"{SCORES[y].capitalize()} against {variable.words}"),
    )


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _choice(id: str, key: str, value: str, known: Mapping[str, object]) -> str:
    if value not in known:
        raise InputError(f"figure {id}: {key} is {value!r}; expected one of {', '.join(known)}.")
    return value


def _other_axes(rows: Sequence[Row], x: str) -> list[str]:
    """Spec keys that vary besides x and the seed. With ε = nα, the rate follows from the other two."""
    hidden = {"seed", x}
    hidden |= {"learning_rate"} if x in ("bare_learning_rate", "temperature", "effective_learning_rate") else set()
    hidden |= {"strength"} if x in ("strength_ratio", "total") else set()
    keys = [key for key in rows[0]["spec"] if key not in hidden]
    return [key for key in keys if len({str(row["spec"][key]) for row in rows}) > 1]
