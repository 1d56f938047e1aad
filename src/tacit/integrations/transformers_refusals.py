"""Settings of Transformers' `Trainer` under which `PenaltyMixin` would be wrong or is untested, named in a sentence."""

from __future__ import annotations

from typing import Any

from tacit._util.errors import InputError
from tacit.nstep import NStepSGD
from tacit.penalty import FactoredSGD

DEVICES = ("NO", "MULTI_CPU", "MULTI_GPU")  # accelerate's names of one process, and of DDP


def refuse_settings(trainer: Any) -> None:
    """Called at construction, once `Trainer` has made its accelerator."""
    kind = trainer.accelerator.distributed_type.name
    if kind not in DEVICES:
        raise InputError(
            f"the trainer distributes by {kind}; this was tested with one device and with DDP. "
            "Start the script with torchrun, without DeepSpeed, FSDP and the like."
        )
    if trainer.args.n_gpu > 1:
        raise InputError(
            f"the trainer would put the model on {trainer.args.n_gpu} GPUs by DataParallel, which splits the batch "
            "inside the model. Start the script with torchrun, or make one GPU visible."
        )
    ours = next((kind for kind in type(trainer).__mro__ if kind.__module__.split(".")[0] == "trl"), None)
    if ours is not None:
        raise InputError(
            f"the trainer is TRL's {ours.__name__}; its fused loss has no second derivative, and every pass counts in "
            "what it logs. Use transformers.Trainer."
        )
    if getattr(trainer.args, "use_liger_kernel", False):
        raise InputError(
            "use_liger_kernel=True: its kernels compute gradients in the forward pass and have no second derivative. "
            "Use use_liger_kernel=False."
        )
    if "lomo" in str(trainer.args.optim).lower():
        raise InputError(f"optim={trainer.args.optim!s} updates parameters inside backward. Use another optimizer.")
    if isinstance(trainer.optimizer, (FactoredSGD, NStepSGD)):
        raise InputError(
            f"the optimizer is {type(trainer.optimizer).__name__}, which needs a closure; Trainer calls step without "
            "one. Use torch.optim.SGD."
        )


def refuse_order(kind: type, mixin: type, trainer: type) -> None:
    """Called when a class is made: `Trainer` first would raise before the mixin sees its argument."""
    order = kind.__mro__
    if trainer in order and order.index(mixin) > order.index(trainer):
        bases = [base.__name__ for base in kind.__bases__]
        first = next((base.__name__ for base in kind.__bases__ if issubclass(base, trainer)), "Trainer")
        raise InputError(
            f"class {kind.__name__}({', '.join(bases)}) has {mixin.__name__} behind Trainer, which does not know the "
            f"argument penalty. Use class {kind.__name__}({mixin.__name__}, {first})."
        )


def refuse_missing_init(trainer: Any) -> None:
    if "gradient_penalty" not in trainer.__dict__:
        raise InputError(
            f"{type(trainer).__name__}.__init__ did not call that of PenaltyMixin, so there is no penalty. "
            "Use super().__init__(…, penalty=dict(strength=…)) in it."
        )


def refuse_unreached_penalty(trainer: Any) -> None:
    """Called before each optimizer step: the first is refused where its gradient is the plain one."""
    if trainer._penalty_gradients:
        return
    name = type(trainer).__name__
    if trainer._penalty_calls:
        raise InputError(
            f"the loss of PenaltyMixin was computed, but {name}.training_step called backward on another tensor before "
            "the first optimizer step. Use the loss that self.compute_loss returns."
        )
    raise InputError(
        f"no call reached PenaltyMixin before the first optimizer step: {name}.training_step does not call "
        "self.compute_loss. Use self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch) in it."
    )
