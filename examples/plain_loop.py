"""A plain PyTorch loop that keeps its training accuracy: plain, with the sampled penalty, and with sampled SAM.

python examples/plain_loop.py [UPDATES]
"""

import sys

import torch
from mnist1d.data import get_dataset_args, make_dataset
from torch import Tensor, nn
from torch.nn import functional as F

import tacit

BATCH_SIZE, LEARNING_RATE = 256, 2**-6
WAYS = {
    "plain": lambda model: tacit.GradientPenalty(model, strength=0.0),
    "sampled penalty": lambda model: tacit.GradientPenalty(model, tacit.Relative(0.4), micro_batch_size=16, sampled=1),
    "sampled SAM": lambda model: tacit.SharpnessAware(model, radius=0.1, sampled=16),
}


def train(way: str, inputs: Tensor, targets: Tensor, *, updates: int) -> tuple[nn.Module, float]:
    """The trained model, and its accuracy on the batches as it saw them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    step, correct = WAYS[way](model), 0
    for _ in range(updates):
        rows = torch.randint(len(inputs), (BATCH_SIZE,))

        def closure(x: Tensor, y: Tensor) -> Tensor:
            closure.outputs = model(x)  # the last call sees the whole batch
            return F.cross_entropy(closure.outputs, y)

        optimizer.zero_grad()
        step.backward(closure, inputs[rows], targets[rows])
        optimizer.step()
        correct += int((closure.outputs.argmax(1) == targets[rows]).sum())
    return model, correct / (updates * BATCH_SIZE)


def main(updates: int = 1500) -> None:
    data = make_dataset(get_dataset_args())  # MNIST-1D, made here: nothing is downloaded
    inputs, targets = torch.tensor(data["x"][:1024]).float(), torch.tensor(data["y"][:1024])
    test_inputs, test_targets = torch.tensor(data["x_test"]).float(), torch.tensor(data["y_test"])
    for way in WAYS:
        model, training = train(way, inputs, targets, updates=updates)
        test = float((model(test_inputs).argmax(1) == test_targets).double().mean())
        print(f"{way:15}  training {100 * training:.1f} %  test {100 * test:.1f} %")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
