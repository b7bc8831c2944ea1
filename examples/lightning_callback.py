"""A LightningModule and one more callback: collapse in every logger, early stopping on NC1.

python examples/lightning_callback.py --epochs 20 --out logs
"""

import argparse

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ncollapse as nc
from ncollapse.integrations.lightning import NeuralCollapseCallback


class Classifier(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.loss = nc.BCELoss()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, _):
        x, y = batch
        return self.loss(self(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main(epochs: int, out: str) -> None:
    L.seed_everything(0, verbose=False)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
    watch = NeuralCollapseCallback(DataLoader(data, batch_size=512), samples=1000)
    trainer = L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=CSVLogger(out, name=""),
        callbacks=[watch, EarlyStopping("nc/nc1", stopping_threshold=0.05, patience=epochs)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    )
    trainer.fit(Classifier(), DataLoader(data, batch_size=128, shuffle=True))
    for seen in watch.history:
        print(f"epoch {seen.epoch:3d}  NC1 {seen.measurement.nc1:.4f}  accuracy {seen.measurement.accuracy:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", default="logs", help="the folder of the log")
    main(**vars(parser.parse_args()))
