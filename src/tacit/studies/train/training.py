"""The one training loop: a fleet of runs of equal shape, advanced minibatch by minibatch.

A fleet is a pure function of its runs and the data. Its whole state is the parameters, the position and what was
seen so far: orders are drawn from (seed, epoch), so a checkpoint needs no generator. When it pauses, and how often it
is checkpointed, changes nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit._util.own_code import check_unchanged, import_function, is_own
from tacit.batching import epoch_batches
from tacit.schedules import schedule
from tacit.studies.data.datasets import facts_of
from tacit.studies.data.facts import Data
from tacit.studies.describe.spec import RunSpec
from tacit.studies.train import checkpoint, devices, examples, program, weights
from tacit.studies.train.examples import Examples
from tacit.studies.train.packing import Fleet

CHECK_EVERY = 50  # minibatches between two looks for divergence
DIVERGED_LOSS = 1e4  # a mean cross-entropy that no training run comes back from: the softmax starts near 2.3


class Training:
    """A fleet in the middle of training."""

    def __init__(self, fleet: Fleet, data: Data, *, dtype: torch.dtype = torch.float32) -> None:
        self.fleet, self.runs, self.dtype = fleet, fleet.runs, dtype
        self.first: RunSpec = fleet.runs[0]  # for everything that is part of the shape
        if self.first.own_code:
            check_unchanged(self.first.own_code)
        facts = facts_of(self.first.dataset, data)
        self.device = devices.choose()
        self.train, self.test = examples.prepare(data, self.first, facts, device=self.device, dtype=dtype)
        self.program = program.make(self.runs, facts, device=self.device, dtype=dtype)
        self.schedules = [rate_factor(run) for run in self.runs]
        self.bare_rates = [run.bare_learning_rate for run in self.runs]
        self.augmented = examples.augmented(self.runs, self.train.inputs, facts)
        self.evaluate_at = {
            math.ceil(self.first.minibatches * k / self.first.evaluations) for k in range(1, self.first.evaluations + 1)
        }
        # What changes while training:
        self.position = 0  # minibatches done
        self.diverged_at: list[int | None] = [None] * len(self.runs)
        self.history: list[dict[str, list[float]]] = [{name: [] for name in HISTORY} for _ in self.runs]
        self._cpu_before, self._cpu_started = 0.0, time.process_time()
        # What follows from it:
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.long)

    # -- training -------------------------------------------------------------------------------------------------
    def advance(self, *, until: int | None = None, pause: Callable[[Training], None] | None = None) -> None:
        """Train to minibatch `until`, or to the end."""
        end = self.first.minibatches if until is None else min(until, self.first.minibatches)
        while self.position < end and not self.finished:
            logits, labels = self._minibatch()
            self.position += 1
            if self.position in self.evaluate_at:
                self._evaluate()
            elif self.position % CHECK_EVERY == 0:
                self._freeze_diverged(self._losses(logits, labels.view(len(self.runs), -1)).mean(1))
            if pause is not None and self.position % self.program.pause_every == 0:
                pause(self)

    @property
    def finished(self) -> bool:
        return self.position == self.first.minibatches or all(at is not None for at in self.diverged_at)

    @property
    def cpu_seconds(self) -> float:
        """CPU time since the fleet began, with that of earlier processes whose checkpoints this one goes on from."""
        return self._cpu_before + time.process_time() - self._cpu_started

    def _minibatch(self) -> tuple[Tensor, Tensor]:
        """`inner_steps` updates on the next minibatch of every run; the logits before the last of them."""
        inputs, labels = self._batch(self.position)
        rates = self._rates_at(self.position)
        for _ in range(self.first.inner_steps):
            logits = self.program.update(inputs, labels, rates=rates)
        return logits, labels

    def _batch(self, position: int) -> tuple[Tensor, Tensor]:
        """Inputs and class numbers of the minibatches of all runs at this position, augmented as they are trained on.

        Depends on (seed, position) alone: n-step SGD stays on one augmented minibatch, and C_reg sees it again.
        """
        numbers = self._examples(position)
        return self.augmented(numbers, position), self.train.targets.index_select(0, numbers)

    def _examples(self, position: int) -> Tensor:
        """Indices (runs · B) of the minibatch at this position."""
        epoch, within = divmod(position, self.first.batches_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._draw(epoch)
        return self._order[within]

    def _draw(self, epoch: int) -> Tensor:
        """Indices (m, runs · B) of one epoch, from every run's own seed and order."""
        size, batch = self.first.train_size, self.first.batch_size
        drawn = [
            torch.stack(epoch_batches(size, batch, order=run.order, seed=run.seed, epoch=epoch)) for run in self.runs
        ]
        return torch.stack(drawn, dim=1).reshape(self.first.batches_per_epoch, -1).to(self.device)

    def _rates_at(self, position: int) -> list[float]:
        """Rates follow the schedule minibatch by minibatch; a frozen run has rate 0."""
        return [
            rate * factor(position) if at is None else 0.0
            for rate, factor, at in zip(self.bare_rates, self.schedules, self.diverged_at, strict=True)
        ]

    # -- evaluation -----------------------------------------------------------------------------------------------
    def _evaluate(self) -> None:
        train_accuracy, loss = self._accuracy_and_loss(self.train)
        test_accuracy, _ = self._accuracy_and_loss(self.test)
        full_loss = loss + self.program.decay_losses()
        self._freeze_diverged(full_loss)
        updates = self.position * self.first.inner_steps
        epochs = self.position / self.first.batches_per_epoch
        seen = zip(test_accuracy.tolist(), train_accuracy.tolist(), full_loss.tolist(), strict=True)
        for at, history, values in zip(self.diverged_at, self.history, seen, strict=True):
            if at is None:
                for name, value in zip(HISTORY, (updates, epochs, *values), strict=True):
                    history[name].append(value)

    def _accuracy_and_loss(self, judged: Examples) -> tuple[Tensor, Tensor]:
        """Share of right answers and mean cross-entropy, per run, in float64; no example is augmented."""
        right = torch.zeros(len(self.runs), dtype=torch.float64)
        loss = torch.zeros(len(self.runs), dtype=torch.float64)
        rows = self.program.evaluation_rows
        for start in range(0, len(judged), rows):
            labels = judged.targets[start : start + rows]
            logits = self.program.outputs(judged.inputs.between(start, start + rows))
            right += (logits.argmax(2) == labels).sum(1).cpu()
            loss += self._losses(logits, labels.expand(len(self.runs), -1)).cpu().sum(1, dtype=torch.float64)
        return right / len(judged), loss / len(judged)

    def _losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of every row, (runs, rows)."""
        rows, smoothing = logits.flatten(0, 1), self.first.label_smoothing
        found = F.cross_entropy(rows, labels.flatten(), reduction="none", label_smoothing=smoothing)
        return found.view(labels.shape)

    def _freeze_diverged(self, loss: Tensor) -> None:
        """A run whose loss is not a number, or beyond return, keeps what was seen and trains no further."""
        for number, value in enumerate(loss.tolist()):
            if self.diverged_at[number] is None and not value < DIVERGED_LOSS:
                self.diverged_at[number] = self.position * self.first.inner_steps
                self.program.clear(number)

    def implicit_regularizers(self) -> list[float]:
        """C_reg = (1/4m) Σₖ ‖∇Ĉₖ‖² of every run, over the minibatches of the epoch it is in           (Eq. 1)."""
        last = self.position - 1
        start = last - last % self.first.batches_per_epoch
        total = torch.zeros(len(self.runs), dtype=torch.float64)
        for position in range(start, start + self.first.batches_per_epoch):
            total += self.program.squared_gradient_norms(*self._batch(position))
        return (total / (4 * self.first.batches_per_epoch)).tolist()

    def rows(self) -> list[dict[str, Any]]:
        """One row per run: its spec, its results, and how it ended."""
        regularizers = self.implicit_regularizers()
        return [self._row(number, regularizer) for number, regularizer in enumerate(regularizers)]

    def _row(self, number: int, regularizer: float) -> dict[str, Any]:
        run, at, history = self.runs[number], self.diverged_at[number], self.history[number]
        updates = self.position * self.first.inner_steps if at is None else at
        final = {name: history[name][-1] if at is None else None for name in HISTORY}
        return {
            "run": run.hash,
            "fleet": self.fleet.id,
            "spec": run.model_dump(),
            "status": "finished" if at is None else "diverged",
            "diverged_at": at,
            "updates": updates,
            "epochs": updates / (run.inner_steps * run.batches_per_epoch),
            "best_test_accuracy": max(history["test_accuracy"], default=None),
            "final_test_accuracy": final["test_accuracy"],
            "best_train_accuracy": max(history["train_accuracy"], default=None),
            "final_train_accuracy": final["train_accuracy"],
            "full_loss": final["full_loss"],
            "implicit_regularizer": regularizer if at is None and math.isfinite(regularizer) else None,
            "history": history,
        }

    def weights(self) -> dict[str, bytes]:
        """The parameters of each run that did not diverge, as a safetensors file, by the run's hash."""
        return {
            run.hash: weights.encode(run, self.program.weights(number))
            for number, run in enumerate(self.runs)
            if self.diverged_at[number] is None
        }

    # -- checkpoints ----------------------------------------------------------------------------------------------
    def checkpoint(self) -> bytes:
        arrays = {f"{at:04}": tensor.cpu().contiguous().numpy() for at, tensor in enumerate(self.program.tensors())}
        return checkpoint.encode(arrays, {**self._made_by(), **self._progress()})

    def restore(self, content: bytes) -> None:
        """Go on from a checkpoint of this fleet; DamagedCheckpointError when it is not one."""
        arrays, state = checkpoint.decode(content)
        if any(state.get(key) != value for key, value in self._made_by().items()):
            raise checkpoint.DamagedCheckpointError("the checkpoint is of another fleet or another version.")
        self.position, self.diverged_at, self.history = state["position"], state["diverged_at"], state["history"]
        self._cpu_before += float(state.get("cpu_seconds", 0.0))
        for at, tensor in enumerate(self.program.tensors()):
            tensor.copy_(torch.from_numpy(arrays[f"{at:04}"]))  # into our own memory: alignment decides rounding
        self.program.resumed_at(self.position * self.first.inner_steps)

    def _made_by(self) -> dict[str, Any]:
        """Rounding may differ between versions of torch, so they do not share checkpoints."""
        return {"fleet": self.fleet.id, "torch": torch.__version__, "dtype": str(self.dtype)}

    def _progress(self) -> dict[str, Any]:
        return {
            "position": self.position,
            "done": self.position / self.first.minibatches,
            "diverged_at": self.diverged_at,
            "history": self.history,
            "cpu_seconds": round(self.cpu_seconds, 3),
        }


def rate_factor(run: RunSpec) -> Callable[[int], float]:
    """The factor on the learning rate as a function of the minibatch."""
    if not is_own(run.schedule):
        return schedule(run.schedule, run.minibatches)
    function = import_function(run.schedule)
    return lambda step: float(function(step, run.minibatches))


HISTORY = ("updates", "epochs", "test_accuracy", "train_accuracy", "full_loss")
