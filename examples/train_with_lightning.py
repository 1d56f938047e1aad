"""Lightning: one callback is the whole change; accumulation, clipping, precision and DDP stay Lightning's.

python examples/train_with_lightning.py        (pip install '.[lightning]')
"""

import lightning.pytorch as pl
import torch
from mnist1d.data import get_dataset_args, make_dataset
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import tacit.lightning


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        inputs, targets = batch
        return F.cross_entropy(self.network(inputs), targets)

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        inputs, targets = batch
        self.log("accuracy", (self.network(inputs).argmax(1) == targets).double().mean(), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=2**-3)


def main() -> None:
    data = make_dataset(get_dataset_args())  # MNIST-1D, made here: nothing is downloaded
    train = TensorDataset(torch.tensor(data["x"][:1024]).float(), torch.tensor(data["y"][:1024]))
    test = TensorDataset(torch.tensor(data["x_test"]).float(), torch.tensor(data["y_test"]))
    pl.seed_everything(0, verbose=False)
    trainer = pl.Trainer(
        max_epochs=5,
        accelerator="cpu",
        accumulate_grad_batches=2,
        callbacks=[tacit.lightning.Penalty(strength=2**-4)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(), DataLoader(train, batch_size=32, shuffle=True), DataLoader(test, batch_size=1000))
    print({name: round(float(value), 4) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
