"""A figure for any study: what its `[figures]` table says, or the score against what varies most."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tacit._util.errors import InputError
from tacit.report.draw import PALETTE
from tacit.report.figure import Drawing, Figure, Source, need
from tacit.report.numbers import minus
from tacit.report.points import Panel, Points, accuracy, curve, points_of
from tacit.report.rows import VARIABLES, Row, Spec
from tacit.report.text import power

SCORES = {
    "best_test_accuracy": "highest test accuracy",
    "final_test_accuracy": "final test accuracy",
    "best_train_accuracy": "highest training accuracy",
    "final_train_accuracy": "final training accuracy",
}
ADDED = ("strength", "relative", "sam_radius", "label_smoothing")  # keys of a run that is not plain
OPTIONS = ("x", "y", "curve", "title")


def own_figure(id: str) -> Figure:
    """y against x, one curve per value of `curve`; what the study leaves out is chosen from what varies."""
    return Figure(id=id, title=id, draw=partial(draw, id=id), options=OPTIONS)


def draw(source: Source, id: str) -> Drawing:
    options = source.options
    varying = [key for key in VARIABLES if len({VARIABLES[key].of(row["spec"]) for row in source.rows}) > 1]
    if "epochs" in varying and all(row["spec"]["epochs"] is None for row in source.rows):
        varying.remove("epochs")  # they follow from the updates and what else varies
    x = _choice(id, "x", options.get("x") or (varying or ["learning_rate"])[0], VARIABLES)
    y = _choice(id, "y", options.get("y") or source.score, SCORES)
    chosen = options.get("curve") or next(iter(_other_axes(source.rows, x)), None)
    if chosen is not None and chosen not in source.rows[0]["spec"]:
        raise InputError(f"figure {id}: curve is {chosen!r}; expected one of {', '.join(source.rows[0]['spec'])}.")
    # Whatever else varies tells curves apart too: runs of different settings are not runs of different seeds.
    axes = list(dict.fromkeys([*([chosen] if chosen else []), *_other_axes(source.rows, x)]))
    told = [words for key in axes for words in _words_of(key, source.rows)]
    points = points_of(source.rows, accuracy(y))
    groups: dict[str, list[int]] = {}
    for index in need(range(len(points.specs)), "finished runs"):
        spec = points.specs[index]
        groups.setdefault(", ".join(filter(None, (words(spec) for words in told))), []).append(index)
    variable = VARIABLES[x]
    numeric = [key for key in axes if all(isinstance(spec[key], (int, float)) for spec in points.specs)]

    def in_order(group: tuple[str, list[int]]) -> tuple[list[float], str]:
        return [float(points.specs[group[1][0]][key]) for key in numeric], group[0]

    def setting(spec: Spec) -> str:
        place = f"{variable.symbol or variable.words} = {_value(variable.of(spec))}"
        return ", ".join(filter(None, (place, *(words(spec) for words in told))))

    curves = tuple(
        curve(
            points, indices, x=variable, label=label or SCORES[y], colour=PALETTE[number % len(PALETTE)],
            best=source.best,
        )
        for number, (label, indices) in enumerate(sorted(groups.items(), key=in_order))
    )  # fmt: skip
    places = points.x(variable)
    # λ = 0 has no place on a logarithmic axis: it gets one of its own, left of the smallest value.
    scale = "log2" if min(places) > 0 else "symlog2" if max(places) > 0 else "linear"
    return Drawing(
        panels=(Panel(curves, variable.label, SCORES[y], x_scale=scale),),  # type: ignore[arg-type]
        says=f"{SCORES[y].capitalize()} against {variable.label}.",
        seen=best_setting(points, setting, SCORES[y]),
        title=str(options.get("title") or f"{SCORES[y].capitalize()} against {variable.words}"),
    )


def best_setting(points: Points, words: Callable[[Spec], str], score: str) -> str:
    """The setting with the highest mean, its interval, and what it has over the best plain one, or over the next best.

    Plain: no penalty, no SAM, no smoothing. All intervals allow for the setting having been chosen as the best.
    """
    layout, everything = points.layout, list(range(len(points.specs)))
    best, height = layout.highest(everything)
    text = f"{score.capitalize()}: {height.scaled(100).interval().text()} % at {words(points.specs[best])}."
    plain = [index for index in everything if not any(points.specs[index].get(key) for key in ADDED)]
    others = plain if best not in plain else [index for index in everything if index != best]
    if not others:
        return text
    other, other_height = layout.highest(others)
    gain = minus(height, other_height if best not in plain else layout.point(other)).scaled(100)
    name = "The next best setting" if best in plain else "The best without it"
    reached = f"{name}, {words(points.specs[other])}, has {100 * other_height.value:.1f} %"
    return f"{text} {reached}: {gain.interval().text()} points less."


def _words_of(key: str, rows: Sequence[Row]) -> list[Callable[[Spec], str]]:
    """What a key says about a curve: `key = value`, and for a table such as `model_arguments` its entries that vary.

    The hashes of `own_code` say nothing to a reader: where a file changed between the runs, its versions are counted.
    """
    values = [row["spec"][key] for row in rows]
    if not any(isinstance(value, Mapping) for value in values):
        symbol = VARIABLES[key].symbol if key in VARIABLES else ""
        if symbol:
            return [lambda spec: f"{symbol} = {_value(spec[key])}"]
        return [lambda spec: f"{key.replace('_', ' ')} = {_short(spec[key])}"]
    tables = [value or {} for value in values]

    def words(name: str) -> Callable[[Spec], str] | None:
        entries = list(dict.fromkeys(_short(table.get(name, "default")) for table in tables))
        if key == "own_code":
            codes = [code for code in entries if code != "default"]
            shown = {code: f"{name}, version {number}" for number, code in enumerate(codes, 1)} if codes[1:] else {}
        else:
            shown = {entry: f"{name} = {entry}" for entry in entries} if entries[1:] else {}
        return (lambda spec: shown.get(_short((spec[key] or {}).get(name, "default")), "")) if shown else None

    found = [words(name) for name in dict.fromkeys(name for table in tables for name in table)]
    return [each for each in found if each is not None]


def _value(value: float) -> str:
    """Whole numbers as they are, others as powers of two where they are some."""
    return f"{value:g}" if value == round(value) else power(value)


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _choice(id: str, key: str, value: str, known: Mapping[str, object]) -> str:
    if value not in known:
        raise InputError(f"figure {id}: {key} is {value!r}; expected one of {', '.join(known)}.")
    return value


def _other_axes(rows: Sequence[Row], x: str) -> list[str]:
    """Spec keys that vary besides x and the seed. What follows from x and the others is left out, such as ε = nα."""
    hidden = {"seed", x}
    hidden |= {"learning_rate"} if x in ("bare_learning_rate", "temperature", "effective_learning_rate") else set()
    hidden |= {"strength"} if x in ("strength_ratio", "total") else set()
    hidden |= {"updates"} if x == "epochs" else set()
    keys = [key for key in rows[0]["spec"] if key not in hidden]
    return [key for key in keys if len({str(row["spec"][key]) for row in rows}) > 1]
