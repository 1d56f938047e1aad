"""A third of the training labels are random: how much of them does each way of training learn by heart?

python examples/label_noise.py [UPDATES]
"""

import sys

import torch
from mnist1d.data import get_dataset_args, make_dataset
from torch import Tensor, nn
from torch.nn import functional as F

import tacit

SHARE, BATCH_SIZE = 0.3, 256


def train(ratio: float, inputs: Tensor, targets: Tensor, *, updates: int) -> nn.Module:
    """Trained with AdamW; the penalty of one drawn micro-batch of 16 has the share `ratio` of each step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2**-8, weight_decay=0.01)
    penalty = tacit.GradientPenalty(model, tacit.Relative(ratio) if ratio else 0.0, micro_batch_size=16, sampled=1)
    for _ in range(updates):
        rows = torch.randint(len(inputs), (BATCH_SIZE,))
        optimizer.zero_grad()
        penalty.backward(lambda x, y: F.cross_entropy(model(x), y), inputs[rows], targets[rows])
        optimizer.step()
    return model


def main(updates: int = 800) -> None:
    data = make_dataset(get_dataset_args())  # MNIST-1D, made here: nothing is downloaded
    inputs, targets = torch.tensor(data["x"][:2048]).float(), torch.tensor(data["y"][:2048])
    test_inputs, test_targets = torch.tensor(data["x_test"]).float(), torch.tensor(data["y_test"])
    draws = torch.Generator().manual_seed(1)
    noisy = torch.rand(len(targets), generator=draws) < SHARE
    labels = torch.where(noisy, torch.randint(10, targets.shape, generator=draws), targets)
    wrong = labels != targets
    for ratio in (0.0, 0.4, 0.8):
        model = train(ratio, inputs, labels, updates=updates)
        by_heart = float((model(inputs[wrong]).argmax(1) == labels[wrong]).double().mean())
        test = float((model(test_inputs).argmax(1) == test_targets).double().mean())
        print(f"r = {ratio}  wrong labels learned {100 * by_heart:.1f} %  test {100 * test:.1f} %")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
