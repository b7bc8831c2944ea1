"""The callback in a real Trainer, its numbers read back from the log history and from event files."""

import sys

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2ForSequenceClassification,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

import ncollapse as nc
from ncollapse.features import extract
from ncollapse.integrations.huggingface import NeuralCollapseCallback

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning"),
]
PROBLEM = nc.Problem("ce", 3, batch_size=16, weight_decay=1e-2, feature_decay=1e-2)
IMAGES = torch.randn(48, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Images(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        return {"pixel_values": IMAGES[index], "labels": index % 3}


class Texts(Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, index):
        ids = (torch.arange(6) * (index + 2)) % 19 + 1
        ids[4 - index % 2 :] = 0
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": index % 3}


def make_vit():
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return ViTForImageClassification(ViTConfig(**size, image_size=8, patch_size=4, num_labels=3))


def make_trainer(model, data, folder, **options):
    args = TrainingArguments(
        str(folder),
        num_train_epochs=2,
        per_device_train_batch_size=16,
        logging_strategy="epoch",
        save_strategy="no",
        use_cpu=True,
        seed=4,
        disable_tqdm=True,
        **{"report_to": "none", **options},
    )
    return Trainer(model, args, train_dataset=data)


def test_numbers_are_logged_and_training_is_untouched(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    plain, watched = make_vit(), make_vit()
    make_trainer(plain, Images(), tmp_path).train()
    trainer = make_trainer(watched, Images(), tmp_path, report_to="tensorboard")
    callback = NeuralCollapseCallback(trainer, problem=PROBLEM)
    trainer.add_callback(callback)
    trainer.train()
    assert all(map(torch.equal, plain.state_dict().values(), watched.state_dict().values()))

    found = extract(watched, [{"pixel_values": IMAGES, "labels": torch.arange(48) % 3}])
    exact = nc.measure(found.features, found.labels, head=watched.classifier, problem=PROBLEM)
    logged = [entry for entry in trainer.state.log_history if "nc/nc1" in entry]
    assert [round(entry["epoch"]) for entry in logged] == [0, 1, 2]
    assert logged[-1]["nc/nc1"] == pytest.approx(exact.nc1, rel=1e-4)
    assert logged[-1]["nc/accuracy"] == exact.accuracy
    assert logged[-1]["predicted/positive_score"] == nc.predict(PROBLEM).positive_score
    assert logged[-1]["certified/gap"] == callback.history[-1].certificate.gap
    assert len([entry for entry in trainer.state.log_history if "loss" in entry]) == 2  # the Trainer's own, still there

    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    values = [event.value for event in events.Scalars("train/nc/nc1")]
    assert values == pytest.approx([entry["nc/nc1"] for entry in logged], rel=1e-6)


def test_a_decoder_s_pooled_token(tmp_path):
    torch.manual_seed(0)
    size = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 20, "bos_token_id": 0, "eos_token_id": 0}
    model = GPT2ForSequenceClassification(GPT2Config(**size, pad_token_id=0, num_labels=3))
    trainer = make_trainer(model, Texts(), tmp_path)
    callback = NeuralCollapseCallback(trainer, every=3)
    trainer.add_callback(callback)
    trainer.train()
    assert [seen.epoch for seen in callback.history] == [0, 2]  # the last epoch, though not a third one
    assert trainer.state.log_history[-1]["nc/nc1"] == callback.history[-1].measurement.nc1
    batch = torch.utils.data.default_collate([Texts()[index] for index in range(30)])
    labels = batch.pop("labels")
    with torch.no_grad():
        logits = model.eval()(**batch).logits
    measured = callback.history[-1].measurement
    assert measured.accuracy == pytest.approx(float((logits.argmax(1) == labels).float().mean()))
    own = logits[torch.arange(30), labels].double().mean()
    assert measured.positive_score.mean == pytest.approx(float(own), rel=1e-5)


def test_train_and_validation_under_their_own_names(tmp_path):
    trainer = make_trainer(make_vit(), Images(), tmp_path)
    val = [{"pixel_values": IMAGES[:24] + 1, "labels": torch.arange(24) % 3}]
    callbacks = [NeuralCollapseCallback(trainer), NeuralCollapseCallback(trainer, val, prefix="val")]
    for callback in callbacks:
        trainer.add_callback(callback)
    trainer.train()
    last = {name: value for entry in trainer.state.log_history for name, value in entry.items()}
    assert last["nc/nc1"] == callbacks[0].history[-1].measurement.nc1
    assert last["val/nc/nc1"] == callbacks[1].history[-1].measurement.nc1
    assert last["nc/nc1"] != last["val/nc/nc1"]
    trainer.add_callback(NeuralCollapseCallback(trainer, prefix="val"))
    with pytest.raises(ValueError, match=r"prefix: expected a different one .* got 'val' twice"):
        trainer.train()


def test_without_transformers_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "ncollapse.integrations.huggingface")
    with pytest.raises(ImportError, match=r"pip install 'ncollapse\[huggingface\]'"):
        import ncollapse.integrations.huggingface  # noqa: F401
