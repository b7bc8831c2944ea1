"""The callback in real Trainers of both namespaces, its numbers read back from a logger."""

import csv
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ncollapse as nc
from ncollapse.integrations import lightning
from ncollapse.integrations.lightning import NeuralCollapseCallback

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*GPU available but not used.*"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*pkg_resources.*"),
]
NAMESPACES = ["lightning.pytorch", "pytorch_lightning"]
PROBLEM = nc.Problem("ce", 4, batch_size=20, weight_decay=1e-2, feature_decay=1e-2, features="relu")
X, Y = torch.randn(80, 6, generator=torch.Generator().manual_seed(0)), torch.arange(80) % 4


def make_module(namespace, own_forward=True):
    pl = import_module(namespace)

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 4))

        def training_step(self, batch, index):
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    if own_forward:
        Module.forward = lambda self, x: self.net(x)
    return Module()


def fit(namespace, module, folder, callbacks, epochs=2):
    pl = import_module(namespace)
    torch.manual_seed(1)
    logger = import_module(f"{namespace}.loggers").CSVLogger(folder, name="log", version=0)
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=logger,
        callbacks=callbacks,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        log_every_n_steps=1,
    )
    trainer.fit(module, DataLoader(TensorDataset(X, Y), batch_size=20, shuffle=True))
    return trainer


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_numbers_reach_the_logger_and_training_is_untouched(namespace, tmp_path):
    plain, watched = make_module(namespace), make_module(namespace)
    fit(namespace, plain, tmp_path / "plain", [])
    callback = NeuralCollapseCallback(problem=PROBLEM)
    trainer = fit(namespace, watched, tmp_path / "watched", [callback])
    assert all(map(torch.equal, plain.state_dict().values(), watched.state_dict().values()))

    exact = nc.measure(watched.net.eval()[:4](X), Y, head=watched.net[4], problem=PROBLEM)
    certificate = callback.history[-1].certificate
    assert [seen.epoch for seen in callback.history] == [0, 1, 2]
    with Path(tmp_path, "watched", "log", "version_0", "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row.get("nc/nc1")]
    assert len(rows) == 3
    assert float(rows[-1]["nc/nc1"]) == pytest.approx(exact.nc1, rel=1e-5)
    assert float(rows[-1]["nc/positive_score.mean"]) == pytest.approx(exact.positive_score.mean, rel=1e-5)
    assert float(rows[-1]["predicted/positive_score"]) == pytest.approx(nc.predict(PROBLEM).positive_score, rel=1e-6)
    assert float(rows[-1]["certified/gap"]) == pytest.approx(certificate.gap, rel=1e-5)
    assert float(rows[0]["nc/nc1"]) == pytest.approx(callback.history[0].measurement.nc1, rel=1e-5)
    assert float(trainer.callback_metrics["nc/nc1"]) == pytest.approx(exact.nc1, rel=1e-5)


def test_a_module_without_forward_names_its_network(tmp_path):
    module = make_module("lightning.pytorch", own_forward=False)
    with pytest.raises(ValueError, match="Module defines no forward; name the attribute"):
        fit("lightning.pytorch", module, tmp_path / "a", [NeuralCollapseCallback()])
    callback = NeuralCollapseCallback([(X[:40], Y[:40])], every=2, network="net")
    fit("lightning.pytorch", module, tmp_path / "b", [callback], epochs=3)
    assert [seen.epoch for seen in callback.history] == [0, 2, 3]
    assert callback.history[-1].measurement.num_samples == 40
    with Path(tmp_path, "b", "log", "version_0", "metrics.csv").open() as file:
        logged = [float(row["nc/nc1"]) for row in csv.DictReader(file) if row.get("nc/nc1")]
    assert logged == pytest.approx([seen.measurement.nc1 for seen in callback.history], rel=1e-5)


def test_without_lightning_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(lightning, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'ncollapse\[lightning\]'"):
        lightning.find_bases()
