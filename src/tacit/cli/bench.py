"""`tacit bench`: what the penalty costs, measured here and now."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli._output_file import check_output_file


def register(app: typer.Typer) -> None:
    app.command("bench")(bench)


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer models and repeats: about a minute.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write every number to this file.")] = None,
    model: Annotated[list[str] | None, typer.Option("--model", help="Only this model; may be repeated.")] = None,
    threads: Annotated[int | None, typer.Option("--threads", help="Threads for torch.")] = None,
    device: Annotated[str, typer.Option("--device", help="cpu, or cuda (cuda:1, …) where torch finds one.")] = "cpu",
) -> None:
    """Time, peak memory and error of a training step with every penalty method.

    Times are multiples of a plain `torch.optim.SGD` step measured in the same run, in turns. `x naive` is the median
    over rounds of a step's time divided by that of hand-written double backward in the same round, for `auto` with a
    95 % interval.

    Examples: `tacit bench --quick`; `tacit bench --json bench.json`;
    `tacit bench --model mlp-4096-b16 --model wrn-10-1-b32`; `tacit bench --device cuda --json gpu.json`
    """
    from rich.console import Console

    from tacit._util.errors import InputError

    if threads is not None and threads < 1:
        raise InputError(f"--threads {threads}; expected at least 1.")
    check_output_file("--json", json_file)

    import torch

    from tacit.bench import models, run, table
    from tacit.studies.train import devices

    chosen_device = devices.choose(device, kinds=("cuda", "cpu"))  # errors are against float64, which MPS has not
    if threads is not None:
        torch.set_num_threads(threads)
    chosen = models.choose(model or [], quick=quick)
    console = Console()

    def say(line: str) -> None:
        console.print(line, style="dim")

    result = run.run(chosen, quick=quick, device=chosen_device, say=say)
    for made in table.tables(result):
        console.print(made)
    console.print(table.legend(result), style="dim")
    if json_file is not None:
        run.write(result, json_file)
        console.print(f"wrote {json_file}")
