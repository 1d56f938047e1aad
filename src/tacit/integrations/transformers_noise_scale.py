"""`tacit.Recorder` as a callback of Transformers' `Trainer`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from tacit._util.errors import InputError
from tacit.diagnostics import Recorder
from tacit.integrations.frameworks import load
from tacit.integrations.replaced import replaced

_transformers: Any = load("transformers")


class NoiseScale(_transformers.TrainerCallback):  # type: ignore[misc]
    """`trainer.add_callback(NoiseScale(trainer, every=100))` logs Γ, ‖∇C‖² and the noise scale during training.

    It takes the trainer because `Trainer` tells its callbacks about gradients only after it has clipped them, and the
    noise scale needs them whole. `options` are those of `tacit.Recorder`; the batch of one optimizer step, over all
    accumulated batches and devices, and the number of training examples are read off the trainer, unless given.
    Gradients that carry a penalty are left out. The rows are in `recorder.rows`; checkpoints do not hold them.
    """

    def __init__(
        self, trainer: Any, *, batch_size: int | None = None, train_size: int | None = None, **options: Any
    ) -> None:
        self.trainer, self.options = trainer, options
        self.batch_size, self.train_size = batch_size, train_size
        self.recorder: Recorder | None = None
        self._wrapping = ExitStack()

    def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        trainer = self.trainer
        if trainer.accelerator.scaler is not None:
            raise InputError("gradients of float16 are scaled where this callback reads them. Use bf16=True.")
        devices, accumulated = trainer.accelerator.num_processes, args.gradient_accumulation_steps
        batch_size = self.batch_size or args.per_device_train_batch_size * devices * accumulated
        self.recorder = Recorder(
            trainer.model, batch_size=batch_size, train_size=self.train_size or _examples(trainer), **self.options
        )
        step = trainer.training_step

        def training_step(*arguments: Any, **more: Any) -> Any:
            loss = step(*arguments, **more)
            if trainer.accelerator.sync_gradients:  # the last of the accumulated batches: gradients are complete
                self._record()
            return loss

        self._wrapping.enter_context(replaced(trainer, "training_step", training_step))

    def on_train_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self._wrapping.close()

    def _record(self) -> None:
        assert self.recorder is not None
        known = len(self.recorder.rows)
        self.recorder.after_backward()
        for row in self.recorder.rows[known:]:
            self.trainer.log({f"tacit/{name}": value for name, value in row.items() if isinstance(value, float)})


def _examples(trainer: Any) -> int:
    try:
        return len(trainer.train_dataset)
    except TypeError:
        raise InputError("the training dataset has no length. Use NoiseScale(trainer, train_size=…).") from None
