"""The Trainer callback with models beyond a plain classifier."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, IterableDataset
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments
from transformers.modeling_outputs import SequenceClassifierOutput

import ncollapse as nc
from ncollapse.integrations.huggingface import NeuralCollapseCallback

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning"),
]
X, Y = torch.randn(48, 6, generator=torch.Generator().manual_seed(0)), torch.arange(48) % 3


class Config(PretrainedConfig):
    model_type = "small"


class Model(PreTrainedModel):
    """A model as users write them for the Trainer."""

    config_class = Config

    def __init__(self, config=None):
        super().__init__(config or Config())
        torch.manual_seed(0)
        self.trunk, self.head = nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Linear(8, 3)
        self.post_init()

    def logits(self, x):
        return self.head(self.trunk(x))

    def forward(self, x, labels=None):
        logits = self.logits(x)
        return SequenceClassifierOutput(None if labels is None else F.cross_entropy(logits.float(), labels), logits)


class Cosine(Model):
    def embed(self, x):
        return F.normalize(self.trunk(x))

    def classifier(self):
        return 10 * F.normalize(self.head.weight), None

    def logits(self, x):
        return F.linear(self.embed(x), self.classifier()[0])


class TwoHeads(Model):
    def __init__(self, config=None):
        super().__init__(config)
        self.coarse = nn.Linear(8, 2)

    def forward(self, x, labels=None):
        features = self.trunk(x)
        fine, coarse = self.head(features), self.coarse(features)
        loss = None if labels is None else F.cross_entropy(fine, labels) + F.cross_entropy(coarse, labels % 2)
        return {"fine": fine, "coarse": coarse} if loss is None else {"loss": loss, "fine": fine, "coarse": coarse}


class Rows(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        return {"x": X[index], "labels": int(Y[index])}


class Stream(IterableDataset):
    def __iter__(self):
        return iter([{"x": x, "labels": int(y)} for x, y in zip(X, Y)])


def make_trainer(model, folder, data=None, **options):
    args = TrainingArguments(
        str(folder),
        per_device_train_batch_size=16,
        save_strategy="no",
        use_cpu=True,
        seed=4,
        disable_tqdm=True,
        report_to="none",
        learning_rate=0.05,
        **{"num_train_epochs": 2, **options},
    )
    return Trainer(model, args, train_dataset=data or Rows())


def train(model, folder, data=None, callbacks=(), **options):
    trainer = make_trainer(model, folder, data, **options)
    made = [NeuralCollapseCallback(trainer, **callback) for callback in callbacks]
    for callback in made:
        trainer.add_callback(callback)
    trainer.train()
    return made


def test_a_cosine_classifier(tmp_path):
    model = Cosine()
    (callback,) = train(model, tmp_path, callbacks=[{"features": model.embed, "head": model.classifier}])
    with torch.no_grad():
        exact = nc.measure(model.embed(X), Y, head=model.classifier())
        right = (model(X).logits.argmax(1) == Y).double().mean()
    assert callback.history[-1].measurement.nc2 == pytest.approx(exact.nc2, rel=1e-6)
    assert callback.history[-1].measurement.accuracy == pytest.approx(float(right))
    assert callback.history[0].measurement.nc2 != callback.history[-1].measurement.nc2
    with pytest.raises(ValueError, match="no linear layer, plain, scaled or normalised"):
        train(Cosine(), tmp_path, callbacks=[{}])


def test_several_heads_by_name(tmp_path):
    model = TwoHeads()
    split = {"split": lambda batch: ({"x": batch["x"]}, batch["labels"] % 2)}
    options = [{"layer": "head", "prefix": "fine"}, {"layer": "coarse", "prefix": "coarse", **split}]
    made = train(model, tmp_path, callbacks=options)
    with torch.no_grad():
        features = model.trunk(X)
    for callback, labels, head in zip(made, (Y, Y % 2), (model.head, model.coarse)):
        exact = nc.measure(features, labels, head=head)
        assert callback.history[-1].measurement.nc1 == pytest.approx(exact.nc1, rel=1e-5)
        assert f"{callback.prefix}/nc/nc1" in callback.numbers()


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (Rows(), {"gradient_accumulation_steps": 2}),
        (Rows(), {"bf16": True}),
        (Stream(), {"max_steps": 6, "num_train_epochs": 1}),
        (Rows(), {"torch_compile": True, "torch_compile_backend": "eager"}),
    ],
    ids=["accumulation", "autocast", "stream", "compiled"],
)
def test_training_is_untouched_and_the_numbers_are_right(tmp_path, data, options):
    plain, watched = Model(), Model()
    train(plain, tmp_path, data, **options)
    (callback,) = train(watched, tmp_path, data, callbacks=[{}], **options)
    assert all(map(torch.equal, plain.state_dict().values(), watched.state_dict().values()))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled="bf16" in options):
        exact = nc.measure(watched.trunk(X), Y, head=watched.head)
    assert callback.history[-1].measurement.num_samples == 48
    assert callback.history[-1].measurement.nc1 == pytest.approx(exact.nc1, rel=1e-5)


def test_a_model_in_bfloat16(tmp_path):
    class Narrow(Rows):
        def __getitem__(self, index):
            return {"x": X[index].bfloat16(), "labels": int(Y[index])}

    model = Model().bfloat16()
    (callback,) = train(model, tmp_path, Narrow(), callbacks=[{}])
    with torch.no_grad():
        exact = nc.measure(model.trunk(X.bfloat16()), Y, head=model.head)
    assert callback.history[-1].measurement.nc1 == pytest.approx(exact.nc1, rel=1e-6)
