"""What the runs of a figure have in common, beside the paper's own runs of that figure: what was cut can be seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tacit._util.errors import InputError
from tacit.report.caption import seeds_text
from tacit.report.figure import Figure
from tacit.report.rows import MissingRowsError, Row, epochs_of, planned_updates, small_rate, unshared_seeds
from tacit.report.text import power
from tacit.studies.data.datasets import FACTS
from tacit.studies.describe.library import library
from tacit.studies.describe.spec import LATER
from tacit.studies.describe.study import Study

DATASET_NAMES = {
    "mnist1d": "MNIST-1D",
    "mnist1d_16k": "MNIST-1D",
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
}
SCHEDULE_NAMES = {"constant": "constant", "paper_decay": "constant for half of the run, then halved every tenth"}
AUGMENTATION_NAMES = {"none": "none", "crop_flip": "random crops and flips", "shift": "random shifts"}


@dataclass(frozen=True)
class Setting:
    """One setting in words, as it is here and as the paper has it."""

    name: str
    here: str
    paper: str

    @property
    def differs(self) -> bool:
        return self.here != self.paper


def compared(figure: Figure, rows: Sequence[Row], *, options: Mapping[str, Any]) -> tuple[Setting, ...]:
    """Every setting of a figure's runs beside the paper's; nothing for a figure that the paper does not have."""
    wanted, wanted_options = planned(figure.id, paper_studies())
    ours, theirs = used(figure, rows, options), used(figure, wanted, wanted_options)
    if not ours or not theirs:
        return ()
    here, paper = described(figure, ours), described(figure, theirs)
    return tuple(Setting(name, here[name], paper[name]) for name in here if here[name] or paper[name])


@cache
def paper_studies() -> tuple[Study, ...]:
    """The study files of the paper's scale; none in an installation without study files, which still makes reports."""
    try:
        return tuple(library(None, "paper").values())
    except InputError:
        return ()


def planned(id: str, studies: Iterable[Study]) -> tuple[tuple[Row, ...], dict[str, Any]]:
    """The runs of a figure in some study files, of the seeds that a report takes, without results; and its options."""
    feeding = [study for study in studies if id in study.figures]
    left_out = unshared_seeds(feeding)
    runs = {run.hash: run for study in feeding for run in study.runs if run.seed not in left_out}
    options = {key: value for study in feeding for key, value in study.figures[id].items()}
    return tuple({"spec": {**LATER, **run.model_dump()}} for run in runs.values()), options


def used(figure: Figure, rows: Sequence[Row], options: Mapping[str, Any]) -> list[Row]:
    """Those of the rows at hand that the figure reads; none where it would lack some."""
    try:
        return figure.reads(rows, options)
    except MissingRowsError:
        return []


def described(figure: Figure, rows: Sequence[Row]) -> dict[str, str]:
    """The settings in words, by name; several values are listed."""

    def each(words: Callable[[Mapping[str, Any]], Any]) -> str:
        return _listed({words(row["spec"]) for row in rows})

    if figure.length == "updates":
        length = f"{_listed({planned_updates(row) for row in rows})} updates"
    else:
        length = f"{_listed({epochs_of(row) for row in rows})} epochs"
    return {
        "dataset": each(lambda spec: DATASET_NAMES.get(spec["dataset"], spec["dataset"])),
        "model": each(_model),
        "training examples N": each(lambda spec: spec["train_size"]),
        "test examples": each(lambda spec: spec["test_size"] or FACTS[spec["dataset"]].test_size),
        "image size": each(_image_size),
        "augmentation": each(lambda spec: AUGMENTATION_NAMES[spec["augmentation"]]),
        "weight decay μ": each(lambda spec: spec["weight_decay"]),
        "batch size B": each(lambda spec: spec["batch_size"]),
        "inner steps n": each(lambda spec: spec["inner_steps"]),
        "length": length,
        "learning rate over a run": each(lambda spec: SCHEDULE_NAMES[spec["schedule"]]),
        "small rate ε of the strengths": power(small_rate(rows)) if figure.small_rate else "",
        "runs per point": seeds_text(rows),
        "precision": each(lambda spec: spec["precision"]),
    }


def _model(spec: Mapping[str, Any]) -> str:
    if spec["model"] == "wide_resnet":
        return f"WRN-{spec['depth']}-{spec['width']}"
    if spec["model"] == "conv1d":
        return f"{spec['depth']} convolutions of {spec['width']} channels"
    return f"MLP, {spec['depth']} hidden layers of {spec['width']}"


def _image_size(spec: Mapping[str, Any]) -> str:
    shape = FACTS[spec["dataset"]].shape
    size = spec["image_size"] or shape[-1]
    return f"{size} x {size}" if len(shape) == 3 else ""


def _listed(values: set[Any]) -> str:
    words = [value if isinstance(value, str) else _number(value) for value in sorted(values)]
    return ", ".join(word for word in words if word)


def _number(value: float) -> str:
    """
    >>> _number(10_000_000), _number(49920), _number(0.0005), _number(48.0)
    ('10,000,000', '49,920', '0.0005', '48')
    """
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"
