"""CSS that pages and files with figures share: the shapes inside an SVG, and a page's colours, light and dark."""

from __future__ import annotations

SHAPES = (
    "svg text{font-size:11px;fill:var(--soft)}svg .grid{stroke:var(--line);stroke-width:1}"
    "svg .line{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round}svg .dashed{stroke-dasharray:6 4}"
    "svg .level{stroke-dasharray:2 4;stroke-linecap:round}svg .pale{opacity:.3}svg .thin{stroke-width:.8;opacity:.4}"
    "svg .band{fill:var(--c);opacity:.16}svg .bar{stroke:var(--c);stroke-width:1.4}"
    "svg .run{fill:var(--c);opacity:.55}svg .hollow{fill:none;stroke:var(--c);stroke-width:.9;opacity:.55}"
    "svg .mark{stroke:var(--soft);stroke-dasharray:1 3;stroke-width:1.2}"
)
PAGE_COLOURS = ("--ink:#1d2129;--soft:#59616e;--line:#dfe3e8;--paper:#fff",
                "--ink:#e8eaee;--soft:#a5adba;--line:#343a44;--paper:#15181d")  # fmt: skip
