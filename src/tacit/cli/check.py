"""`tacit check`: what the penalty is and costs on a model of the user's own, in one table."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit._util.errors import InputError
from tacit._util.own_code import call
from tacit._util.plural import counted
from tacit.cli._output_file import check_output_file

if TYPE_CHECKING:
    from torch import nn

COLUMNS, NOTES, NOTE_LINES = 80, 3, 2
TITLES = {
    "plain": "plain step",
    "penalty": "penalty, whole batch",
    "penalty, sampled": "penalty, sampled=1",
    "sam": "SAM, whole batch",
    "sam, sampled": "SAM, sampled",
}


def register(app: typer.Typer) -> None:
    app.command("check")(check)


def check(
    factory: Annotated[
        str, typer.Argument(metavar="MODULE:FACTORY", help="A function that returns (model, closure, batch).")
    ],
    rounds: Annotated[int, typer.Option(min=1, help="Timed rounds; from 6 on there are intervals.")] = 11,
    rows: Annotated[
        int | None, typer.Option(min=1, help="b: rows of the drawn micro-batch; a sixteenth of the batch if not given.")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="ε of plain SGD: adds a bound of λ*.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write every number to this file.")] = None,
) -> None:
    """Check the penalty on a model of your own: exact or not, price, memory, strength. Trains nothing.

    The factory takes no arguments. `batch` is a tuple, and `closure(*batch)` the mean loss, without backward:

        def factory():
            model = torch.nn.Linear(20, 3)
            batch = torch.randn(256, 20), torch.randint(3, (256,))
            return model, lambda x, y: torch.nn.functional.cross_entropy(model(x), y), batch

    Gradients are compared with double backward in float64. Times and memory are those of a step with
    `torch.optim.SGD`, in plain steps of the same rounds. The model is left as it was.

    Examples: `tacit check mymodule:factory`; `tacit check mymodule:factory --rows 8 --json check.json`
    """
    import json
    import warnings

    from tacit._util.arguments import finite_number
    from tacit._util.files import write_atomically

    check_output_file("--json", json_file)
    if learning_rate is not None:
        finite_number("--learning-rate", learning_rate, positive=True)
    model, closure, batch = _made(factory)
    from tacit.bench.check import check_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an estimate's error is a line of the table
        found = check_model(
            model, closure, batch, rows=rows, rounds=rounds, learning_rate=learning_rate,
            say=lambda line: typer.echo(f"{line} …", err=True),
        )  # fmt: skip
    print("\n".join(table_lines(found)))
    if json_file is not None:
        write_atomically(json_file, json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        typer.echo(f"wrote {json_file}", err=True)


def _made(name: str) -> tuple[nn.Module, Any, tuple[Any, ...]]:
    from torch import nn

    made = call(name)
    kinds = [type(each).__name__ for each in made] if isinstance(made, tuple) else []
    if len(kinds) != 3 or not (
        isinstance(made[0], nn.Module) and callable(made[1]) and isinstance(made[2], tuple)
    ):  # fmt: skip
        found = f"({', '.join(kinds)})" if kinds else f"a {type(made).__name__}"
        raise InputError(
            f"{name} returned {found}; expected (model, closure, batch): a torch.nn.Module, a function, and the tuple "
            "of its arguments."
        )
    return made  # type: ignore[return-value]


def table_lines(found: dict[str, Any]) -> list[str]:
    """At most 20 lines of at most 80 columns."""
    notes: list[str] = []

    def failed(entry: dict[str, Any]) -> str:
        if entry["error"] not in notes:
            notes.append(entry["error"])
        return f"{'refused' if entry['refused'] else 'failed'} [{notes.index(entry['error']) + 1}]"

    what = f"{found['model'][:20]}, {found['parameters']:,} parameters, {found['dtype']}"
    lines = [
        f"{what}, batch of {counted(found['batch_size'], 'row')}",
        _line("exact", failed(found["exact"]) if "error" in found["exact"] else _verdict(found["exact"])),
    ]
    plain = found["steps"]["plain"]
    head = "" if "error" in plain else f"{_short(plain['milliseconds'])} ms, {_short(plain['peak_bytes'] / 1e6)} MB"
    lines.append(f"{'plain step: ' + head:32}{'time':>7}  {'95 % interval':14}{'memory':>7}  method")
    for name, row in found["steps"].items():
        if name != "plain":
            title = f"  {TITLES[name]}" + (f", {counted(found['rows'], 'row')}" if "sampled" in name else "")
            lines.append(f"{title:32}{failed(row) if 'error' in row else _costs(row)}")
    lines += _strength_lines(found, failed)
    noted: list[str] = []
    for number, note in enumerate(notes[:NOTES], start=1):
        text = textwrap.wrap(note, COLUMNS - 4, max_lines=NOTE_LINES, placeholder=" … (see --json)")
        noted += [f"[{number}] {text[0]}", *[f"    {line}" for line in text[1:]]]
    machine = found["machine"]
    other = "; GPU not measured" if machine["device"] == "cpu" else ""
    where = f"measured on {machine['device']}, {counted(machine['threads'], 'thread')}"
    return [*lines, *noted, *_to_type(found), f"{where}, in {counted(found['rounds'], 'round')}{other}"]


def _line(title: str, text: str) -> str:
    return f"{title:14}{text}"


def _short(number: float) -> str:
    return f"{number:.3g}" if number < 1000 else f"{number:,.0f}"


def _verdict(exact: dict[str, Any]) -> str:
    ours, own, tolerance = exact["relative_error"], exact["plain_relative_error"], exact["tolerance"]
    word = "yes" if ours <= tolerance else "cannot be told" if own > tolerance else "NO"
    return f"{word}: error {ours:.1e}, plain gradient's {own:.1e}, {counted(exact['rows'], 'row')}"


def _costs(row: dict[str, Any]) -> str:
    ends = row["times_plain_interval"]
    interval = "none" if ends is None else f"{_short(ends[0])} to {_short(ends[1])}"
    return f"{row['times_plain']:7.2f}  {interval:14}{row['peak_times_plain']:7.2f}  {row.get('method', '')}".rstrip()


def _strength_lines(found: dict[str, Any], failed: Callable[[dict[str, Any]], str]) -> list[str]:
    strengths, relative = found["strengths"], found["relative"]
    if "error" in strengths:
        lines = [_line("λ = 2⁻⁶", failed(strengths))]
    else:
        share, held, edge = (strengths[name] for name in ("share", "strength_at_ratio_1", "largest_stable_strength"))
        part = "the gradient is 0" if share is None else f"the penalty's part is {share:.3g} of the gradient"
        limit = "not known: no positive curvature was measured along the gradient"
        if edge is not None:
            limit = f"at most {_short(edge)} for plain SGD and the whole penalty"
        elif held is not None:
            limit = f"needs --learning-rate; largest_ratio=1 would hold λ to {_short(held)}"
        lines = [_line("λ = 2⁻⁶", part), _line("λ*", limit)]
    if "error" in relative:
        return [*lines, _line("Relative(0.4)", failed(relative))]
    cap = ", its cap" if relative["strength"] >= relative["cap"] else ""
    now = f"gives λ = {relative['strength']:.3g} now{cap} (sampled, after {relative['calls']} calls)"
    return [*lines, _line("Relative(0.4)", now)]


def _to_type(found: dict[str, Any]) -> list[str]:
    """The cheapest that runs."""
    steps, rows = found["steps"], found["rows"]
    strength = "2**-6" if found["relative"].get("refused") else "tacit.Relative(0.4)"
    penalty = f"penalty = tacit.GradientPenalty(model, {strength}"
    if "error" not in steps["penalty, sampled"]:
        made = [f"{penalty},", f"    sampled=1, micro_batch_size={rows})", "penalty.backward(closure, *batch)"]
    elif "error" not in steps["penalty"]:
        made = [f"{penalty})", "penalty.backward(closure, *batch)"]
    elif "error" not in steps["sam, sampled"]:
        made = [f"sam = tacit.SharpnessAware(model, 0.05, sampled={rows})", "sam.backward(closure, *batch)"]
    else:
        return [_line("type", "nothing: neither the penalty nor SAM runs on this model")]
    return [_line("type", made[0]), *[_line("", line) for line in made[1:]]]
