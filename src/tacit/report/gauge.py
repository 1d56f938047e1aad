"""The number that decides, on a line: where a claim agrees, the interval, and the paper's own number."""

from __future__ import annotations

import html
import math

from tacit.report.draw import svg_text
from tacit.report.verdict import EQUIVALENCE_LEVEL, Criterion

WIDTH = 300.0


def gauge(criterion: Criterion) -> str:
    """A criterion on a line: where it agrees, its interval, and the paper's own number."""
    found = criterion.number.interval()
    ends = [end for end in (found.low, found.high, found.value) if math.isfinite(end)]
    bounds = [-criterion.bound, criterion.bound] if criterion.kind == "within" else [criterion.bound]
    shown = [*ends, *bounds, *([criterion.paper] if criterion.paper is not None else [])]
    low, high = min(shown), max(shown)
    pad = 0.12 * (high - low) or 1.0
    low, high = low - pad, high + pad

    def at(value: float) -> float:
        return 6 + (min(max(value, low), high) - low) / (high - low) * (WIDTH - 12)

    inside = {"within": (bounds[0], bounds[-1]), "above": (bounds[0], high), "below": (low, bounds[0])}[criterion.kind]
    left, right = at(inside[0]), at(inside[1])
    parts = [f'<rect class="zone" x="{left:.1f}" y="4" width="{right - left:.1f}" height="18"/>']
    if right - left > 60:
        parts.append(svg_text((left + right) / 2, 35, "agrees"))
    for bound in bounds:
        parts.append(f'<path class="grid" d="M{at(bound):.1f} 2V24"/>')
        parts.append(svg_text(at(bound), 35, f"{bound:g}".replace("-", "−")))
    if math.isfinite(found.value):
        if not math.isnan(found.low):
            parts.append(f'<path class="reach" d="M{at(found.low):.1f} 13H{at(found.high):.1f}"/>')
            if criterion.kind == "within":
                narrow = criterion.number.interval(EQUIVALENCE_LEVEL)
                parts.append(f'<path class="reach thick" d="M{at(narrow.low):.1f} 13H{at(narrow.high):.1f}"/>')
        parts.append(f'<circle class="value" cx="{at(found.value):.1f}" cy="13" r="4.5"/>')
    if criterion.paper is not None:
        parts.append(f'<path class="theirs" d="M{at(criterion.paper):.1f} 1l4 -5h-8Z" transform="translate(0 5)"/>')
        anchor = "start" if at(criterion.paper) < WIDTH * 0.7 else "end"
        parts.append(svg_text(at(criterion.paper) + (7 if anchor == "start" else -7), 0, "paper", anchor))
    label = html.escape(f"{criterion.text}; agrees if {criterion.rule}")
    inner = "".join(parts)
    return f'<svg class="gauge" viewBox="0 -10 {WIDTH:g} 48" role="img" aria-label="{label}">{inner}</svg>'
