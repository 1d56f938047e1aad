"""A plain PyTorch loop with the gradient penalty: an MLP on MNIST-1D, with and without it.

python examples/plain_loop.py [EPOCHS]
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F

import tacit
from tacit.studies.data.load import load

BATCH_SIZE, LEARNING_RATE, STRENGTH = 32, 2**-4, 2**-3


def train(inputs: torch.Tensor, targets: torch.Tensor, *, strength: float, epochs: int) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    penalty = tacit.GradientPenalty(model, strength)
    for _ in range(epochs):
        for chosen in torch.randperm(len(inputs)).split(BATCH_SIZE):
            optimizer.zero_grad()
            penalty.backward(lambda: F.cross_entropy(model(inputs[chosen]), targets[chosen]))  # noqa: B023
            optimizer.step()
    return model


def main(epochs: int = 30) -> None:
    data = load("mnist1d")
    inputs, test_inputs = torch.from_numpy(data.train_inputs[:1024]), torch.from_numpy(data.test_inputs)
    targets, test_targets = torch.from_numpy(data.train_targets[:1024]), torch.from_numpy(data.test_targets)
    for strength in (0.0, STRENGTH):
        model = train(inputs, targets, strength=strength, epochs=epochs)
        with torch.no_grad():
            right = (model(test_inputs).argmax(1) == test_targets).double().mean()
        print(f"λ = {strength:<5} test accuracy {100 * right:.1f} %")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
