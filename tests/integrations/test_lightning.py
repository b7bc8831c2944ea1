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


def fit(namespace, module, folder, callbacks, epochs=2, **options):
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
        **options,
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
    with pytest.raises(ValueError, match=r"network: expected the name of the attribute .* Module defines no forward"):
        fit("lightning.pytorch", module, tmp_path / "a", [NeuralCollapseCallback()])
    callback = NeuralCollapseCallback([(X[:40], Y[:40])], every=2, network="net")
    fit("lightning.pytorch", module, tmp_path / "b", [callback], epochs=3)
    assert [seen.epoch for seen in callback.history] == [0, 2, 3]
    assert callback.history[-1].measurement.num_samples == 40
    with Path(tmp_path, "b", "log", "version_0", "metrics.csv").open() as file:
        logged = [float(row["nc/nc1"]) for row in csv.DictReader(file) if row.get("nc/nc1")]
    assert logged == pytest.approx([seen.measurement.nc1 for seen in callback.history], rel=1e-5)


@pytest.mark.parametrize("network", [None, "net"])
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_batches_go_through_the_transfer_hooks(namespace, network, tmp_path):
    calls = []

    class Hooked(type(make_module(namespace))):
        def on_before_batch_transfer(self, batch, dataloader_idx):
            calls.append("before")
            return [batch[0] - 1, batch[1]]

        def transfer_batch_to_device(self, batch, device, dataloader_idx):
            calls.append("transfer")
            return super().transfer_batch_to_device([2 * batch[0], batch[1]], device, dataloader_idx)

        def on_after_batch_transfer(self, batch, dataloader_idx):
            noise = torch.randn_like(batch[0]) if self.training else 0  # augmentation on the device
            return [batch[0] + 3 + noise, batch[1]]

    plain, watched = Hooked(), Hooked()
    fit(namespace, plain, tmp_path / "plain", [], epochs=1)
    calls.clear()
    callback = NeuralCollapseCallback(network=network)
    fit(namespace, watched, tmp_path / "watched", [callback], epochs=1)
    assert calls == ["before", "transfer"] * (3 * 4)  # measured, trained, measured
    assert all(map(torch.equal, plain.state_dict().values(), watched.state_dict().values()))
    exact = nc.measure(watched.net.eval()[:4](2 * (X - 1) + 3), Y, head=watched.net[4])
    assert callback.history[-1].measurement.nc1 == pytest.approx(exact.nc1, rel=1e-5)


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_a_data_module_s_hooks_are_the_ones(namespace, tmp_path):
    pl = import_module(namespace)

    class Data(pl.LightningDataModule):
        def train_dataloader(self):
            return DataLoader(TensorDataset(X, Y), batch_size=20, shuffle=True)

        def on_after_batch_transfer(self, batch, dataloader_idx):
            return {"inputs": batch[0] + 3, "target": batch[1]}

    class Module(type(make_module(namespace))):
        def training_step(self, batch, index):
            return super().training_step((batch["inputs"], batch["target"]), index)

    module = Module()
    callback = NeuralCollapseCallback(split=lambda batch: (batch["inputs"], batch["target"]))
    options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", callbacks=[callback], enable_checkpointing=False, **options)
    trainer.fit(module, datamodule=Data())
    exact = nc.measure(module.net.eval()[:4](X + 3), Y, head=module.net[4])
    assert callback.history[-1].measurement.nc1 == pytest.approx(exact.nc1, rel=1e-5)


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("bf16-true", torch.bfloat16), ("64-true", torch.float64), ("bf16-mixed", torch.float32)],
)
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_any_precision(namespace, precision, dtype, tmp_path):
    plain, watched = make_module(namespace), make_module(namespace)
    fit(namespace, plain, tmp_path / "plain", [], precision=precision)
    callback = NeuralCollapseCallback(problem=PROBLEM)
    trainer = fit(namespace, watched, tmp_path / "watched", [callback], precision=precision)
    assert all(map(torch.equal, plain.state_dict().values(), watched.state_dict().values()))
    assert watched.net[4].weight.dtype == dtype
    with trainer.precision_plugin.forward_context(), torch.no_grad():
        features = watched.net.eval()[:4](X.to(dtype))
    exact = nc.measure(features, Y, head=watched.net[4], problem=PROBLEM)
    assert callback.history[-1].measurement.nc1 == pytest.approx(exact.nc1, rel=1e-9)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_early_stopping_finds_the_numbers_in_every_epoch(namespace, first, tmp_path):
    stopping = import_module(f"{namespace}.callbacks").EarlyStopping("nc/nc1", patience=9)
    callback = NeuralCollapseCallback(every=2)
    seen = []

    class Reader(import_module(namespace).Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            seen.append(float(trainer.callback_metrics["nc/nc1"]))

    callbacks = [stopping, callback, Reader()] if first else [callback, stopping, Reader()]
    trainer = fit(namespace, make_module(namespace), tmp_path, callbacks, epochs=5)
    assert [item.epoch for item in callback.history] == [0, 2, 4, 5]
    exact = [item.measurement.nc1 for item in callback.history]
    assert seen == pytest.approx([exact[0], exact[1], exact[1], exact[2], exact[2]], rel=1e-5)
    assert float(trainer.callback_metrics["nc/nc1"]) == pytest.approx(exact[3], rel=1e-5)
    with Path(tmp_path, "log", "version_0", "metrics.csv").open() as file:
        logged = [float(row["nc/nc1"]) for row in csv.DictReader(file) if row.get("nc/nc1")]
    assert logged == pytest.approx(exact, rel=1e-5)  # each once


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_train_and_validation_under_their_own_names(namespace, tmp_path):
    val = DataLoader(TensorDataset(X[:40] + 1, Y[:40]), batch_size=20)
    callbacks = [NeuralCollapseCallback(problem=PROBLEM), NeuralCollapseCallback(val, prefix="val", problem=PROBLEM)]
    module = make_module(namespace)
    trainer = fit(namespace, module, tmp_path, callbacks)
    with torch.no_grad():
        net = module.net.eval()
        exact = [nc.measure(net[:4](x), y, head=net[4]) for x, y in ((X, Y), (X[:40] + 1, Y[:40]))]
    assert exact[0].nc1 != pytest.approx(exact[1].nc1, rel=0.01)
    for name, measured in zip(("nc/nc1", "val/nc/nc1"), exact):
        assert float(trainer.callback_metrics[name]) == pytest.approx(measured.nc1, rel=1e-5)
    with Path(tmp_path, "log", "version_0", "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row.get("val/nc/nc1")]
    assert len(rows) == 3
    assert float(rows[-1]["val/nc/nc1"]) == pytest.approx(exact[1].nc1, rel=1e-5)
    assert float(rows[-1]["val/certified/gap"]) == pytest.approx(callbacks[1].history[-1].certificate.gap, rel=1e-5)
    assert all(row.get("val/predicted/positive_score") for row in rows)


def test_two_callbacks_cannot_log_under_one_name(tmp_path):
    callbacks = [NeuralCollapseCallback(prefix="a"), NeuralCollapseCallback(prefix="a")]
    with pytest.raises(ValueError, match=r"prefix: expected a different one .* got 'a' twice"):
        fit("lightning.pytorch", make_module("lightning.pytorch"), tmp_path, callbacks)


def test_without_lightning_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(lightning, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'ncollapse\[lightning\]'"):
        lightning.find_bases()
