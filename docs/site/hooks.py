"""What MkDocs calls while it builds the site: pages made of code and of stored results, formulas, links.

Formulas of a page stand in blocks named `math`, which GitHub shows too. They become MathML here: browsers draw it
themselves, so no script and no font has to be loaded, and a formula can be copied.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import command_line
import gallery
import latex2mathml.converter
from links import PAGES, ROOT, site_links
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from offline import foreign_addresses

from tacit.explore import collapse_page, explore_page
from tacit.report import read_parts

DOCS = ROOT / "docs"
COLLAPSE = DOCS / "results" / "fashion-mnist-small"  # the rows of the page of the collapse


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    fence = {"name": "math", "class": "math", "format": _formula}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what is made: tutorials with their output, the command line, the gallery, the explorable pages."""
    made: dict[str, str | bytes] = {
        "reference/command-line.md": command_line.page(),
        "gallery.md": gallery.page(),
        "explore/sgd.html": explore_page(),
        "explore/collapse.html": collapse_page([row for part in read_parts([COLLAPSE]) for row in part.rows]),
    }
    for document, page in PAGES.items():
        if document != "README.md":  # the site has a first page of its own
            made[page] = (ROOT / document).read_text(encoding="utf-8")
    for script in sorted((DOCS / "tutorials").glob("*.py")):
        made |= _tutorial(script)
    for uri, content in made.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    documents = {made: document for document, made in PAGES.items() if made != "index.md"}
    uri = page.file.src_uri
    return site_links(markdown, document=documents.get(uri, f"docs/{uri}"), page=uri, repo_url=config.repo_url)


def on_post_build(config: MkDocsConfig) -> None:
    found = foreign_addresses(Path(config.site_dir))
    if found:
        raise PluginError("the site would load from other addresses:\n" + "\n".join(found))


def _tutorial(script: Path) -> dict[str, str | bytes]:
    """The page of a tutorial and its pictures, by their place on the site. It runs in an own process, on one core.

    What it made is kept in build/tutorials, and used again until the script or the package changes.
    """
    sources = [script, Path(__file__).with_name("tutorial.py"), *sorted((ROOT / "src").rglob("*.py"))]
    key = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    folder = ROOT / "build" / "tutorials" / f"{script.stem}-{key}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
            command = [sys.executable, str(Path(__file__).with_name("tutorial.py")), str(script), f"{unfinished}/made"]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise PluginError(f"{script.name} failed:\n{done.stderr[-4000:]}")
            Path(unfinished, "made").rename(folder)
    made = {f"tutorials/{path.name}": path.read_bytes() for path in folder.iterdir()}
    return {uri: content.decode() if uri.endswith(".md") else content for uri, content in made.items()}


def _formula(source: str, language: str, css_class: str, options: Any, md: Any, **_: Any) -> str:
    """A block of LaTeX as MathML; the theme must not mistake it for code."""
    made = latex2mathml.converter.convert(re.sub(r"\s+", " ", source).strip(), display="block")
    return f'<div class="{css_class}" tabindex="0">{made}</div>'
