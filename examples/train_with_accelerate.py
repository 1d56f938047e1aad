"""accelerate: `accelerator.backward` gets the penalised loss; accumulation, precision and DDP stay accelerate's.

python examples/train_with_accelerate.py        (pip install '.[accelerate]')
"""

import tempfile

import torch
from accelerate import Accelerator
from mnist1d.data import get_dataset_args, make_dataset
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import tacit


def main() -> None:
    data = make_dataset(get_dataset_args())  # MNIST-1D, made here: nothing is downloaded
    train = TensorDataset(torch.tensor(data["x"][:1024]).float(), torch.tensor(data["y"][:1024]))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=2**-3)

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(train, batch_size=32, shuffle=True))
    penalty = tacit.GradientPenalty(model, strength=2**-4)
    accelerator.register_for_checkpointing(penalty)

    for epoch in range(5):
        for inputs, targets in loader:
            with accelerator.accumulate(model):

                def closure(inputs: torch.Tensor = inputs, targets: torch.Tensor = targets) -> torch.Tensor:
                    return F.cross_entropy(model(inputs), targets)

                loss = penalty.loss(closure, scaler=accelerator.scaler)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.3f}, penalty {penalty.last.penalty.item():.5f}")
    with tempfile.TemporaryDirectory() as folder:
        accelerator.save_state(folder)  # the penalty's step and coin are in it
        accelerator.load_state(folder)


if __name__ == "__main__":
    main()
