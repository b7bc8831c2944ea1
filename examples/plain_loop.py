"""A plain PyTorch loop, watched: BCE with the decays of the theory, the predicted optimum beside what is reached.

python examples/plain_loop.py --epochs 40
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ncollapse as nc

BATCH = 128
DECAYS = {"weight_decay": 5e-4, "feature_decay": 5e-4, "bias_decay": 5e-4}


class Net(nn.Module):
    """Any network; its last layer is ours, so that the bias can start where theory wants it."""

    def __init__(self, problem: nc.Problem) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.head = nc.LinearHead(64, 10, bias_init="theory", problem=problem)

    def forward(self, x):
        return self.head(self.trunk(x))


def main(epochs: int, out: str) -> None:
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    problem = nc.Problem("bce", 10, batch_size=BATCH, features="relu", **DECAYS)
    model, loss = Net(problem), nc.BCELoss()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    with nc.monitor(model, loader, every=5, problem=problem) as watch:
        for epoch in range(1, epochs + 1):
            for x, y in loader:
                features = model.trunk(x)
                value = loss(model.head(features), y) + nc.decay(model.head, features, **DECAYS)
                optimiser.zero_grad()
                value.backward()
                optimiser.step()
            if measured := watch.step():
                gap = watch.history[-1].certificate.gap
                print(f"epoch {epoch:3d}  NC1 {measured.nc1:8.4f}  NC2 {measured.nc2:.4f}  certified gap {gap:.4f}")

    print("\nfield              measured   predicted")
    for name, row in watch.last.compare(watch.prediction).items():
        print(f"{name:<18} {row.measured:8.4f}   {row.predicted:8.4f}")
    watch.plot().write_html(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--out", default="nc.html", help="the curves")
    main(**vars(parser.parse_args()))
