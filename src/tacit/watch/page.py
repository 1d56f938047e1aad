"""The one page of `tacit watch`, and what a browser may do on it."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache

from tacit._util.page_files import page_text
from tacit.report.style import PAGE_COLOURS, SHAPES


@cache
def watch_page() -> str:
    """The page as one HTML text, with the report's colours and shapes of figures."""
    page = page_text(__package__, "watch.html")
    colours = {"/* light */": PAGE_COLOURS[0], "/* dark */": PAGE_COLOURS[1], "/* shapes */": SHAPES}
    for place, text in colours.items():
        page = page.replace(place, text)
    return page


def content_security_policy(page: str) -> str:
    """The page's own script and style and questions to this server are allowed; everything else is not.

    A study's name or an error text that was taken for HTML would still run nothing.
    """

    def hashes(element: str) -> str:
        inside = re.findall(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in inside]
        return " ".join(f"'sha256-{digest}'" for digest in digests)

    return (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
