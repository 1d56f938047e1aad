"""Panels as SVG, written directly: small, in the page's own font and colours, light and dark.

Points are runs, bars and bands are intervals, one colour has one meaning. Colours are CSS variables (`stylesheet`), so
that a page or a file changes them in one place.
"""

from __future__ import annotations

import html
import itertools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tacit._util.files import write_atomically
from tacit.report.figure import FigureResult
from tacit.report.points import Curve, Panel, Point
from tacit.report.style import PAGE_COLOURS, SHAPES
from tacit.report.text import exponent_text, power, readable

# Light and dark. Batch sizes and inner steps run through a scale, larger is lighter; the rest have names.
COLOURS = {
    "rate": ("#1f6fb4", "#6cb2f0"), "strength": ("#c8620a", "#f6a04d"), "baseline": ("#2a8a3a", "#6fcf7f"),
    "training": ("#6f6f6f", "#a8a8a8"),
    "order_shuffled": ("#1f6fb4", "#6cb2f0"), "order_mirrored": ("#c2347d", "#f07fb6"),
    "order_shuffle_once": ("#0f8f78", "#4fd3bb"), "order_fixed": ("#6f6f6f", "#a8a8a8"),
    "order_with_replacement": ("#9a7000", "#dcb44a"),
}  # fmt: skip
SCALES = {
    "batch": (("#3b2f80", "#9d92ec"), ("#1f6fb4", "#6cb2f0"), ("#0f8f78", "#4fd3bb"), ("#6a9a1f", "#a9d65c"),
              ("#9a7000", "#dcb44a"), ("#c8620a", "#f6a04d")),
    "steps": (("#1f6fb4", "#6cb2f0"), ("#6d3aa0", "#b98cf0"), ("#b02a70", "#f07fb6"), ("#cf4f2a", "#f5906f"),
              ("#9a7000", "#dcb44a")),
}  # fmt: skip
SCALE_STARTS = {"batch": 8, "steps": 1}
PALETTE = tuple(f"palette{index}" for index in range(8))
WIDTH, HEIGHT = 460, 290
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 26, 46
MOST_BANDS = 2  # more bands cover each other: bars then
MOST_TICKS = 8


def colour(name: str) -> tuple[str, str]:
    """The light and the dark colour of a curve's name: `rate`, `batch16`, `steps4`, `palette2`."""
    found = re.fullmatch(r"(batch|steps|palette)(\d+)", name)
    if found is None:
        return COLOURS.get(name, COLOURS["training"])
    kind, number = found[1], int(found[2])
    if kind == "palette":
        return [*COLOURS.values()][number % len(COLOURS)]
    step = round(math.log2(number / SCALE_STARTS[kind])) if number else 0
    return SCALES[kind][step % len(SCALES[kind])]


def stylesheet(names: Iterable[str]) -> tuple[str, str]:
    """CSS of curves' colours, for light and for dark."""
    rules = [(name, *colour(name)) for name in sorted(set(names))]
    light, dark = ("".join(f".{name}{{--c:{values[index]}}}" for name, *values in rules) for index in (0, 1))
    return light, dark


# -- axes -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Axis:
    """Values to pixels, and ticks with their words."""

    place: Callable[[float], float]  # a value on an evenly spaced scale
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]  # on that scale
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.pixel(self.place(value))

    def pixel(self, placed: float) -> float:
        return self.start + (placed - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start)


def x_axis(panel: Panel) -> Axis:
    values = sorted({point.x for curve in panel.curves for point in curve.points})
    if panel.x_scale == "linear":
        low, high = min(values), max(values)
        return Axis(float, low, high, round_ticks(low, high), LEFT + 8, WIDTH - RIGHT - 8)
    positive = [value for value in values if value > 0]
    zero = math.log2(min(positive)) - 1.5 if positive else 0.0  # λ = 0 stands apart, left of the smallest value

    def place(value: float) -> float:
        return math.log2(value) if value > 0 else zero

    exponents = [place(value) for value in positive]
    low, high = min(place(value) for value in values), max(exponents, default=1.0)
    if all(abs(e - round(e)) < 1e-9 for e in exponents):
        step = max(1, math.ceil((high - min(exponents, default=low) + 1) / MOST_TICKS))
        last = round(high)
        ticks = [(float(k), exponent_text(k)) for k in range(round(min(exponents)), last + 1) if (k - last) % step == 0]
    elif high - min(exponents) >= 3:  # sums such as λ + ε lie between powers of two
        ticks = [(float(k), exponent_text(k)) for k in range(math.ceil(min(exponents)), math.floor(high) + 1)]
    else:
        step = math.ceil(len(positive) / MOST_TICKS)
        ticks = [(place(value), power(value)) for value in positive[::step]]
    if zero == low and 0 in values:
        ticks = [(zero, "0"), *ticks]
    return Axis(place, low, high, tuple(ticks), LEFT + 14, WIDTH - RIGHT - 14)


def y_axis(panel: Panel) -> tuple[Axis, float]:
    """The axis, and the value below which points are not shown but counted: they would flatten what is judged."""
    factor = 100.0 if panel.y_scale == "percent" else 1.0
    points = [point for curve in panel.curves for point in curve.points]
    heights = sorted(point.summary.value for point in points if math.isfinite(point.summary.value))
    shown = [*heights]
    for curve in panel.curves:
        shown += [value for point in curve.points for value, _ in point.runs]
        shown += [value for _, values in curve.traces for value in values]
        ends = [end for point in curve.points for end in (point.summary.low, point.summary.high)]
        shown += [end for end in ends if math.isfinite(end)]
    floor = -math.inf
    if panel.y_scale == "percent" and heights and not any(curve.traces for curve in panel.curves):
        top, middle = heights[-1], heights[(len(heights) - 1) // 2]
        floor = min(top - max(3 * (top - middle), 0.02), middle)
    kept = [value for value in shown if value >= floor] or [0.0]
    low, high = factor * min(kept), factor * max(kept)
    margin = 0.06 * (high - low) or 1.0
    low, high = low - margin, high + margin
    if panel.y_scale == "log2":
        step = max(1, math.ceil((high - low) / MOST_TICKS))
        exponents = [k for k in range(math.ceil(low), math.floor(high) + 1) if k % step == 0]
        ticks = tuple((float(k), exponent_text(k)) for k in exponents) or round_ticks(low, high)
    else:
        ticks = round_ticks(low, high)
    return Axis(lambda value: factor * value, low, high, ticks, HEIGHT - BOTTOM, TOP), floor


def round_ticks(low: float, high: float) -> tuple[tuple[float, str], ...]:
    span = (high - low) or 1.0
    raw = span / 5
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw * 0.999)
    first = math.ceil(low / step)
    return tuple((k * step, f"{k * step:g}") for k in range(first, math.floor(high / step + 1e-9) + 1))


# -- a panel ----------------------------------------------------------------------------------------------------------
def panel_svg(figure: FigureResult, index: int, *, key: str = "") -> str:
    """One panel as an SVG element for a page. Each curve is a group whose id begins with key, panel and number."""
    label = html.escape(f"{figure.name}: {figure.title}")
    inside = "".join(draw_panel(figure.panels[index], prefix=f"{key or figure.id}-p{index}"))
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{inside}</svg>'


def thumbnail(figure: FigureResult) -> str:
    """The first panel's lines alone, small."""
    panel = figure.panels[0]
    x, (y, floor) = x_axis(panel), y_axis(panel)
    lines = "".join(f'<g class="{class_name(curve)}">{line(curve, x, y, floor)}</g>' for curve in panel.curves)
    return (
        f'<svg viewBox="{LEFT - 6} {TOP - 6} {WIDTH - LEFT} {HEIGHT - TOP - BOTTOM + 12}" preserveAspectRatio="none" '
        f'aria-hidden="true">{lines}</svg>'
    )


def draw_panel(panel: Panel, *, prefix: str) -> list[str]:
    x, (y, floor) = x_axis(panel), y_axis(panel)
    parts = []
    for placed, words in y.ticks:
        at = y.pixel(placed)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(svg_text(LEFT - 6, at + 4, words, "end"))
    for placed, words in x.ticks:
        parts.append(svg_text(x.pixel(placed), HEIGHT - BOTTOM + 18, words))
    unit = " (%)" if panel.y_scale == "percent" else ""
    parts.append(svg_text(4, 12, f"{panel.y_label}{unit}", "start"))
    parts.append(svg_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, panel.x_label))
    parts += _marks(panel, x)
    bands = sum(curve.style != "level" for curve in panel.curves) <= MOST_BANDS
    for number, curve in enumerate(panel.curves):
        shift = 0.0 if bands else 2.5 * (number - (len(panel.curves) - 1) / 2)  # bars beside each other
        inside = "".join(_curve(curve, panel, x, y, floor, band=bands, shift=shift))
        parts.append(f'<g id="{html.escape(prefix)}-c{number}-" class="{class_name(curve)}">{inside}</g>')
    points = [point for curve in panel.curves for point in curve.points]
    below = sum(point.summary.value < floor for point in points)
    lost = sum(value < floor for point in points for value, _ in point.runs if point.summary.value >= floor)
    told = [f"{below} point{'s' * (below > 1)}"] * bool(below) + [f"{lost} run{'s' * (lost > 1)}"] * bool(lost)
    if told:
        parts.append(svg_text(WIDTH - RIGHT, 12, f"↓ {' and '.join(told)} below", "end"))
    return parts


def class_name(curve: Curve) -> str:
    return re.sub(r"[^\w-]", "", curve.colour) or "training"


def svg_text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(readable(words))}</text>'


def _marks(panel: Panel, x: Axis) -> list[str]:
    """Places of the paper on the x axis, with their words above; those outside the axis are left out."""
    parts = []
    for row, (value, words) in enumerate(panel.marks):
        if x.low - 1e-9 <= x.place(value) <= x.high + 1e-9:
            at = x(value)
            anchor = "start" if at < WIDTH * 0.6 else "end"
            parts.append(f'<path class="mark" d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
            words = f"{words} {power(value)}"
            parts.append(
                svg_text(at + (4 if anchor == "start" else -4), HEIGHT - BOTTOM - 20 - 13 * row, words, anchor)
            )
    return parts


def line(curve: Curve, x: Axis, y: Axis, floor: float) -> str:
    """The line through a curve's points: pale where points do not count, to the bottom where they fall below."""
    style = {"line": "", "dashed": " dashed", "level": " level"}[curve.style]
    places = [(x(p.x), y(p.summary.value) if p.summary.value >= floor else y.start, p) for p in curve.points]
    drawn = ""
    if any(not point.counts for point in curve.points):
        drawn = f'<path class="line{style} pale" d="{_path(places)}"/>'
    runs = [list(part) for counts, part in itertools.groupby(places, key=lambda place: place[2].counts) if counts]
    return drawn + "".join(f'<path class="line{style}" d="{_path(part)}"/>' for part in runs if len(part) > 1)


def _path(places: Sequence[tuple[float, float, Point]] | Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{place[0]:.1f} {place[1]:.1f}" for place in places)


def _curve(curve: Curve, panel: Panel, x: Axis, y: Axis, floor: float, *, band: bool, shift: float) -> Iterable[str]:
    for epochs, values in curve.traces:
        yield f'<path class="line thin" d="{_path([(x(e), y(v)) for e, v in zip(epochs, values, strict=True)])}"/>'
    known = [p for p in curve.points if math.isfinite(p.summary.low) and p.summary.value >= floor]
    if curve.style != "level":
        clipped = [(x(p.x), y(max(p.summary.low, floor)), y(p.summary.high)) for p in known]
        if band and len(known) > 1:
            around = [(at, high) for at, _, high in clipped] + [(at, low) for at, low, _ in clipped[::-1]]
            yield f'<path class="band" d="{_path(around)}Z"/>'
        elif not band:
            bars = "".join(f"M{at + shift:.1f} {low:.1f}V{high:.1f}" for at, low, high in clipped)
            yield f'<path class="bar" d="{bars}"/>'
    yield line(curve, x, y, floor)
    for point in curve.points:
        dots = "".join(
            f'<circle class="{"run" if kept else "hollow"}" cx="{x(point.x) + shift:.1f}" cy="{y(value):.1f}" r="2.2"/>'
            for value, kept in point.runs
            if value >= floor
        )
        if dots:
            pale = "" if point.counts else ' class="pale"'
            yield f"<g{pale}>{dots}<title>{html.escape(_told(point, panel))}</title></g>"


def _told(point: Point, panel: Panel) -> str:
    """A point in words, for whoever rests the pointer on it."""
    factor = 100.0 if panel.y_scale == "percent" else 1.0
    height = "2^" * (panel.y_scale == "log2") + f"{factor * point.summary.value:.3g}"
    return f"{panel.x_label} {power(point.x)}: {height}, {len(point.runs)} runs"


# -- files ------------------------------------------------------------------------------------------------------------
def write_figure(figure: FigureResult, path: Path) -> None:
    """The whole figure as one SVG file, panels side by side, with a legend, in light or dark as the reader has it."""
    shown = {curve.label: curve for panel in figure.panels for curve in panel.curves}
    light, dark = stylesheet(class_name(curve) for curve in shown.values())
    title = html.escape(f"{figure.name} · {figure.title}")
    columns = 2 * len(figure.panels)
    rows = math.ceil(len(shown) / columns)
    wide, high = WIDTH * len(figure.panels), HEIGHT + 30 + 20 * rows
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}">',
        f"<style>svg{{{PAGE_COLOURS[0]};font-family:system-ui,sans-serif}}{light}{SHAPES}"
        f"@media (prefers-color-scheme:dark){{svg{{{PAGE_COLOURS[1]}}}{dark}}}</style>",
        f'<rect width="{wide}" height="{high}" style="fill:var(--paper)"/>',
        f'<text x="8" y="18" style="font-size:14px;fill:var(--ink)">{title}</text>',
    ]
    for index, panel in enumerate(figure.panels):
        inside = "".join(draw_panel(panel, prefix=f"{figure.id}-p{index}"))
        parts.append(f'<g transform="translate({WIDTH * index} 28)">{inside}</g>')
    for number, curve in enumerate(shown.values()):
        x, y = 16 + WIDTH / 2 * (number % columns), HEIGHT + 40 + 20 * (number // columns)
        style = "" if curve.style == "line" else f" {curve.style}"
        parts.append(f'<g class="{class_name(curve)}"><path class="line{style}" d="M{x:g} {y}h26"/>')
        parts.append(f"{svg_text(x + 34, y + 4, curve.label, 'start')}</g>")
    write_atomically(path, "".join([*parts, "</svg>\n"]))
