"""`tacit tune`: the strength that suits one point of a study, chosen on a validation split."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli._output_file import check_output_file
from tacit.cli._study_options import Overrides, StudyFile


def register(app: typer.Typer) -> None:
    app.command(name="tune")(tune)


def tune(
    file: StudyFile,
    overrides: Overrides = None,
    start: Annotated[
        float | None, typer.Option(help="Where the search begins; without it the rate that SGD replaces, ε/(1−β).")
    ] = None,
    largest: Annotated[
        float | None, typer.Option(help="Strengths from here on are not tried: λ* of an advice.")
    ] = None,
    evaluations: Annotated[int, typer.Option(min=3, help="Looks at the validation split in a full training.")] = 12,
    json: Annotated[Path | None, typer.Option("--json", help="Also write every score to this file.")] = None,
) -> None:
    """Try strengths 0, ½, 1, 2 and 4 times the start on one point of a study, and say which is best.

    Training examples after the study's `train_size` are the validation split; the test set is not touched. All
    strengths train together as one fleet, that without a penalty beside it. After half and after three
    quarters of the training the better half goes on.

    Examples:

        tacit tune mnist1d/quick/rates learning_rate=2^-4 train_size=2048 batch_size=256 seeds=0:2 epochs=20

        tacit tune mystudy.toml --start 0.2 --json tuned.json
    """
    check_output_file("--json", json)
    from tacit._util.errors import InputError
    from tacit._util.files import write_atomically
    from tacit.advice.search import FACTORS, search_strength
    from tacit.studies import runner
    from tacit.studies.describe.library import find_study_file
    from tacit.studies.tuning import StrengthArms, point_of

    study = runner.load_study(find_study_file(file), overrides=overrides or [])
    run = point_of(study)[0]
    if start is None:
        if run.optimizer in ("adam", "adamw"):
            raise InputError(
                f"optimizer is {run.optimizer}, whose rate says nothing about λ; expected --start, such as 0.1."
            )
        start = run.learning_rate / (1 - (run.momentum_used if run.optimizer != "sgd" else 0.0))
    arms = StrengthArms(study, sorted({factor * start for factor in FACTORS}), evaluations=evaluations)
    # As fleets all strengths cost little more than one, so the budget leaves none out.
    found = search_strength(
        arms.scores, start=start, largest=largest, evaluations=arms.evaluations, budget=len(FACTORS)
    )
    print(found)
    if json is not None:
        write_atomically(json, found.to_json() + "\n")
        print(f"wrote {json}")
