"""Wrappers and settings of distributed training that the penalty cannot serve, as sentences that name them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch.distributed as dist
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from tacit._util.errors import InputError

REMEDY = "the penalty needs whole parameters. Use DistributedDataParallel."


def refuse_shards(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], *, method: str | None, owner: str = "FactoredSGD"
) -> None:
    """Sharded parameters (FSDP in both versions, tensor parallelism), and replication by `replicate`.

    FSDP2 is taken by `finite_difference`, which needs gradients only. `owner` is who asks, without a method.
    """
    if not in_a_group():  # nothing below exists without one, and this runs at every step
        return
    for module in model.modules():
        kinds = {kind.__name__ for kind in type(module).__mro__}
        if "FullyShardedDataParallel" in kinds:
            raise InputError(f"the model is wrapped in FullyShardedDataParallel (FSDP), which shards it; {REMEDY}")
        if "replicate" in _composed(module):
            raise InputError(f"the model went through replicate, which reduces in hooks of its own; {REMEDY}")
        if "FSDPModule" in kinds:
            if method == "finite_difference":
                return
            asked = owner if method is None else f"method={method!r}"
            raise InputError(
                f"the model went through fully_shard (FSDP2), which shards it; {asked} needs whole parameters. "
                "Use method='finite_difference' of GradientPenalty, or DistributedDataParallel."
            )
    for name, parameter in parameters.items():
        if type(parameter.data).__name__ == "DTensor":
            raise InputError(f"parameter {name!r} is a DTensor (tensor parallel), a shard; {REMEDY}")


def in_a_group() -> bool:
    return dist.is_available() and dist.is_initialized()


def worker_number() -> int:
    """This worker's rank; 0 without a process group."""
    return dist.get_rank() if in_a_group() else 0


def _composed(module: nn.Module) -> Iterable[str]:
    """Names of the functions of torch.distributed that were applied to this module."""
    try:
        from torch.distributed._composable.contract import _get_registry
    except ImportError:
        return ()
    return _get_registry(module) or ()


def refuse_wrapped(model: nn.Module, *, norm_of: str) -> None:
    """`refuse_settings` for every DDP among the model's modules."""
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            refuse_settings(module, norm_of=norm_of)


def refuse_settings(ddp: DistributedDataParallel, *, norm_of: str) -> None:
    """Settings of DDP under which handing over one finished gradient would be wrong."""
    if ddp._join_config.enable:
        raise _refused("its join() context", "Use drop_last=True instead, so that no rank runs out of batches early.")
    if ddp.static_graph and not ddp.require_backward_grad_sync:
        raise _refused("static_graph in no_sync()", "DDP miscounts passes there: use static_graph=False.")
    if getattr(ddp, "mixed_precision", None) is not None:
        raise _refused("mixed_precision", "Use torch.autocast in the closure.")
    if getattr(ddp, "_use_python_reducer", False):
        raise _refused("compiled autograd's reducer", "Leave torch._dynamo.config.optimize_ddp at its default.")
    if getattr(ddp, "_delay_all_reduce_params", None):
        raise _refused("delay_all_reduce_named_params", "Leave it out.")
    if any(hasattr(parameter, "_in_backward_optimizers") for parameter in ddp.module.parameters()):
        raise _refused("an optimizer inside backward", "Call the optimizer's step after penalty.backward.")
    if norm_of == "global_batch" and getattr(ddp, "_comm_hooks", None):
        raise _refused(
            "a communication hook", "With norm_of='global_batch' leave it out: the gradient must be a plain mean."
        )
    if dist.get_world_size(ddp.process_group) > 1:
        for name, module in ddp.module.named_modules():
            if isinstance(module, nn.SyncBatchNorm):
                raise InputError(
                    f"layer {name!r} is a SyncBatchNorm, which mixes the workers' batches and has no second "
                    "derivative. Use BatchNorm or another norm."
                )


def refuse_ddp(modules: Iterable[nn.Module]) -> None:
    for module in modules:
        if isinstance(module, DistributedDataParallel):
            raise InputError(
                "the model is a DistributedDataParallel, which synchronises gradients that FactoredSGD never forms. "
                "Use GradientPenalty with torch.optim.SGD."
            )


@contextmanager
def without_ddp() -> Iterator[None]:
    """Inside, calling a DDP module is refused: FactoredSGD may hold the bare model and its closure the wrapped one."""
    if not in_a_group():
        yield
        return
    watch = register_module_forward_pre_hook(lambda module, inputs: refuse_ddp((module,)))
    try:
        yield
    finally:
        watch.remove()


def _refused(setting: str, remedy: str) -> InputError:
    return InputError(
        f"the model's DistributedDataParallel uses {setting}, which the penalty does not support. {remedy}"
    )
