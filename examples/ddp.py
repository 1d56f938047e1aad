"""The gradient penalty on several workers: an MLP on MNIST-1D, with and without it.

    torchrun --nproc-per-node 2 examples/ddp.py

First it checks, in float64, that the workers' gradient is the one of micro-batches on a single device. Then it trains
two models, which differ in nothing but the penalty, and prints what they get right on the test set. It runs on CPUs
(gloo), or on GPUs where there are any (nccl, one per worker).
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import tacit
from tacit.studies.data.load import load

TRAIN_SIZE, BATCH_SIZE = 1024, 32  # of all workers together
LEARNING_RATE, STRENGTH = 2**-3, 2**-2


def model_of(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        hidden = [layer for fan_in in (40, 64, 64) for layer in (nn.Linear(fan_in, 64), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(64, 10))


def wrapped(model: nn.Module, device: torch.device) -> DistributedDataParallel:
    return DistributedDataParallel(model.to(device), device_ids=[device] if device.type == "cuda" else None)


def own_part(*tensors: Tensor) -> list[Tensor]:
    """This worker's equal share of the batch; `DistributedSampler(drop_last=True)` does the same for a loader."""
    size = len(tensors[0]) // dist.get_world_size()
    return [tensor[dist.get_rank() * size :][:size] for tensor in tensors]


def difference_from_one_device(inputs: Tensor, targets: Tensor) -> float:
    """‖workers' gradient − micro-batched gradient‖ over the norm of the latter."""
    alone = model_of(seed=0).double().to(inputs.device)
    penalty = tacit.GradientPenalty(alone, STRENGTH, micro_batch_size=len(inputs) // dist.get_world_size())
    penalty.backward(lambda x, y: F.cross_entropy(alone(x), y), inputs, targets)

    together = wrapped(model_of(seed=0).double(), inputs.device)
    part, labels = own_part(inputs, targets)
    tacit.GradientPenalty(together, STRENGTH).backward(lambda: F.cross_entropy(together(part), labels))

    expected, found = (
        torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()]) for model in (alone, together)
    )
    return float((found - expected).norm() / expected.norm())


def train(inputs: Tensor, targets: Tensor, *, strength: float, epochs: int) -> nn.Module:
    model = wrapped(model_of(seed=0), inputs.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    penalty = tacit.GradientPenalty(model, strength)
    order = torch.Generator().manual_seed(0)  # the same on every worker, or their parts would overlap
    for _ in range(epochs):
        for chosen in torch.randperm(len(inputs), generator=order).split(BATCH_SIZE):
            part, labels = own_part(inputs[chosen], targets[chosen])
            optimizer.zero_grad()
            penalty.backward(lambda: F.cross_entropy(model(part), labels))  # noqa: B023
            optimizer.step()
    return model.module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    epochs = parser.parse_args().epochs
    rank = int(os.environ.get("LOCAL_RANK", 0))
    device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    if BATCH_SIZE % dist.get_world_size():
        raise SystemExit(f"{dist.get_world_size()} workers do not divide a batch of {BATCH_SIZE}; use a divisor of it.")
    say = print if dist.get_rank() == 0 else lambda *_: None

    data = load("mnist1d")
    inputs, test_inputs = (torch.from_numpy(x).to(device) for x in (data.train_inputs[:TRAIN_SIZE], data.test_inputs))
    targets, test_targets = (
        torch.from_numpy(y).to(device) for y in (data.train_targets[:TRAIN_SIZE], data.test_targets)
    )

    apart = difference_from_one_device(inputs[:BATCH_SIZE].double(), targets[:BATCH_SIZE])
    say(f"{dist.get_world_size()} workers against micro-batches on one device: relative difference {apart:.1e}")
    assert apart < 1e-10, "the workers' gradient is not the one of micro-batches"

    for strength in (0.0, STRENGTH):
        model = train(inputs, targets, strength=strength, epochs=epochs)
        with torch.no_grad():
            right = (model(test_inputs).argmax(1) == test_targets).double().mean()
        say(f"λ = {strength:<4} test accuracy {100 * right:.1f} %")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
