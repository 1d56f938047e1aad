"""`tacit watch`: a live page of what trains, and of what is finished."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

PORT = 8642


def register(app: typer.Typer) -> None:
    app.command(name="watch")(watch)


def watch(
    folder: Annotated[
        Path, typer.Argument(help="A folder of results, or one with several of them.", show_default=False)
    ] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes any that is free.")] = PORT,
    open_: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open a browser; without either, where there is a screen.")
    ] = None,
) -> None:
    """Show a folder of results as a live page: progress, learning curves, verdicts so far, failures, time left.

    Works before a study begins, while it trains, after it was killed, and when it is finished. Nothing is written to
    the folder. The page is for browsers of this machine; from others, `ssh -L` reaches it. Ctrl-C ends it; the exit
    code is then 130.

    Examples:

    * `tacit watch runs/mnist1d-quick`

    * `tacit watch --port 0 --no-open`
    """
    from tacit._util.errors import InputError
    from tacit.studies.execute.signals import exit_code, terminable
    from tacit.watch.server import WatchServer
    from tacit.watch.state import answers

    if folder.exists() and not folder.is_dir():
        raise InputError(f"{str(folder)!r} is a file; expected a folder made by `tacit run` or `tacit reproduce`.")
    server = WatchServer(answers(folder), port=port)
    try:
        with terminable():
            waits = "" if folder.exists() else ", which does not exist yet"
            print(f"{server.address} shows {folder}{waits}; Ctrl-C ends it.", flush=True)
            if open_ if open_ is not None else _has_screen():
                _open(server.address)
            server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt as stopped:
        typer.echo("stopped.", err=True)
        raise typer.Exit(exit_code(stopped)) from None
    finally:
        server.server_close()


def _has_screen() -> bool:
    """Whether a person sits here and a browser would have a window."""
    import os

    windows = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(windows) and sys.stdout.isatty() and "SSH_CONNECTION" not in os.environ


def _open(address: str) -> None:
    """In a thread: some browsers keep the call until they are closed."""
    import threading
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
