"""A trained run as a `Problem`: its own model with its final parameters, its own data, standardised as in training."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch.nn import functional as F

from tacit._util.errors import InputError, TacitError
from tacit._util.own_code import check_unchanged
from tacit.problem import Problem
from tacit.studies.data.datasets import facts_of
from tacit.studies.data.load import load
from tacit.studies.describe.spec import RunSpec, make_run
from tacit.studies.store.folder import ResultsFolder, results_folders
from tacit.studies.train import weights
from tacit.studies.train.examples import prepare
from tacit.studies.train.module_program import build

SHOWN = 4  # runs that a message lists


def find_run(path: str | Path, prefix: str) -> tuple[ResultsFolder, RunSpec]:
    """The finished run whose hash begins with `prefix`, in a folder of results or in one directly inside `path`."""
    rows = {
        hash: (folder, row)
        for folder in reversed(results_folders(path))
        for hash, row in folder.contents().rows.items()
        if hash.startswith(prefix.lower())
    }
    if len(rows) != 1:
        listed = ", ".join(sorted(rows)[:SHOWN]) + (", …" if len(rows) > SHOWN else "")
        found = f"begins {len(rows)} runs ({listed}); give more digits" if rows else "begins no finished run"
        raise InputError(f"--run {prefix} {found} of {path}. `tacit export {path} --csv runs.csv` lists them.")
    ((folder, row),) = rows.values()
    if row["status"] != "finished":
        raise InputError(f"run {row['run']} diverged; expected a run that ended with finite parameters.")
    return folder, make_run(row["spec"], where=f"run {row['run']}")


def trained_problem(folder: ResultsFolder, run: RunSpec) -> Problem:
    """The run's mean cross-entropy over its training examples, at its final parameters, with its weight decay.

    The model is in evaluation mode (no dropout), in float32, and examples are not augmented. The minibatches are
    consecutive ones of the run's batch size.
    """
    content = folder.read_weights(run.hash)
    if content is None:
        raise InputError(
            f"run {run.hash} has no weights in {folder.path}; they are stored while a study with keep_weights = true "
            "is trained, and a finished run is not trained again: run the study with it into another folder."
        )
    if run.own_code:
        check_unchanged(run.own_code)
    data = load(run.dataset)
    facts = facts_of(run.dataset, data)
    train, _ = prepare(data, run, facts, device=torch.device("cpu"), dtype=torch.float32)
    model = build(run, facts).to(torch.float32)
    try:
        model.load_state_dict(weights.decode(content, run))
    except TacitError as error:
        raise TacitError(f"{folder.weights_path(run.hash)} {error}; train the run into another folder.") from None
    except RuntimeError as error:
        raise TacitError(f"{folder.weights_path(run.hash)} does not fit {run.model}: {error}") from None
    inputs = train.inputs.between(0, len(train)).contiguous()
    decay = 0.0 if run.optimizer == "adamw" else run.weight_decay  # AdamW's is no part of a loss
    # A problem without smoothing keeps torch's own function, whose rows some methods know by name.
    loss = partial(F.cross_entropy, label_smoothing=run.label_smoothing) if run.label_smoothing else F.cross_entropy
    return Problem(model.eval(), loss, (inputs, train.targets), batch_size=run.batch_size, weight_decay=decay)
