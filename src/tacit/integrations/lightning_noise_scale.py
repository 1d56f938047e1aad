"""`tacit.Recorder` as a callback of Lightning's `Trainer`."""

from __future__ import annotations

from typing import Any

from tacit._util.errors import InputError
from tacit.diagnostics import Recorder
from tacit.integrations.frameworks import load

_lightning: Any = load("lightning.pytorch")


class NoiseScale(_lightning.Callback):  # type: ignore[misc]
    """`Trainer(callbacks=[NoiseScale(every=100)])` logs Γ, ‖∇C‖² and the noise scale from gradients of the training.

    `options` are those of `tacit.Recorder`. The batch of one optimizer step, over all accumulated batches and devices,
    is read off the trainer, and the number of training examples off its dataset, unless given. Gradients are read
    after they are unscaled and before they are clipped; those that carry a penalty are left out. The rows are in
    `recorder.rows`, and checkpoints hold them.
    """

    def __init__(self, *, batch_size: int | None = None, train_size: int | None = None, **options: Any) -> None:
        self.batch_size, self.train_size, self.options = batch_size, train_size, options
        self.recorder: Recorder | None = None
        self._state: dict[str, Any] = {}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        per_device = getattr(trainer.train_dataloader, "batch_size", None)
        batch_size, train_size = self.batch_size, self.train_size
        if batch_size is None:
            if per_device is None:
                raise InputError("the batch size cannot be read off the training loader. Use NoiseScale(batch_size=…).")
            batch_size = per_device * trainer.accumulate_grad_batches * trainer.world_size
        if train_size is None:
            try:
                train_size = len(trainer.train_dataloader.dataset)
            except (AttributeError, TypeError):
                raise InputError("the training dataset has no length. Use NoiseScale(train_size=…).") from None
        self.recorder = Recorder(pl_module, batch_size=batch_size, train_size=train_size, **self.options)
        if self._state:
            self.recorder.load_state_dict(self._state)

    def state_dict(self) -> dict[str, Any]:
        return self._state if self.recorder is None else self.recorder.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._state = state_dict

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        assert self.recorder is not None
        known = len(self.recorder.rows)
        self.recorder.after_backward()
        for row in self.recorder.rows[known:]:
            for name, value in row.items():
                if isinstance(value, float):
                    pl_module.log(f"tacit/{name}", value)
