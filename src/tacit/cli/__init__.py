"""The command line: one file per command, and imports inside commands, so that `--help` is instant."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import typer

from tacit._util.errors import TacitError

app = typer.Typer(
    name="tacit",
    help="SGD's tacit regularizer, made explicit (Smith, Dherin, Barrett, De, ICLR 2021).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the versions that matter and stop."),
) -> None:
    if version:
        _print_versions()
        raise typer.Exit


def _print_versions() -> None:
    """What matters in a bug report, read without importing anything heavy."""
    import platform

    from tacit._util.provenance import package_version

    print(f"tacit {package_version('tacit') or 'not installed'}\npython {platform.python_version()}")
    for name in ("torch", "numpy", "scipy"):
        print(f"{name} {package_version(name) or 'not installed'}")
    print(f"platform {platform.platform()}")


def _register() -> None:
    """Every module of this folder, `_helpers` aside, has a `register(app)`; a command file is added by writing it."""
    commands = [found for found in pkgutil.iter_modules(__path__) if not found.name.startswith("_")]
    for found in sorted(commands, key=lambda module: module.name):
        importlib.import_module(f"{__name__}.{found.name}").register(app)


_register()


def main() -> None:
    """Run the command line; bad input is one sentence on stderr and exit code 2."""
    try:
        app()
    except TacitError as error:
        print(f"tacit: {error}", file=sys.stderr)
        sys.exit(2)
