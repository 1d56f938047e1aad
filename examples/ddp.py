"""The gradient penalty on several workers (DDP): an MLP on MNIST-1D, with and without it.

torchrun --nproc-per-node 2 examples/ddp.py [EPOCHS]    first checks, in float64, that workers are micro-batches
"""

import gc
import sys

import torch
import torch.distributed as dist
from mnist1d.data import get_dataset_args, make_dataset
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import tacit

BATCH_SIZE, LEARNING_RATE, STRENGTH = 32, 2**-3, 2**-2  # the batch of all workers together


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def check(x: Tensor, y: Tensor, part: Tensor) -> float:
    """‖workers' gradient − micro-batched gradient‖ over the norm of the latter."""
    alone, together = make_model().double(), DistributedDataParallel(make_model().double())
    penalty = tacit.GradientPenalty(alone, STRENGTH, micro_batch_size=len(x) // dist.get_world_size())
    penalty.backward(lambda x, y: F.cross_entropy(alone(x), y), x, y)
    tacit.GradientPenalty(together, STRENGTH).backward(lambda: F.cross_entropy(together(x[part]), y[part]))
    wanted, found = (torch.cat([p.grad.reshape(-1) for p in model.parameters()]) for model in (alone, together))
    return float((found - wanted).norm() / wanted.norm())


def main(epochs: int = 20) -> None:
    part = torch.arange(BATCH_SIZE).chunk(dist.get_world_size())[dist.get_rank()]  # this worker's rows of each batch
    say = print if dist.get_rank() == 0 else lambda *_: None
    data = make_dataset(get_dataset_args())  # MNIST-1D, made here: nothing is downloaded
    x, test_x = torch.tensor(data["x"][:1024]).float(), torch.tensor(data["x_test"]).float()
    y, test_y = torch.tensor(data["y"][:1024]), torch.tensor(data["y_test"])
    apart = check(x[:BATCH_SIZE].double(), y[:BATCH_SIZE], part)
    say(f"{dist.get_world_size()} workers against micro-batches on one device: relative difference {apart:.1e}")
    for strength in (0.0, STRENGTH):
        model = DistributedDataParallel(make_model())  # it also seeds the order of examples, alike on every worker
        optimizer, penalty = torch.optim.SGD(model.parameters(), LEARNING_RATE), tacit.GradientPenalty(model, strength)
        for rows in (rows[part] for _ in range(epochs) for rows in torch.randperm(len(x)).split(BATCH_SIZE)):
            optimizer.zero_grad()
            penalty.backward(lambda: F.cross_entropy(model(x[rows]), y[rows]))  # noqa: B023
            optimizer.step()
        right = (model.module(test_x).argmax(1) == test_y).double().mean()
        say(f"λ = {strength:<4} test accuracy {100 * right:.1f} %")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(*map(int, sys.argv[1:]))
    gc.collect()  # reference cycles of DDP hold the process group; its threads can abort the end: docs/distributed.md
    dist.destroy_process_group()
