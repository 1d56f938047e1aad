"""What the site is made of agrees with the repository. Its build (`make docs`) checks the rest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from site_modules import DOCS, ROOT, site_module

CONFIGURATION = (ROOT / "mkdocs.yml").read_text()
LINKS = site_module("links")
DOCUMENTS = [
    *[name for name in LINKS.PAGES if name != "README.md"],
    *[str(path.relative_to(ROOT)) for path in sorted(DOCS.rglob("*.md"))],
]


def page_of(document: str) -> str:
    return LINKS.PAGES.get(document, document.removeprefix("docs/"))


# -- pages --------------------------------------------------------------------------------------------------------
def test_every_page_is_in_the_navigation() -> None:
    navigation = CONFIGURATION[CONFIGURATION.index("\nnav:") :]
    named = set(re.findall(r"[\w/-]+\.md", navigation))
    tutorials = {f"tutorials/{path.stem.replace('_', '-')}.md" for path in (DOCS / "tutorials").glob("*.py")}
    made = {"gallery.md", "reference/command-line.md", *tutorials}
    assert named == {page_of(document) for document in DOCUMENTS} | made


def test_the_site_loads_nothing_from_other_addresses() -> None:
    settings = CONFIGURATION[: CONFIGURATION.index("\nnav:")]
    assert "font: false" in settings
    assert re.findall(r"https?://", settings) == []
    for asset in (DOCS / "assets").iterdir():
        assert re.findall(r"https?://(?!www\.w3\.org/)", asset.read_text()) == [], asset.name  # names of XML formats


# -- links --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("document", [*DOCUMENTS, "README.md"])
def test_every_link_of_a_document_leads_to_something(document: str) -> None:
    text = (ROOT / document).read_text()
    LINKS.site_links(text, document=document, page=page_of(document))


def test_a_broken_link_is_refused() -> None:
    with pytest.raises(LINKS.BrokenLinkError, match=r"docs/theory\.md links to nowhere\.md"):
        LINKS.site_links("[x](nowhere.md)", document="docs/theory.md", page="theory.md")


@pytest.mark.parametrize(
    "document,link,expected",
    [
        ("docs/theory.md", "[n](notation.md#losses)", "[n](notation.md#losses)"),
        ("docs/results.md", "[changes](../CHANGELOG.md)", "[changes](changelog.md)"),
        ("docs/results.md", "[here](results/mnist1d)", "[here](gallery.md#mnist1d)"),
        ("docs/large-batch.md", "[t](tutorials/large_batch.py)", "[t](tutorials/large-batch.md)"),
        ("docs/reference/index.md", "[n](../notation.md)", "[n](../notation.md)"),
        ("CONTRIBUTING.md", "[a](docs/architecture.md)", "[a](architecture.md)"),
        ("docs/theory.md", "[bench](../benchmarks/advice.py)", "bench"),
        ("docs/theory.md", "[out](https://example.org/x.md) and [in](#losses)", None),
        ("docs/theory.md", "`[not](a-link.md)`", None),
        ("docs/theory.md", "```\n[not](a-link.md)\n```", None),
    ],
)
def test_a_link_of_the_repository_becomes_one_of_the_site(document: str, link: str, expected: str | None) -> None:
    assert LINKS.site_links(link, document=document, page=page_of(document)) == (link if expected is None else expected)


def test_a_file_without_a_page_is_linked_once_the_project_has_an_address() -> None:
    found = LINKS.site_links(
        "[b](../benchmarks/advice.py)",
        document="docs/theory.md",
        page="theory.md",
        repo_url="https://example.org/tacit/",
    )
    assert found == "[b](https://example.org/tacit/blob/main/benchmarks/advice.py)"


# -- pages that are made ------------------------------------------------------------------------------------------
def test_the_command_line_page_has_every_command_and_every_option() -> None:
    made = site_module("command_line")
    page, commands = made.page(), made.commands()
    assert {"tacit verify", "tacit reproduce", "tacit explore", "tacit data get"} <= set(commands)
    for name, command in commands.items():
        section = page[page.index(f"\n## {name}\n") :].split("\n## ")[1]
        for parameter in command.params:
            for option in parameter.opts if parameter.param_type_name == "option" else []:
                assert f"`{option}`" in section, f"{name} {option}"
        for example in re.findall(r"tacit (?:[\w-]+ ?)+--[^`\n]+", command.help or ""):
            assert example in section


def test_the_gallery_shows_every_stored_figure_with_its_verdict() -> None:
    page = site_module("gallery").page()
    pictures = {str(path.relative_to(DOCS)) for path in (DOCS / "results").glob("*/figure-*.svg")}
    assert set(re.findall(r"\]\((results/[^)]+)\)", page)) == pictures
    assert len(re.findall(r"\.verdict \.(?:agrees|disagrees|undecided) ", page)) == len(pictures)


# -- tutorials ----------------------------------------------------------------------------------------------------
def test_a_tutorial_becomes_text_code_and_output(tmp_path: Path) -> None:
    script = tmp_path / "two_cells.py"
    script.write_text('"""Not shown."""\n\n# %% [markdown]\n# # Title\n#\n# Text.\n\n# %%\nx = 2\nprint(x + 1)\n')
    page = site_module("tutorial").page_of(script, tmp_path)
    assert page == "# Title\n\nText.\n\n```python\nx = 2\nprint(x + 1)\n```\n\n``` { .text .output }\n3\n```\n"


@pytest.mark.parametrize(
    "name",
    [
        "modified_flows",
        pytest.param("large_batch", marks=pytest.mark.slow),
        pytest.param("reproduce_and_extend", marks=pytest.mark.slow),
    ],
)
def test_a_tutorial_runs_from_top_to_bottom(name: str, tmp_path: Path) -> None:
    command = [sys.executable, DOCS / "site" / "tutorial.py", DOCS / "tutorials" / f"{name}.py", tmp_path]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / f"{name.replace('_', '-')}.md").read_text().count("{ .text .output }") > 3


def test_every_tutorial_is_among_them() -> None:
    assert sorted(path.stem for path in (DOCS / "tutorials").glob("*.py")) == [
        "large_batch",
        "modified_flows",
        "reproduce_and_extend",
    ]


def test_a_picture_of_a_tutorial_needs_words_for_those_who_cannot_see_it(tmp_path: Path) -> None:
    drawing = "# %%\nimport matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\n"
    script = tmp_path / "drawn.py"
    script.write_text(drawing + "# picture: A line that rises.\n")
    page = site_module("tutorial").page_of(script, tmp_path)
    assert "![A line that rises.](drawn-1.svg)" in page
    assert "# picture" not in page
    assert (tmp_path / "drawn-1.svg").read_bytes().startswith(b"<?xml")
    script.write_text(drawing)
    with pytest.raises(ValueError, match="# picture: TEXT"):
        site_module("tutorial").page_of(script, tmp_path)


def test_an_error_in_a_tutorial_names_its_line(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text("# %% [markdown]\n# Text.\n\n# %%\nx = 1\nraise RuntimeError('here')\n")
    with pytest.raises(RuntimeError) as caught:
        site_module("tutorial").page_of(script, tmp_path)
    assert caught.traceback[-1].lineno + 1 == 6


# -- no network ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "name,text",
    [
        ("a.html", '<script src="https://cdn.example.org/x.js"></script>'),
        ("a.html", '<link rel="stylesheet" href="//fonts.example.org/css">'),
        ("a.html", '<img alt="" src="https://example.org/badge.svg">'),
        ("a.html", "<style>@font-face { src: url(https://example.org/f.woff2) }</style>"),
        ("a.css", '@import "https://example.org/x.css";'),
    ],
)
def test_a_page_that_loads_from_elsewhere_is_found(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    (found,) = site_module("offline").foreign_addresses(tmp_path)
    assert found.startswith(f"{name}: ")


def test_links_that_a_reader_clicks_and_local_files_are_no_load(tmp_path: Path) -> None:
    text = (
        '<link rel="canonical" href="https://example.org"><a href="https://example.org">x</a><img src="a.svg" alt="">'
    )
    (tmp_path / "a.html").write_text(text)
    assert site_module("offline").foreign_addresses(tmp_path) == []


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_every_anchor_of_a_link_is_a_heading(document: str) -> None:
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", (ROOT / document).read_text()):
        headings = re.findall(r"^#+ (.+)$", (ROOT / (path or document)).read_text(), re.MULTILINE)
        slugs = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
        assert anchor in slugs, f"{document} links to {path}#{anchor}"
