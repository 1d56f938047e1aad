"""Workers on loopback for `test_distributed.py`: each scenario runs in every process, and returns tensors or a message.

`main` forks every worker of every world from one process, so that torch is imported once, and waits for them.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817

from cases import labels, numbers, spread, wide_net
from tacit import InputError

EXAMPLES = 16
STRENGTH = 0.3
Result = dict[str, Tensor] | str
SCENARIOS: dict[str, tuple[Callable[[int, int], Result], tuple[int, ...]]] = {}


def scenario(name: str, worlds: tuple[int, ...] = (2,)) -> Callable[[Any], Any]:
    def register(function: Callable[[int, int], Result]) -> Any:
        SCENARIOS[name] = (function, worlds)
        return function

    return register


def wide() -> nn.Module:
    return spread(wide_net()).double()


def batch(features: int = 12, step: int = 0) -> tuple[Tensor, Tensor]:
    return numbers(EXAMPLES, features, seed=1 + 10 * step), labels(EXAMPLES, 3, 2 + 10 * step)


def shard(rank: int, world: int, features: int = 12, step: int = 0) -> tuple[Tensor, Tensor]:
    inputs, targets = batch(features, step)
    size = EXAMPLES // world
    return inputs[rank * size : (rank + 1) * size], targets[rank * size : (rank + 1) * size]


def gradients(model: nn.Module) -> dict[str, Tensor]:
    module = model.module if isinstance(model, DDP) else model
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Callable[[], Tensor]:
    return lambda: F.cross_entropy(model(inputs), targets)


def message(act: Callable[[], Any], expected: type[Exception] = InputError) -> str:
    try:
        act()
    except expected as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


@contextmanager
def counted_reductions(ddp: DDP) -> Iterator[list[int]]:
    calls: list[int] = []

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP checks annotations, and refuses those of strings
        calls.append(bucket.index())
        return dist.all_reduce(bucket.buffer() / dist.get_world_size(), async_op=True).get_future().then(first_of)

    ddp.register_comm_hook(None, hook)
    yield calls


def first_of(future: Any) -> Tensor:
    value = future.value()
    return value[0] if isinstance(value, list) else value


def work(rank: int, world: int, folder: Path) -> None:
    import distributed_faults  # noqa: F401  # they put themselves into SCENARIOS
    import distributed_loss  # noqa: F401
    import distributed_sam  # noqa: F401
    import distributed_scenarios  # noqa: F401
    import distributed_shards  # noqa: F401

    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / f"store-{world}"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=150))
    tensors: dict[str, Tensor] = {}
    messages: dict[str, str] = {}
    for name, (function, worlds) in SCENARIOS.items():
        if world in worlds:
            _log(rank, name)
            result = function(rank, world)
            if isinstance(result, str):
                messages[name] = result
            else:
                tensors |= {f"{name}/{key}": value.detach().contiguous() for key, value in result.items()}
    save_file(copy.deepcopy(tensors), folder / f"{world}-{rank}.safetensors")
    (folder / f"{world}-{rank}.json").write_text(json.dumps(messages))
    dist.barrier()
    dist.destroy_process_group()


def _log(rank: int, name: str) -> None:
    if rank == 0:  # a test that hangs must say where
        print(name, file=sys.stderr, flush=True)


def main(folder: Path, worlds: list[int]) -> int:
    """The number of workers that failed; what the others found is in FOLDER/WORLD-RANK.safetensors and .json."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    for module in ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor.parallel"):
        importlib.import_module(module)  # some seconds, once and not in every worker
    failed = 0
    for world in worlds:
        children = []
        for rank in range(world):
            child = os.fork()
            if child == 0:
                try:
                    work(rank, world, folder)
                    code = 0
                except BaseException:
                    traceback.print_exc()
                    code = 1
                sys.stderr.flush()
                os._exit(code)
            children.append(child)
        failed += sum(os.waitpid(child, 0)[1] != 0 for child in children)
    return failed
