"""The tasks and arms of `judged_search.py`: models, data and losses, and the loop of one run through the public API."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pydoc_data import topics
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tacit
from tacit.studies.data.load import load


@dataclass(frozen=True)
class Setting:
    rate: float
    decay: float
    dropout: float
    own: float = 0.0


@dataclass(frozen=True)
class Arm:
    """What an arm adds to the loop; `own` is where its own value starts, and its value untuned."""

    own: float = 0.0
    smoothing: bool = False
    stepper: Callable[[nn.Module, float, int, int], Any] | None = None
    length: float = 1.0  # of a run, in plain runs


def sam(model: nn.Module, own: float, rows: int, seed: int, *, sampled: int | None = None) -> Any:
    return tacit.SharpnessAware(model, own, sampled=sampled, seed=seed)


def penalty(model: nn.Module, own: float, rows: int, seed: int, *, sampled: bool, relative: bool = False) -> Any:
    strength = tacit.Relative(own) if relative else own
    return tacit.GradientPenalty(
        model, strength, micro_batch_size=rows, sampled=1 if sampled else None, seed=seed, check_every=0
    )


def arms(task: str) -> dict[str, Arm]:
    strength, sam_rows = {"transformer": (0.03, 8), "fashion-noisy": (0.125, 32), "mnist1d": (0.125, 16)}[task]
    return {  # rivals first
        "plain": Arm(),
        "plain, a quarter longer": Arm(length=1.25),
        "label smoothing": Arm(0.1, smoothing=True),
        "SAM": Arm(0.1, stepper=sam),
        "SAM, drawn rows": Arm(0.1, stepper=functools.partial(sam, sampled=sam_rows)),
        "whole penalty": Arm(strength, stepper=functools.partial(penalty, sampled=False)),
        "sampled penalty": Arm(strength, stepper=functools.partial(penalty, sampled=True)),
        "relative strength": Arm(0.4, stepper=functools.partial(penalty, sampled=True, relative=True)),
    }


class Transformer(nn.Module):
    """Two pre-norm layers of width 64 over 64 characters; a score for every next character."""

    def __init__(self, characters: int, dropout: float, *, width: int = 64, context: int = 64) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(characters, width), nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context), persistent=False)

    def forward(self, characters: Tensor) -> Tensor:
        at = torch.arange(characters.shape[1], device=characters.device)
        hidden = self.layers(self.embedding(characters) + self.position(at), mask=self.mask, is_causal=True)
        return self.head(self.norm(hidden)).transpose(1, 2)  # (rows, characters, context): what cross_entropy takes


class TransformerTask:
    """Next characters of the help texts that ship with Python; the score is the loss, lower is better."""

    name, rows, steps, lower_is_better = "transformer", 2, 1200, True
    searched_runs, first_decay, chance = 12, 0.1, math.log(103)  # 103 characters
    axes = ("rate", "own", "dropout", "decay")
    start, usual = Setting(4e-3, 0.1, 0.1), Setting(1e-3, 0.0, 0.0)

    def __init__(self) -> None:
        text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
        self.facts = {"text_sha256": hashlib.sha256(text.encode()).hexdigest(), "characters": len(text)}
        numbers = {character: number for number, character in enumerate(sorted(set(text)))}
        self.characters = len(numbers)
        coded = torch.tensor([numbers[character] for character in text])
        self.train, self.parts = coded[:80_000], {"validation": coded[80_000:120_000], "test": coded[120_000:200_000]}

    def model(self, setting: Setting) -> nn.Module:
        return Transformer(self.characters, setting.dropout)

    def optimizer(self, model: nn.Module, setting: Setting) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=setting.rate, weight_decay=setting.decay)

    def batch(self, draws: torch.Generator) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(self.train) - 64, (32,), generator=draws)
        windows = self.train[starts[:, None] + torch.arange(65)]
        return windows[:, :-1], windows[:, 1:]

    def score(self, model: nn.Module, part: str) -> float:
        windows = self.parts[part].unfold(0, 65, 64)
        losses = [F.cross_entropy(model(each[:, :-1]), each[:, 1:]) * len(each) for each in windows.split(64)]
        return float(sum(losses) / len(windows))


class FashionTask:
    """10,240 images, 30 % of their labels random; the score is the accuracy. Validation: other training images."""

    name, rows, steps, lower_is_better = "fashion-noisy", 32, 1000, False
    searched_runs, first_decay, chance = 16, 0.001, 0.1
    axes = ("rate", "own", "decay")
    start, usual = Setting(2**-5, 0.001, 0.0), Setting(2**-6, 0.0, 0.0)

    def __init__(self) -> None:
        data = load("fashion_mnist")
        images, labels = torch.tensor(data.train_inputs), torch.tensor(data.train_targets, dtype=torch.long)
        self.facts = {"examples": 10_240, "label_noise": 0.3}
        self.inputs, self.targets = self._flat(images[:10_240]), labels[:10_240].clone()
        draws = torch.Generator().manual_seed(0)
        noisy = torch.randperm(10_240, generator=draws)[:3072]
        self.targets[noisy] = torch.randint(10, (3072,), generator=draws)
        test = self._flat(torch.tensor(data.test_inputs)), torch.tensor(data.test_targets, dtype=torch.long)
        self.parts = {"validation": (self._flat(images[50_000:]), labels[50_000:]), "test": test}

    @staticmethod
    def _flat(images: Tensor) -> Tensor:
        return (images.flatten(1).float() / 255 - 0.2860) / 0.3530  # mean and deviation of the training images

    def model(self, setting: Setting) -> nn.Module:
        layers = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
        return nn.Sequential(*layers)

    def optimizer(self, model: nn.Module, setting: Setting) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=setting.rate, momentum=0.9, weight_decay=setting.decay)

    def batch(self, draws: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(self.inputs), (512,), generator=draws)
        return self.inputs[chosen], self.targets[chosen]

    def score(self, model: nn.Module, part: str) -> float:
        inputs, targets = self.parts[part]
        return float((model(inputs).argmax(1) == targets).double().mean())


class Mnist1dTask:
    """Task 1 of the plan as a plain loop, for its prices only: its runs are those of `studies/judged`."""

    name, rows, steps, usual = "mnist1d", 16, 3200, Setting(2**-6, 0.0, 0.0)

    def __init__(self) -> None:
        data = load("mnist1d")
        self.inputs = torch.tensor(data.train_inputs).flatten(1).float()
        self.targets = torch.tensor(data.train_targets, dtype=torch.long)

    def model(self, setting: Setting) -> nn.Module:
        widths = [(40, 64), (64, 64), (64, 64)]
        hidden = [layer for sizes in widths for layer in (nn.Linear(*sizes), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(64, 10))

    optimizer = FashionTask.optimizer

    def batch(self, draws: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(self.inputs), (256,), generator=draws)
        return self.inputs[chosen], self.targets[chosen]


TASKS: dict[str, type[Any]] = {task.name: task for task in (TransformerTask, FashionTask)}


class Loop:
    """One run as a practitioner would write it; `step` is one update."""

    def __init__(self, task: Any, arm: Arm, setting: Setting, seed: int) -> None:
        torch.manual_seed(seed)  # initialisation and dropout
        self.task, self.draws = task, torch.Generator().manual_seed(seed)
        self.steps = round(arm.length * task.steps)
        self.model = task.model(setting)
        self.optimizer = task.optimizer(self.model, setting)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, setting.rate, total_steps=self.steps, pct_start=0.1, cycle_momentum=False
        )
        smoothing = setting.own if arm.smoothing else 0.0
        self.loss = lambda inputs, targets: F.cross_entropy(self.model(inputs), targets, label_smoothing=smoothing)
        self.stepper = None if arm.stepper is None else arm.stepper(self.model, setting.own, task.rows, seed)

    def step(self) -> None:
        batch = self.task.batch(self.draws)
        self.optimizer.zero_grad()
        if self.stepper is None:
            self.loss(*batch).backward()
        else:
            self.stepper.backward(self.loss, *batch)
        self.optimizer.step()
        self.schedule.step()

    def train(self) -> None:
        for _ in range(self.steps):
            self.step()

    @torch.no_grad()
    def score(self, part: str) -> float:
        self.model.eval()
        value = self.task.score(self.model, part)
        self.model.train()
        return value
