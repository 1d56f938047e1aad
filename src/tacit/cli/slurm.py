"""`tacit slurm-script`: a job for SLURM that runs a study on Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli._output_file import check_output_folder
from tacit.cli._study_options import Into, Overrides, StudyFile


def register(app: typer.Typer) -> None:
    app.command(name="slurm-script")(slurm_script)


def slurm_script(
    file: StudyFile,
    overrides: Overrides = None,
    into: Into = None,
    nodes: Annotated[int, typer.Option(min=1, help="Machines.")] = 1,
    cpus: Annotated[int, typer.Option(min=1, help="Cores per machine; without GPUs, as many fleets at a time.")] = 8,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs per machine; as many fleets at a time.")] = 0,
    time: Annotated[str, typer.Option(help="Longest time: HH:MM:SS or D-HH:MM:SS.")] = "24:00:00",
    partition: Annotated[str | None, typer.Option(help="SLURM's partition.")] = None,
    account: Annotated[str | None, typer.Option(help="SLURM's account.")] = None,
    setup: Annotated[
        list[str] | None, typer.Option(help="A line of shell that runs first, such as 'module load cuda'; repeatable.")
    ] = None,
) -> None:
    """Print a job script that starts Ray on the machines of a SLURM job and runs a study there.

    The study file is checked first. A job that ends early, or at its time limit, leaves checkpoints: submit it again.

    Examples:

    * `tacit slurm-script studies/mnist1d/standard/rates.toml --nodes 2 --cpus 32 --time 4:00:00`

    * `tacit slurm-script studies/mnist1d/quick/rates.toml --gpus 4 --partition gpu --setup 'module load cuda'`
    """
    import sys

    from tacit.studies.describe.library import find_study_file
    from tacit.studies.describe.study import load_study
    from tacit.studies.execute.slurm import Job, script

    check_output_folder("--into", into)
    study = load_study(find_study_file(file), overrides=overrides or [])
    job = Job(
        nodes=nodes, time=time, partition=partition, account=account, cpus=cpus, gpus=gpus, setup=tuple(setup or ())
    )
    folder = into or Path("runs") / study.name
    print(script(job, file, overrides or [], into=folder, bin_folder=Path(sys.executable).parent), end="")
