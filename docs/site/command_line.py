"""The reference of the command line, made from the commands themselves: what `--help` of each says, as one page."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import typer

from tacit.cli import app

HEAD = """# Command line

Made from the commands themselves: `tacit COMMAND --help` says the same. `tacit --version` prints the versions that
matter in a report of an error. `tacit --install-completion` teaches your shell (bash, zsh, fish, PowerShell) to
complete commands and options with the Tab key, from the next shell on; `tacit --show-completion` prints what it would
install.

A wrong argument is one sentence on stderr and exit code 2."""


def page() -> str:
    """Every command with its usage, its explanation, its examples and its options."""
    parts = [HEAD]
    for name, command in sorted(commands().items()):
        parts += [f"## {name}", f"```text\n{usage(name, command)}\n```", explanation(command)]
        options = [described(parameter) for parameter in command.params]
        if options:
            parts.append("\n".join(["| option | meaning |", "| --- | --- |", *options]))
    return "\n\n".join(parts) + "\n"


def commands() -> dict[str, Any]:
    """Every command by its words, those of groups too: `tacit data get`."""
    found: dict[str, Any] = {}

    def collect(words: str, command: Any) -> None:
        inner = getattr(command, "commands", None)
        if inner is None:
            found[words] = command
            return
        for name, one in inner.items():
            collect(f"{words} {name}", one)

    collect("tacit", typer.main.get_command(app))
    return found


def usage(name: str, command: Any) -> str:
    words = [name]
    words += ["[OPTIONS]"] if any(parameter.param_type_name == "option" for parameter in command.params) else []
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            shown = _metavar(parameter) + ("..." if parameter.nargs == -1 or parameter.multiple else "")
            words.append(shown if parameter.required else f"[{shown}]")
    return " ".join(words)


def explanation(command: Any) -> str:
    """The help text; its examples, which are indented or between backticks, become one block."""
    head, found, tail = inspect.cleandoc(command.help or "").partition("Example")
    if not found:
        return head
    examples = re.findall(r"^ {4}(.+)$|`(tacit [^`]+)`", tail, re.MULTILINE)
    block = "\n".join(indented or quoted for indented, quoted in examples)
    return f"{head.strip()}\n\n```text\n{block}\n```"


def described(parameter: Any) -> str:
    """One row of the table: names, and the help text with the value that is used when none is given."""
    help_text = getattr(parameter, "help", None) or ""
    if parameter.param_type_name == "argument":
        names = f"`{_metavar(parameter)}`"
    else:
        names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
    default = parameter.default
    if isinstance(default, int | float | str | Path) and not isinstance(default, bool) and default != "":
        help_text += f" Default: `{default}`."
    if parameter.required:
        help_text += " Must be given."
    words = re.sub(r"\s+", " ", help_text).strip().replace("|", "\\|")
    return f"| {names} | {words} |"


def _metavar(parameter: Any) -> str:
    return re.sub(r"[\[\]{}.]", "", parameter.metavar or parameter.name).upper().replace("-", "_")
