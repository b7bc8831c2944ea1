"""The Lightning callback with models beyond a plain classifier."""

from importlib import import_module

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import ncollapse as nc
from ncollapse.integrations.lightning import NeuralCollapseCallback

pl = import_module("lightning.pytorch")
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*IterableDataset.*__len__.*"),
]
X, Y = torch.randn(80, 6, generator=torch.Generator().manual_seed(0)), torch.arange(80) % 4
LOADER = DataLoader(TensorDataset(X, Y), batch_size=20)


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.trunk(x))

    def training_step(self, batch, index):
        return F.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Cosine(Module):
    def embed(self, x):
        return F.normalize(self.trunk(x))

    def classifier(self):
        return 10 * F.normalize(self.head.weight), None

    def forward(self, x):
        return F.linear(self.embed(x), self.classifier()[0])


class TwoHeads(Module):
    def __init__(self):
        super().__init__()
        self.coarse = nn.Linear(8, 2)

    def forward(self, x):
        features = self.trunk(x)
        return self.head(features), self.coarse(features)

    def training_step(self, batch, index):
        fine, coarse = self(batch[0])
        return F.cross_entropy(fine, batch[1]) + F.cross_entropy(coarse, batch[1] % 2)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y))


def fit(module, callbacks, loader=LOADER, **options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        max_epochs=2, accelerator="cpu", callbacks=callbacks, enable_checkpointing=False, **quiet, **options
    )
    trainer.fit(module, loader)
    return trainer


def test_a_cosine_classifier(tmp_path):
    module = Cosine()
    callback = NeuralCollapseCallback(features=module.embed, head=module.classifier)
    fit(module, [callback])
    with torch.no_grad():
        exact = nc.measure(module.embed(X), Y, head=module.classifier())
        right = (module(X).argmax(1) == Y).double().mean()
    assert callback.history[-1].measurement.nc2 == pytest.approx(exact.nc2, rel=1e-6)
    assert callback.history[-1].measurement.accuracy == pytest.approx(float(right))
    assert callback.history[0].measurement.nc2 != callback.history[-1].measurement.nc2
    with pytest.raises(ValueError, match=r"no linear layer, plain, scaled or normalised; .* For a cosine classifier"):
        fit(Cosine(), [NeuralCollapseCallback()])
    with pytest.raises(ValueError, match="features: expected beside head=, got None"):
        NeuralCollapseCallback(head=module.classifier)
    with pytest.raises(ValueError, match="would not follow the training"):
        NeuralCollapseCallback(features=module.embed, head=module.classifier())


def test_several_heads_by_name():
    module = TwoHeads()
    callbacks = [
        NeuralCollapseCallback(layer="head", prefix="fine"),
        NeuralCollapseCallback(layer="coarse", prefix="coarse", split=lambda batch: (batch[0], batch[1] % 2)),
    ]
    trainer = fit(module, callbacks)
    with torch.no_grad():
        features = module.trunk(X)
    for name, labels, head in (("fine", Y, module.head), ("coarse", Y % 2, module.coarse)):
        exact = nc.measure(features, labels, head=head)
        assert float(trainer.callback_metrics[f"{name}/nc/nc1"]) == pytest.approx(exact.nc1, rel=1e-5)


@pytest.mark.parametrize(
    ("loader", "options"),
    [
        (LOADER, {"accumulate_grad_batches": 3}),
        (LOADER, {"precision": "bf16-true"}),
        (DataLoader(Stream(), batch_size=20), {}),
    ],
    ids=["accumulation", "bfloat16", "stream"],
)
def test_training_is_untouched_and_the_numbers_are_right(loader, options):
    plain, watched = Module(), Module()
    fit(plain, [], loader, **options)
    callback = NeuralCollapseCallback()
    fit(watched, [callback], loader, **options)
    assert all(map(torch.equal, plain.state_dict().values(), watched.state_dict().values()))
    dtype = watched.head.weight.dtype
    with torch.no_grad():
        exact = nc.measure(watched.trunk(X.to(dtype)), Y, head=watched.head)
    assert [seen.epoch for seen in callback.history] == [0, 1, 2]
    assert callback.history[-1].measurement.nc1 == pytest.approx(exact.nc1, rel=1e-5)


class LanguageModel(pl.LightningModule):
    """A causal language model: the state at position t is classified as token t + 1; 0 is padding."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.recurrent = nn.Embedding(12, 8), nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, 12)

    def forward(self, tokens):
        return self.head(self.recurrent(self.embedding(tokens))[0])

    def training_step(self, batch, index):
        return F.cross_entropy(self(batch[0])[:, :-1].flatten(0, 1), batch[1][:, 1:].flatten(), ignore_index=0)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


@pytest.mark.filterwarnings("ignore:measure. no sample of class:UserWarning")  # padding is a class without samples
def test_a_causal_language_model():
    tokens = torch.randint(1, 12, (40, 9), generator=torch.Generator().manual_seed(0))
    tokens[::3, 6:] = 0
    loader = DataLoader(TensorDataset(tokens, tokens), batch_size=16)
    plain, watched = LanguageModel(), LanguageModel()
    fit(plain, [], loader)
    callback = NeuralCollapseCallback(shift=True, ignore_index=0)
    fit(watched, [callback], loader)
    assert all(map(torch.equal, plain.state_dict().values(), watched.state_dict().values()))
    with torch.no_grad():
        states = watched.recurrent(watched.embedding(tokens))[0]
    kept = tokens[:, 1:] != 0
    exact = nc.measure(states[:, :-1][kept], tokens[:, 1:][kept], head=watched.head)
    measured = callback.history[-1].measurement
    assert measured.num_samples == int(kept.sum())
    assert measured.nc1 == pytest.approx(exact.nc1, rel=1e-5)
    assert measured.accuracy == pytest.approx(exact.accuracy)


def test_a_compiled_module():
    module = Module()
    callback = NeuralCollapseCallback()
    fit(torch.compile(module, backend="eager"), [callback])
    with torch.no_grad():
        exact = nc.measure(module.trunk(X), Y, head=module.head)
    assert callback.history[-1].measurement.nc1 == pytest.approx(exact.nc1, rel=1e-5)


def test_fsdp_from_outside_is_refused(monkeypatch):
    class FullyShardedDataParallel(nn.Module):  # the real one needs a GPU
        pass

    class Wrapping(NeuralCollapseCallback):
        def on_train_start(self, trainer, pl_module):
            monkeypatch.setattr(trainer.strategy, "_model", FullyShardedDataParallel(), raising=False)
            monkeypatch.setattr(type(trainer.strategy), "model", property(lambda self: self._model))
            super().on_train_start(trainer, pl_module)

    with pytest.raises(ValueError, match=r"strategy: .* got FSDPStrategy; use ModelParallelStrategy with fully_shard"):
        fit(Module(), [Wrapping()])


def test_the_metric_s_dictionary_is_logged():
    class Logging(Module):
        def __init__(self):
            super().__init__()
            self.collapse = nc.NeuralCollapse(num_classes=4, dim=8)

        def training_step(self, batch, index):
            features = self.trunk(batch[0])
            self.collapse.update(features.detach(), batch[1])
            return F.cross_entropy(self.head(features), batch[1])

        def on_train_epoch_end(self):
            self.log_dict({f"nc/{name}": value for name, value in self.collapse.compute(head=self.head).items()})
            self.seen = float(self.collapse.compute()["nc1"])
            self.collapse.reset()

    module = Logging()
    trainer = fit(module, [])
    assert float(trainer.callback_metrics["nc/nc1"]) == pytest.approx(module.seen, rel=1e-6)
    assert "nc/positive_score.mean" in trainer.callback_metrics
