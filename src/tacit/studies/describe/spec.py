"""`RunSpec`: everything that decides one training run, frozen, and hashed into the run's identity."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from tacit._util.errors import InputError
from tacit._util.own_code import is_own
from tacit.schedules import SCHEDULES
from tacit.studies.data.datasets import FACTS
from tacit.studies.describe.error_messages import error_message, shorten

POWER_OF_TWO = re.compile(r"\s*2\^(-?\d+(?:\.\d+)?)\s*")
SMALLEST, LARGEST = 2.0**-126, 2.0**127  # fleets train in float32: smaller numbers are flushed to 0, larger overflow
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")  # of studies and figures: both become file names
NAME_IN_WORDS = "letters, digits, dots, dashes and underscores, a letter or digit first, at most 80 characters"


def number(value: Any) -> Any:
    """A power of two written `"2^-9"` as a float, -0.0 as 0.0; anything else as it came.

    >>> number("2^-9") == 1 / 512
    True
    """
    found = POWER_OF_TWO.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return value + 0.0 if isinstance(value, float) else value  # -0.0 + 0.0 is 0.0: one value, one hash
    exponent = float(found[1])
    return 2.0**exponent if abs(exponent) < 1024 else value


Number = Annotated[float, BeforeValidator(number), Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
NotNegative = Annotated[Number, Field(ge=0)]
Count = Annotated[int, Field(ge=1, le=10**9)]  # the upper end turns a typing error into a sentence
# An evaluation adds at most 128 bytes to a row, so the rows of the largest fleet, 24 runs, stay below the 16 MB that
# are read again: refused here, and not after the training.
MOST_EVALUATIONS = 5000
# Keys that came after the first rows were stored. At these values they are neither stored nor hashed, so that a run
# keeps its identity; readers of rows fill them in (`store.read_rows`).
LATER: dict[str, Any] = {
    "image_size": None,
    "test_size": None,
    "weight_decay_penalized": True,
    "precision": "float32",
    "augmentation_amount": None,
    "model_arguments": None,
    "optimizer": "sgd",
    "momentum": None,
    "own_code": None,
    "label_smoothing": 0.0,
    "label_noise": 0.0,
    "micro_batch_size": None,
    "sampled": None,
    "relative": 0.0,
    "penalty_until": 1.0,
    "sam_radius": 0.0,
    "sam_rows": None,
}
SHIFT = 2  # samples either way, when the study does not say


MODELS = ("mlp", "wide_resnet", "conv1d")
MOST_CONVOLUTIONS = 6  # of a conv1d: after them 40 samples are one
MOMENTUM = 0.9  # of `momentum` and `nesterov` when the study does not say


def _named(key: str, known: Iterable[str]) -> AfterValidator:
    """One of the known names, or a function of the user's own."""

    def check(value: str) -> str:
        if value not in known and not is_own(value):
            choices = ", ".join(repr(name) for name in known)
            raise ValueError(f"{key} is {shorten(value)}; expected one of {choices}, or your own as module:function")
        return value

    return AfterValidator(check)


class RunSpec(BaseModel):
    """One run. `learning_rate` is ε: n-step SGD makes `inner_steps` updates per minibatch, each with ε/n.

    Exactly one of `epochs` and `updates` sets the length; an update is one change of the parameters, so n-step SGD
    makes n of them per minibatch. `bare_learning_rate` α may be given instead of `learning_rate`; ε = nα is stored.

    - `model`: an `mlp` of `depth` hidden layers of `width`, a `wide_resnet`, WRN-`depth`-`width` with SkipInit, or for
      signals a `conv1d` of `depth` convolutions of `width` channels, each of which halves the signal.
    - `weight_decay` is μ in Ĉ + (μ/2)‖ω‖², over all parameters: weights, biases, SkipInit scalars. The penalised norm
      is that of ∇Ĉ + μω, as the theory has it, or of ∇Ĉ alone when `weight_decay_penalized` is false.
    - `augmentation`: `crop_flip` is a random crop after padding by 4 black pixels (in proportion for smaller images)
      and a random horizontal flip; `shift` moves each training signal in a circle by up to `augmentation_amount`
      samples either way (2 without it). Both are drawn anew for each minibatch.
    - `image_size`: images are cut to this size by averaging pixels; without it they are as published.
    - `test_size`: accuracy on the first images of the test set; without it on all.
    - `precision`: `bfloat16` is torch's autocast; parameters and updates stay float32.
    - `optimizer`: `sgd`, `momentum` (heavy ball), `nesterov`, `adam` or `adamw`, as torch has them; `momentum` is β of
      the second and third (0.9 without it). AdamW's weight decay acts on the update alone.
    - `label_smoothing` s trains on (1 − s) of the label and s/classes of each class; `full_loss` is that loss.
      `label_noise`: this share of the training labels is a random class, the same examples in all runs.
    - `micro_batch_size` b: the penalty is the mean over the minibatch's micro-batches of b, or with `sampled` q over q
      of them drawn anew at each update, beside the plain gradient of the whole minibatch. `relative` r in the place of
      `strength` holds (λ/2)‖HG‖ at r times ‖∇Ĉ‖, both smoothed over updates. `penalty_until`: the share of the run
      that is penalised; after it λ is 0.
    - `sam_radius` ρ: sharpness-aware minimization, the gradient at ω + ρ g/‖g‖, g that of the minibatch or of
      `sam_rows` rows drawn from it; weight decay acts at ω.
    - `dataset`, `model` and `schedule` may be functions of your own, `module:function`: `load()` returns train inputs,
      train targets, test inputs, test targets; `make_model(**model_arguments)` an `nn.Module`; `factor(step, steps)`
      the factor on the learning rate. `own_code` holds a hash of each module's file, put there when a study is read.

    >>> run = RunSpec(learning_rate="2^-4", epochs=2, train_size=64, batch_size=16, evaluations=2)
    >>> run.batches_per_epoch, run.minibatches
    (4, 8)
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    dataset: Annotated[str, _named("dataset", FACTS)] = "mnist1d"
    train_size: Count = 4000
    model: Annotated[str, _named("model", MODELS)] = "mlp"
    width: Annotated[int, Field(ge=1, le=65536)] = 64
    depth: Annotated[int, Field(ge=1, le=64)] = 3
    learning_rate: Positive
    strength: NotNegative = 0.0
    method: Literal["gram"] = "gram"
    batch_size: Count = 32
    inner_steps: Count = 1
    order: Literal["shuffled", "fixed", "mirrored", "shuffle_once", "with_replacement"] = "shuffled"
    schedule: Annotated[str, _named("schedule", SCHEDULES)] = "constant"
    weight_decay: NotNegative = 0.0
    augmentation: Literal["none", "crop_flip", "shift"] = "none"
    epochs: Count | None = None
    updates: Count | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    evaluations: Annotated[int, Field(ge=1, le=MOST_EVALUATIONS)] = 10
    image_size: Count | None = LATER["image_size"]
    test_size: Count | None = LATER["test_size"]
    weight_decay_penalized: bool = LATER["weight_decay_penalized"]
    precision: Literal["float32", "bfloat16"] = LATER["precision"]
    augmentation_amount: Positive | None = LATER["augmentation_amount"]
    model_arguments: dict[str, Any] | None = LATER["model_arguments"]
    optimizer: Literal["sgd", "momentum", "nesterov", "adam", "adamw"] = LATER["optimizer"]
    momentum: Annotated[Number, Field(ge=0, lt=1)] | None = LATER["momentum"]
    own_code: dict[str, str] | None = LATER["own_code"]
    label_smoothing: Annotated[Number, Field(ge=0, lt=1)] = LATER["label_smoothing"]
    label_noise: Annotated[Number, Field(ge=0, lt=1)] = LATER["label_noise"]
    micro_batch_size: Count | None = LATER["micro_batch_size"]
    sampled: Count | None = LATER["sampled"]
    relative: NotNegative = LATER["relative"]
    penalty_until: Annotated[Number, Field(gt=0, le=1)] = LATER["penalty_until"]
    sam_radius: NotNegative = LATER["sam_radius"]
    sam_rows: Count | None = LATER["sam_rows"]

    @model_validator(mode="before")
    @classmethod
    def _learning_rate_from_bare(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or "bare_learning_rate" not in given:
            return given
        if "learning_rate" in given:
            raise ValueError("learning_rate and bare_learning_rate are both given; expected one of them")
        rest = {key: value for key, value in given.items() if key != "bare_learning_rate"}
        bare, steps = number(given["bare_learning_rate"]), rest.get("inner_steps", 1)
        if isinstance(bare, bool) or not isinstance(bare, int | float) or not 0 < bare < math.inf:
            raise ValueError(f"bare_learning_rate is {shorten(bare)}; expected a number greater than 0")
        return {**rest, "learning_rate": bare * steps if isinstance(steps, int) else bare}

    @model_validator(mode="before")
    @classmethod
    def _whole_is_none(cls, given: Any) -> Any:
        """A default (whole test set, published size, usual amount) has one spelling, so that a run has one hash."""
        if not isinstance(given, Mapping) or not isinstance(given.get("dataset", "mnist1d"), str):
            return given
        facts = FACTS.get(given.get("dataset", "mnist1d"))
        whole: dict[str, Any] = {
            "test_size": facts.test_size if facts else None,
            "image_size": facts.shape[-1] if facts and len(facts.shape) == 3 else None,
            "augmentation_amount": SHIFT if given.get("augmentation") == "shift" else None,
            "momentum": MOMENTUM if given.get("optimizer") in ("momentum", "nesterov") else None,
            "model_arguments": {},
            "sam_rows": given.get("batch_size", cls.model_fields["batch_size"].default),
        }
        return {key: None if key in whole and value == whole[key] else value for key, value in given.items()}

    @model_validator(mode="before")
    @classmethod
    def _own_code_of_this_run(cls, given: Any) -> Any:
        """A study's hashes, less those of functions that this run does not use: they are not part of its identity."""
        if not isinstance(given, Mapping) or not isinstance(given.get("own_code"), Mapping):
            return given
        used = {name: code for name, code in given["own_code"].items() if name in own_names(given)}
        return {**given, "own_code": used or None}

    @model_validator(mode="after")
    def _combination(self) -> RunSpec:
        facts = FACTS.get(self.dataset)  # an own dataset is checked when it is loaded
        if facts is not None and self.train_size > facts.train_size:
            raise ValueError(
                f"train_size is {self.train_size}; {self.dataset} has {facts.train_size} training examples"
            )
        if facts is not None and self.test_size is not None and self.test_size > facts.test_size:
            raise ValueError(f"test_size is {self.test_size}; {self.dataset} has {facts.test_size} test examples")
        self._check_own()
        self._check_images()
        left_over = self.train_size % self.batch_size
        if self.batch_size > self.train_size:
            raise ValueError(f"batch_size is {self.batch_size}; expected at most train_size {self.train_size}")
        if left_over:
            raise ValueError(
                f"train_size {self.train_size} is not a multiple of batch_size {self.batch_size}; the theory needs "
                f"equal batches: use train_size {self.train_size - left_over}"
            )
        if (self.epochs is None) == (self.updates is None):
            found = "both" if self.epochs is not None else "neither"
            raise ValueError(f"exactly one of epochs and updates must be given, found {found}")
        if self.updates is not None and self.updates % self.inner_steps:
            raise ValueError(
                f"updates {self.updates} is not a multiple of inner_steps {self.inner_steps}; "
                f"use updates {math.ceil(self.updates / self.inner_steps) * self.inner_steps}"
            )
        self._check_regularizers()
        for key in ("learning_rate", "strength", "weight_decay", "bare_learning_rate", "relative", "sam_radius"):
            value = getattr(self, key)
            if value > LARGEST or 0 < value < SMALLEST:
                raise ValueError(
                    f"{key} is {value!r}; expected at least 2^-126 and at most 2^127: fleets train in float32"
                )
        if self.evaluations > self.minibatches:
            raise ValueError(f"evaluations is {self.evaluations}; this run has only {self.minibatches} minibatches")
        return self

    def _check_own(self) -> None:
        """The keys that go with own models and with optimizers other than SGD."""
        if self.model_arguments is not None and not is_own(self.model):
            raise ValueError(f"model_arguments is given and model is {self.model}; it is for a model of your own")
        if self.momentum is not None and self.optimizer not in ("momentum", "nesterov"):
            raise ValueError(f"momentum is {self.momentum} and optimizer is {self.optimizer}; use momentum or nesterov")
        if self.optimizer != "sgd" and self.inner_steps > 1:
            raise ValueError(f"inner_steps is {self.inner_steps} and optimizer is {self.optimizer}; n-step SGD is SGD")

    def _check_regularizers(self) -> None:
        """The keys that go with a penalty on micro-batches, and with SAM; λ = 0 goes with all: it is part of grids."""
        rows, b, q = self.batch_size, self.micro_batch_size, self.sampled
        if self.strength and self.relative:
            raise ValueError(f"strength is {self.strength} and relative is {self.relative}; expected one of them")
        if self.sam_radius and (self.strength or self.relative):
            given = "strength" if self.strength else "relative"
            raise ValueError(
                f"sam_radius is {self.sam_radius} and {given} is {getattr(self, given)}; a run has SAM or a penalty"
            )
        if self.sam_rows is not None and not self.sam_radius:
            raise ValueError(f"sam_rows is {self.sam_rows} and sam_radius is 0; expected a radius greater than 0")
        if self.sam_rows is not None and self.sam_rows > rows:
            raise ValueError(f"sam_rows is {self.sam_rows}; expected at most batch_size {rows}")
        if q is not None and b is None:
            raise ValueError(f"sampled is {q} and micro_batch_size is not given; expected both")
        if b is not None and q is None and rows % b:
            raise ValueError(f"micro_batch_size is {b}; expected one that divides batch_size {rows}, or sampled")
        if b is not None and (q or 1) * b > rows:
            raise ValueError(f"{q or 1} micro-batches of {b} are more than batch_size {rows}; expected fewer rows")

    def _check_images(self) -> None:
        """The keys that need images, and those that a Wide-ResNet needs."""
        if is_own(self.dataset):
            unfit = [key for key, off in (("image_size", None), ("augmentation", "none")) if getattr(self, key) != off]
            if unfit and self.augmentation != "shift":
                raise ValueError(f"{unfit[0]} is {getattr(self, unfit[0])}; it is not for a dataset of your own")
            return
        shape = FACTS[self.dataset].shape
        images = len(shape) == 3
        pictures = [name for name, facts in FACTS.items() if len(facts.shape) == 3]
        if self.model == "wide_resnet":
            if not images:
                raise ValueError(
                    f"model is wide_resnet and dataset is {self.dataset}, which has no images; "
                    f"use model mlp, or dataset {' or '.join(pictures)}"
                )
            if self.depth < 10 or (self.depth - 4) % 6:
                raise ValueError(f"depth is {self.depth}; a wide_resnet needs depth 6n + 4: use 10, 16, 22, …")
            if self.width > 64:
                raise ValueError(f"width is {self.width}; of a wide_resnet it is the factor k of WRN-d-k: at most 64")
        if self.model == "conv1d":
            if images:
                raise ValueError(
                    f"model is conv1d and dataset is {self.dataset}, whose examples are images; "
                    "use model mlp or wide_resnet, or dataset mnist1d or mnist1d_16k"
                )
            if self.depth > MOST_CONVOLUTIONS:
                raise ValueError(
                    f"depth is {self.depth}; each layer of a conv1d halves its signal: use at most {MOST_CONVOLUTIONS}"
                )
        self._check_augmentation(pictures)
        if self.image_size is not None:
            if not images:
                raise ValueError(
                    f"image_size is {self.image_size} and dataset is {self.dataset}, which has no images; "
                    f"leave image_size out, or use dataset {' or '.join(pictures)}"
                )
            sizes = [size for size in range(4, shape[-1] + 1) if shape[-1] % size == 0]
            if self.image_size not in sizes:
                raise ValueError(
                    f"image_size is {self.image_size}; images of {self.dataset} can be averaged to "
                    f"{', '.join(map(str, sizes))}: use one of them"
                )

    def _check_augmentation(self, pictures: list[str]) -> None:
        shape, kind, amount = FACTS[self.dataset].shape, self.augmentation, self.augmentation_amount
        if kind == "crop_flip" and len(shape) != 3:
            raise ValueError(
                f"augmentation is crop_flip and dataset is {self.dataset}, which has no images; "
                f"use shift or none, or dataset {' or '.join(pictures)}"
            )
        if kind == "shift" and len(shape) != 1:
            raise ValueError(
                f"augmentation is {kind} and dataset is {self.dataset}, whose examples are images; "
                "use crop_flip or none, or dataset mnist1d or mnist1d_16k"
            )
        if amount is None:
            return
        if kind != "shift":
            raise ValueError(f"augmentation_amount is {amount} and augmentation is {kind}; it is for shift")
        if not (amount == int(amount) and amount <= (shape[0] - 1) // 2):
            raise ValueError(
                f"augmentation_amount is {amount}; a shift needs a whole number of samples, at most "
                f"{(shape[0] - 1) // 2}"
            )

    @property
    def momentum_used(self) -> float:
        """β of heavy ball or Nesterov momentum."""
        return MOMENTUM if self.momentum is None else self.momentum

    @property
    def batches_per_epoch(self) -> int:
        """m = N/B."""
        return self.train_size // self.batch_size

    @property
    def minibatches(self) -> int:
        """How many minibatches the whole run visits."""
        if self.epochs is not None:
            return self.epochs * self.batches_per_epoch
        assert self.updates is not None
        return self.updates // self.inner_steps

    @property
    def total_updates(self) -> int:
        return self.minibatches * self.inner_steps

    @property
    def penalized_updates(self) -> int:
        """Updates from the first on that have the penalty: those of `tacit.schedules.early`."""
        return max(1, round(self.penalty_until * self.total_updates))

    @property
    def bare_learning_rate(self) -> float:
        """α = ε/n, the rate of each of the n updates on one minibatch."""
        return self.learning_rate / self.inner_steps

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if key not in LATER or value != LATER[key]}

    @cached_property
    def hash(self) -> str:
        """The run's identity: 16 hex digits of the sha256 of its canonical JSON."""
        return digest(self.model_dump())


RUN_KEYS = (*RunSpec.model_fields, "bare_learning_rate")


def own_names(values: Mapping[str, Any]) -> list[str]:
    """The functions of the user's own that a run uses; `values` may also be a table whose keys hold lists."""
    given = [values.get(key) for key in ("dataset", "model", "schedule")]
    names = [name for value in given for name in (value if isinstance(value, list) else [value])]
    return [name for name in names if isinstance(name, str) and is_own(name)]


def make_run(values: Mapping[str, Any], *, where: str = "run") -> RunSpec:
    """The validated run, or one sentence that names the key."""
    try:
        return RunSpec.model_validate(dict(values))
    except ValidationError as error:
        raise InputError(error_message(error, where=where, known=RUN_KEYS, grid_keys=RUN_KEYS)) from None


def digest(value: Any) -> str:
    """16 hex digits of the sha256 of canonical JSON: sorted keys, no spaces, shortest exact floats."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:16]


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
