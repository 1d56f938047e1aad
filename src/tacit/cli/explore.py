"""`tacit explore`: pages to play with the theory, one file each, without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli._output_file import check_output_file


def register(app: typer.Typer) -> None:
    app.command("explore")(explore)


def explore(
    rows: Annotated[
        list[Path] | None,
        typer.Option(
            help="A folder of `tacit run` or `tacit reproduce`: show its batch sizes on ε/B and λ/B. Repeatable."
        ),
    ] = None,
    into: Annotated[
        Path | None, typer.Option(help="Write the page to this file (html); without it, it opens in a browser.")
    ] = None,
) -> None:
    """Open a page on which SGD, gradient flow and the flow of C̃_SGD move with sliders.

    Examples:

        tacit explore

        tacit explore --into sgd.html

        tacit explore --rows runs/fashion_mnist-small --into collapse.html
    """
    from tacit._util.files import write_atomically
    from tacit.explore import collapse_page, explore_page

    check_output_file("--into", into, endings=(".html",))
    if rows:
        from tacit.report import read_parts

        page = collapse_page([row for part in read_parts(rows) for row in part.rows])
    else:
        page = explore_page()
    if into is not None:
        print(f"wrote {write_atomically(into, page)}")
        return
    _open(page)


def _open(page: str) -> None:
    """The page in the reader's browser, from a folder of its own: another user's file cannot stand in its place."""
    import tempfile
    import webbrowser

    from tacit._util.files import write_atomically

    target = write_atomically(Path(tempfile.mkdtemp(prefix="tacit-")) / "explore.html", page)
    if webbrowser.open(target.as_uri()):
        print(f"opened {target}")
    else:
        print(f"no browser could be started; open {target} in one.")
