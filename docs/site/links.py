"""Where a link of a document leads on the site, also one to a file of the repository that has no page there."""

from __future__ import annotations

import os.path
import re
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
# Documents at the root of the repository, and the pages made of them.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
MADE_IN_THE_BUILD = frozenset(
    {"docs/reference/command-line.md", "docs/explore/sgd.html", "docs/explore/collapse.html"}
)  # links to other pages that are made name their source: a tutorial its script, the gallery a folder of results

_LINK = re.compile(r"(?P<code>```.*?```|`[^`\n]+`)|\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)", re.DOTALL)


class BrokenLinkError(Exception):
    """A link to something that is not in the repository."""


def site_links(text: str, *, document: str, page: str, repo_url: str | None = None) -> str:
    """The text with the links of a document of the repository as links of a page of the site.

    `document` is the path of the document in the repository, `page` that of its page on the site. Links to other sites
    and inside the page stay; code is not touched. A file or folder without a page becomes a link to `repo_url`, or,
    where the project has none, its text without a link.
    """

    def one(found: re.Match[str]) -> str:
        if found["code"] or re.match(r"https?:|mailto:|#", found["target"]):
            return found[0]
        path, _, anchor = found["target"].partition("#")
        wanted = _in_repository(document, path)
        target = _page_of(wanted)
        if target is None:
            return f"[{found['text']}]({repo_url.rstrip('/')}/blob/main/{wanted})" if repo_url else found["text"]
        relative = os.path.relpath(target.partition("#")[0], PurePosixPath(page).parent)
        anchor = anchor or target.partition("#")[2]
        return f"[{found['text']}]({relative}{'#' if anchor else ''}{anchor})"

    return _LINK.sub(one, text)


def _in_repository(document: str, target: str) -> str:
    path = os.path.normpath(PurePosixPath(document).parent / target)
    picture = re.fullmatch(r"docs/(tutorials/[\w-]+)-\d+\.svg", path)  # drawn by the script when the site is built
    if picture and (ROOT / "docs" / f"{picture[1].replace('-', '_')}.py").exists():
        return path
    if path in MADE_IN_THE_BUILD or (ROOT / path).exists():
        return path
    raise BrokenLinkError(f"{document} links to {target}; expected a file or a folder of the repository.")


def _page_of(path: str) -> str | None:
    """The page, picture or anchor of the site that shows a path of the repository; None where none does."""
    if path in PAGES:
        return PAGES[path]
    inside = path.removeprefix("docs/")
    if inside == path:
        return None
    results = re.fullmatch(r"results/([\w-]+)", inside)
    if results:
        return f"gallery.md#{results[1]}"
    tutorial = re.fullmatch(r"(tutorials/[\w-]+)\.py", inside)
    if tutorial:
        return f"{tutorial[1].replace('_', '-')}.md"
    return inside if PurePosixPath(inside).suffix in (".md", ".png", ".svg", ".html") else None
