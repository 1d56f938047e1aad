"""What a built site would load from other addresses: there must be nothing, a reader may have no network."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

# Elements and attributes that make a browser load something without a click.
LOADED = {
    ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src"), ("embed", "src"),
    ("object", "data"), ("img", "srcset"), ("source", "srcset"), ("image", "href"), ("use", "href"),
}  # fmt: skip
LINKS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "manifest"}
_ADDRESS = re.compile(r"^(?:https?:)?//")
_IN_CSS = re.compile(r"(?:url\(\s*['\"]?|@import\s+['\"])((?:https?:)?//[^'\")\s]+)")


def foreign_addresses(folder: Path) -> list[str]:
    """`FILE: ADDRESS` for everything that a page or a style sheet of the folder loads from another address."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".css":
            addresses = _IN_CSS.findall(path.read_text(encoding="utf-8"))
        elif path.suffix == ".html":
            reader = _Reader()
            reader.feed(path.read_text(encoding="utf-8"))
            addresses = reader.addresses
        else:
            continue
        found += [f"{path.relative_to(folder)}: {address}" for address in addresses]
    return found


class _Reader(HTMLParser):
    """Collects the addresses that a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._in_style = tag == "style"
        loaded = [value for name, value in given.items() if (tag, name) in LOADED]
        if tag == "link" and LINKS & set(given.get("rel", "").split()):
            loaded.append(given.get("href", ""))
        self.addresses += [value for value in loaded if _ADDRESS.match(value.strip())]
        self.addresses += _IN_CSS.findall(given.get("style", ""))

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.addresses += _IN_CSS.findall(data)
