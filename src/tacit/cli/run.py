"""`tacit run`: train a study file, or go on with it."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli._output_file import check_output_folder
from tacit.cli._study_options import Overrides, StudyFile

if TYPE_CHECKING:
    from tacit.studies.plan import Plan


def register(app: typer.Typer) -> None:
    app.command(name="run")(run)


def run(
    file: StudyFile,
    overrides: Overrides = None,
    into: Annotated[Path | None, typer.Option(help="The folder of results; runs/NAME without it.")] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Fleets at a time, one core each. Without it one per core, or one on a GPU."),
    ] = None,
    executor: Annotated[
        str, typer.Option(help="local: processes of this machine. ray: workers of a Ray cluster.")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(help="A running Ray cluster: HOST:PORT, or auto. Without it Ray decides."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps; TACIT_DEVICE or auto without it.")] = None,
    attempts: Annotated[int, typer.Option(min=1, help="Failures in a row after which a fleet is left out.")] = 3,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run and what it costs.")] = False,
) -> None:
    """Train every run of a study file that has no result yet.

    A study that was stopped or killed goes on from its last checkpoints: run the same command again. Ctrl-C and SIGTERM
    store checkpoints first; the exit code is then 130 or 143. A fleet that fails three times is left out, its error is
    in the study's folder, and the others go on; the exit code is then 1.

    Examples:

    * `tacit run mnist1d/quick/rates --dry-run`

    * `tacit run studies/mnist1d/quick/rates.toml seeds=0:2 epochs=16 --into runs/try`

    * `tacit run studies/mnist1d/quick/rates.toml learning_rate=2^-5,2^-3`

    * `tacit run studies/mnist1d/quick/rates.toml --executor ray --address auto --workers 16`
    """
    from tacit._util.errors import InputError
    from tacit.studies import runner
    from tacit.studies.describe.library import find_study_file
    from tacit.studies.execute.executor import FleetsFailedError
    from tacit.studies.execute.signals import exit_code
    from tacit.studies.plan import make_plan
    from tacit.studies.progress import ProgressBar
    from tacit.studies.store.status import stopped_message

    if address is not None and executor != "ray":
        raise InputError(f"--address {address} is for --executor ray; found --executor {executor}.")
    check_output_folder("--into", into)
    study = runner.load_study(find_study_file(file), overrides=overrides or [])
    folder = into or Path("runs") / study.name
    if dry_run:
        plan = make_plan(study, folder, executor=executor, device=device)
        print(plan)
        print("\n".join(_models(plan)))
        return
    try:
        with redirect_stdout(sys.stderr):  # Ray prints pages about lost workers: stdout is for results
            rows = runner.run(
                study, folder, executor=executor, address=address, device=device, workers=workers, attempts=attempts,
                watcher=ProgressBar(),
            )  # fmt: skip
    except KeyboardInterrupt as stopped:
        typer.echo(stopped_message(folder), err=True)
        raise typer.Exit(exit_code(stopped)) from None
    except FleetsFailedError as failed:
        typer.echo(f"tacit: {failed}", err=True)
        raise typer.Exit(1) from None
    diverged = sum(row["status"] == "diverged" for row in rows)
    print(f"{len(rows)} rows ({diverged} diverged) in {folder}; next: tacit report {folder}")


def _models(plan: Plan) -> list[str]:
    """Every model of a study with its size, counted from its shape."""
    from tacit._util.own_code import is_own, source_file
    from tacit.studies.train.operations import count

    found = {}
    own: dict[str, str] = {}
    for run in plan.study.runs:
        own |= run.own_code or {}
        if is_own(run.model) or is_own(run.dataset):  # its size is not known before its code has run
            continue
        size = f"{run.depth}x{run.width}"
        names = {"wide_resnet": f"WRN-{run.depth}-{run.width}", "conv1d": f"convolutions {size}", "mlp": f"MLP {size}"}
        name = names[run.model]
        found[f"{name} on {run.dataset}"] = count(run)
    sizes = [f"{name}: {each.parameters:,} parameters" for name, each in found.items()]
    return [*sizes, *[f"imports {name} from {source_file(name)} (sha256 {code})" for name, code in own.items()]]
