"""A trial of the user's own code before any worker starts: what cannot work is one sentence now, not a lost fleet."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from tacit._util.errors import InputError
from tacit._util.own_code import check_unchanged, is_own
from tacit.studies.data.datasets import facts_of
from tacit.studies.data.facts import Data
from tacit.studies.data.load import load
from tacit.studies.describe.spec import RunSpec, canonical
from tacit.studies.train.examples import prepare
from tacit.studies.train.module_program import build
from tacit.studies.train.training import rate_factor


def try_own_code(runs: Iterable[RunSpec]) -> None:
    """Load each own dataset, make each own model and pass two examples through it, ask each own schedule once."""
    data: dict[str, Data] = {}
    tried: set[str] = set()
    for run in runs:
        key = canonical([run.dataset, run.train_size, run.test_size, run.model, run.model_arguments, run.schedule])
        if not run.own_code or key in tried:
            continue
        tried.add(key)
        check_unchanged(run.own_code)
        if run.dataset not in data:
            data[run.dataset] = load(run.dataset)
        facts = facts_of(run.dataset, data[run.dataset])
        train, _ = prepare(data[run.dataset], run, facts, device=torch.device("cpu"), dtype=torch.float32)
        if is_own(run.model):
            _try_model(run, train.inputs.between(0, 2), classes=facts.classes)
        factor = rate_factor(run)
        for step in (0, run.minibatches - 1):
            if not 0 <= factor(step) < float("inf"):
                raise InputError(f"{run.schedule} returned {factor(step)} at step {step}; expected a factor >= 0.")


def _try_model(run: RunSpec, inputs: torch.Tensor, *, classes: int) -> None:
    assert run.own_code is not None
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            outputs = build(run, facts=None).eval()(inputs)  # type: ignore[arg-type]  # own models take no facts
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"{run.model} raised {type(error).__name__} on inputs of shape {tuple(inputs.shape)}: {error}"
            ) from error
    found = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
    if found != (len(inputs), classes):
        raise InputError(
            f"{run.model} maps inputs of shape {tuple(inputs.shape)} to {found}; expected logits of shape "
            f"{(len(inputs), classes)}, one column per class of {run.dataset}."
        )
