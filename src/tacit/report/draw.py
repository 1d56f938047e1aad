"""Figures as SVG and PNG, by matplotlib: points are runs, bands are intervals, one colour has one meaning."""

from __future__ import annotations

import html
import io
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit._files import write_atomically
from tacit.report.figure import FigureResult
from tacit.report.points import Curve, Panel
from tacit.report.text import exponent_text, power

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    "rate": "#1f6fb4", "strength": "#d9720b", "baseline": "#2a8a3a", "training": "#6f6f6f",
    # Batch sizes: dark to light greens and blues; inner steps: dark to light reds. Larger is lighter in both.
    "batch4": "#30123b", "batch8": "#3b2f80", "batch16": "#1f6fb4", "batch32": "#17a589", "batch64": "#8bc34a",
    "batch128": "#c9b400", "batch256": "#e07b00",
    "steps1": "#1f6fb4", "steps2": "#7b3294", "steps4": "#c2347d", "steps8": "#f0754e", "steps16": "#f3b23c",
    "order_shuffled": "#1f6fb4", "order_mirrored": "#c2347d", "order_shuffle_once": "#17a589", "order_fixed": "#6f6f6f",
    "order_with_replacement": "#b8860b",
}  # fmt: skip
# Figures outside the paper have curves of no fixed meaning.
PALETTE = ("#1f6fb4", "#d9720b", "#2a8a3a", "#7b3294", "#c2347d", "#17a589", "#b8860b", "#6f6f6f")
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: small, searchable, in the page's own font
    "svg.hashsalt": "tacit",  # the same figure is the same bytes
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "figure.constrained_layout.use": True,
}
PANEL_INCHES = (4.8, 3.4)
MOST_TICKS = 8


def colour_of(curve: Curve) -> str:
    return COLOURS.get(curve.colour, curve.colour if curve.colour.startswith("#") else "#444444")


def panel_svg(figure: FigureResult, index: int) -> str:
    """One panel as an SVG element for a page: no header, no metadata, no address, classes to switch curves by."""
    with _canvas(1) as (drawing, axes):
        draw_panel(axes[0], figure.panels[index], prefix=f"{figure.id}-p{index}")
        return _inline(_saved(drawing, "svg").decode(), label=f"Figure {figure.id}: {figure.title}")


def write_figure(figure: FigureResult, path: Path) -> None:
    """The whole figure as one file with a legend; the suffix says the format (.svg or .png)."""
    with _canvas(len(figure.panels)) as (drawing, axes):
        for axis, panel in zip(axes, figure.panels, strict=True):
            draw_panel(axis, panel, prefix=figure.id)
        shown = {curve.label: curve for panel in figure.panels for curve in panel.curves}
        handles = [_handle(curve) for curve in shown.values()]
        columns = min(3 if len(figure.panels) > 1 else 2, len(handles))  # more would be cut off at a panel's edges
        drawing.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
        drawing.suptitle(f"{figure.name} · {figure.title}", fontsize=11)
        write_atomically(path, _saved(drawing, path.suffix.removeprefix(".")))


# -- one panel --------------------------------------------------------------------------------------------------------
def draw_panel(axis: Axes, panel: Panel, *, prefix: str) -> None:
    factor = 100.0 if panel.y_scale == "percent" else 1.0
    for number, curve in enumerate(panel.curves):
        _draw_curve(axis, curve, panel, factor=factor, id=f"{prefix}-c{number}")
    axis.set_xlabel(panel.x_label)
    axis.set_ylabel(f"{panel.y_label} (%)" if panel.y_scale == "percent" else panel.y_label)
    if panel.title:
        axis.set_title(panel.title, fontsize=10)
    values = sorted({point.x for curve in panel.curves for point in curve.points})
    if panel.x_scale == "log2":
        _power_ticks(axis.xaxis, values)
    if panel.y_scale == "log2":
        low, high = axis.get_ylim()
        step = max(1, math.ceil((high - low) / MOST_TICKS))
        exponents = [k for k in range(math.ceil(low), math.floor(high) + 1) if k % step == 0]
        axis.set_yticks(exponents, [exponent_text(k) for k in exponents])
    if panel.y_scale == "percent":
        _leave_out_lost(axis, panel)


def _leave_out_lost(axis: Axes, panel: Panel) -> None:
    """Runs that diverged before the first look count as 0 %: they are told of, and do not flatten all the others."""
    points = [point for curve in panel.curves for point in curve.points]
    lost = sum(value == 0 for point in points for value, _ in point.runs)
    seen = [value for point in points for value, _ in point.runs if value > 0]
    if not lost or not seen or min(seen) < (max(seen) - min(seen)):
        return  # nobody lost, or the axis has to go down there anyway
    whole = [point.summary for point in points if point.runs and all(value > 0 for value, _ in point.runs)]
    bounds = [*seen, *[end for summary in whole for end in (summary.low, summary.high) if not math.isnan(end)]]
    low, high = 100 * max(0.0, min(bounds)), 100 * min(1.0, max(bounds))
    margin = 0.05 * (high - low) or 1.0
    axis.set_ylim(low - margin, high + margin)
    text = f"{lost} run{'s' if lost > 1 else ''} diverged at once: 0 %, below"
    axis.text(0.02, 0.03, text, transform=axis.transAxes, fontsize=8, color="#555555")


def _draw_curve(axis: Axes, curve: Curve, panel: Panel, *, factor: float, id: str) -> None:
    if not curve.points:
        return
    place = np.log2 if panel.x_scale == "log2" else np.asarray
    x = place(np.array(curve.x, dtype=float))
    y, low, high = (
        factor * np.array([getattr(point.summary, part) for point in curve.points]) for part in ("value", "low", "high")
    )
    colour = colour_of(curve)
    if curve.style == "level":
        axis.plot(x, y, ":", color=colour, linewidth=1.6, gid=f"{id}-line")
        return
    for index, (epochs, values) in enumerate(curve.traces):
        axis.plot(epochs, factor * np.array(values), color=colour, linewidth=0.6, alpha=0.35, gid=f"{id}-t{index}")
    if panel.y_scale == "percent":  # an interval may reach past what a share can be
        low, high = np.clip(low, 0, 100), np.clip(high, 0, 100)
    if not np.isnan(low).any():
        axis.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0, gid=f"{id}-band")
    dash = "--" if curve.style == "dashed" else "-"
    counts = np.array([point.counts for point in curve.points])
    axis.plot(x, y, dash, color=colour, linewidth=1.6, alpha=1.0 if counts.all() else 0.3, gid=f"{id}-line")
    if not counts.all():
        axis.plot(x, np.where(counts, y, np.nan), dash, color=colour, linewidth=1.6, gid=f"{id}-counted")
    for kept, face in ((True, colour), (False, "none")):
        for counted, alpha in ((True, 0.75), (False, 0.25)):
            runs = [
                (place(np.array(point.x)), factor * value)
                for point in curve.points
                for value, is_kept in point.runs
                if is_kept == kept and point.counts == counted
            ]
            if runs:
                across, up = np.array(runs).T
                marks = axis.scatter(across, up, s=13, facecolors=face, edgecolors=colour, alpha=alpha)
                marks.set(linewidth=0.8, gid=f"{id}-runs{int(kept)}{int(counted)}")


def _power_ticks(axis: Any, values: list[float]) -> None:
    """Ticks at powers of two, or at the values themselves when they are none (epochs)."""
    exponents = np.log2(np.array(values))
    if np.allclose(exponents, np.round(exponents)):
        low, high = round(exponents.min()), round(exponents.max())
        step = max(1, math.ceil((high - low + 1) / MOST_TICKS))
        ticks = [k for k in range(low, high + 1) if (k - high) % step == 0]
        axis.set_ticks(ticks, labels=[exponent_text(k) for k in ticks])
    elif len(values) <= MOST_TICKS:
        axis.set_ticks(exponents, labels=[power(value) for value in values])
    else:
        low, high = math.ceil(exponents.min()), math.floor(exponents.max())
        axis.set_ticks(range(low, high + 1), labels=[exponent_text(k) for k in range(low, high + 1)])


def _handle(curve: Curve) -> Any:
    from matplotlib.lines import Line2D

    dashes: dict[str, Any] = {"line": "-", "dashed": "--", "level": ":"}
    dash = dashes[curve.style]
    return Line2D([], [], color=colour_of(curve), linestyle=dash, linewidth=1.8, label=curve.label)


# -- files ------------------------------------------------------------------------------------------------------------
class _canvas:  # noqa: N801 - used as a function
    """A figure with the house's style that is closed afterwards; no window, no global state kept."""

    def __init__(self, panels: int) -> None:
        self.panels = panels

    def __enter__(self) -> tuple[Any, list[Axes]]:
        import matplotlib
        from matplotlib.figure import Figure as Canvas

        self.style = matplotlib.rc_context(STYLE)
        self.style.__enter__()
        width, height = PANEL_INCHES
        canvas = Canvas(figsize=(width * self.panels, height + (0.6 if self.panels > 1 else 0.0)))
        return canvas, [canvas.add_subplot(1, self.panels, index + 1) for index in range(self.panels)]

    def __exit__(self, *error: object) -> None:
        self.style.__exit__(None, None, None)


def _saved(drawing: Any, kind: str) -> bytes:
    buffer = io.BytesIO()
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    drawing.savefig(buffer, format=kind, dpi=150, metadata=metadata)
    return buffer.getvalue()


def _inline(svg: str, *, label: str) -> str:
    """The bare element: HTML needs no namespaces, and a page that may be mailed should name no address."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'\sxmlns(:xlink)?="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = re.sub(
        r'\sid="(?:figure|axes|patch|line2d|text|matplotlib\.axis|xtick|ytick|PathCollection|FillBetween\w*|legend)_\d+"',
        "",
        svg,
    )
    said = html.escape(label)  # titles and ids come from study files
    svg = re.sub(
        r'<svg[^>]*?viewBox="([^"]*)"[^>]*>',
        lambda found: f'<svg viewBox="{found[1]}" role="img" aria-label="{said}">',
        svg,
        count=1,
    )
    return re.sub(r"\s*\n\s*", "\n", svg).strip()
