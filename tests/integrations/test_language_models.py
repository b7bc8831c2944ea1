"""Models that classify tokens: causal language models, token classification, masked language models."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainingArguments,
)

import ncollapse as nc
from ncollapse.features import extract
from ncollapse.features.tokens import TokenRule, predicts_next_token
from ncollapse.integrations.huggingface import NeuralCollapseCallback

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:measure. no sample of class:UserWarning"),  # padding
]
VOCABULARY, LENGTH = 12, 10
IDS = torch.randint(1, VOCABULARY, (40, LENGTH), generator=torch.Generator().manual_seed(0))
LENGTHS = 4 + torch.arange(40) % 7


class Texts(Dataset):
    """Sentences of 4 to 10 tokens, padded by 0; labels are the tokens, or the tokens' class."""

    def __init__(self, classes=None, masked=True, left=False):
        self.classes, self.masked, self.left = classes, masked, left

    def __len__(self):
        return len(IDS)

    def __getitem__(self, index):
        real = torch.arange(LENGTH) < LENGTHS[index]
        if self.left:
            real = real.flip(0)
        ids = torch.where(real, IDS[index], 0)
        labels = ids.clone() if self.classes is None else ids % self.classes
        if self.masked:
            labels[~real] = -100
        return {"input_ids": ids, "attention_mask": real.long(), "labels": labels}

    def batch(self):
        return torch.utils.data.default_collate([self[index] for index in range(len(self))])


def make_gpt2():
    torch.manual_seed(0)
    size = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": LENGTH, "vocab_size": VOCABULARY}
    return GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0))


def make_bert(kind, **options):
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return kind(BertConfig(**size, vocab_size=VOCABULARY, max_position_embeddings=LENGTH, **options))


def train(model, data, folder, **options):
    args = TrainingArguments(
        str(folder),
        num_train_epochs=2,
        per_device_train_batch_size=16,
        save_strategy="no",
        use_cpu=True,
        seed=4,
        disable_tqdm=True,
        report_to="none",
        learning_rate=5e-3,
    )
    trainer = Trainer(model, args, train_dataset=data)
    callback = NeuralCollapseCallback(trainer, **options)
    trainer.add_callback(callback)
    trainer.train()
    return callback.history


def take_pairs(model, data, shift):
    """(last hidden vector, label) of every real token, one by one, from the model's own loss convention."""
    batch = data.batch()
    with torch.no_grad():
        out = model.eval()(**{k: v for k, v in batch.items() if k != "labels"}, output_hidden_states=True)
    rows, labels = [], []
    for sentence in range(len(IDS)):
        for place in range(LENGTH):
            target = place + shift
            if (
                target < LENGTH
                and batch["attention_mask"][sentence, place]
                and batch["attention_mask"][sentence, target]
            ):
                rows.append(out.hidden_states[-1][sentence, place])
                labels.append(int(batch["labels"][sentence, target]))
    return torch.stack(rows), torch.tensor(labels), out.logits


@pytest.mark.parametrize(("masked", "left"), [(True, False), (False, False), (False, True)])
def test_a_causal_language_model(tmp_path, masked, left):
    plain, watched = make_gpt2(), make_gpt2()
    data = Texts(masked=masked, left=left)
    train(plain, data, tmp_path, every=9)
    history = train(watched, data, tmp_path)
    assert all(map(torch.equal, plain.state_dict().values(), watched.state_dict().values()))
    rows, labels, _ = take_pairs(watched, data, shift=1)
    exact = nc.measure(rows, labels, head=watched.lm_head)
    measured = history[-1].measurement
    assert measured.num_samples == int((LENGTHS - 1).sum())
    assert measured.counts == exact.counts
    assert measured.accuracy == pytest.approx(exact.accuracy)
    assert measured.positive_score.mean == pytest.approx(exact.positive_score.mean, rel=1e-5)
    assert measured.present_classes == VOCABULARY - 1  # padding is no class
    assert measured.nc1 == pytest.approx(exact.nc1, rel=1e-4)
    assert measured.nc1 == pytest.approx(nc.measure(rows, labels - 1).nc1, rel=1e-4)


def test_the_measured_loss_is_the_model_s_own():
    """The pairs are those of the model's own loss: cross-entropy of the measured features and labels equals it."""
    model, batch = make_gpt2().eval(), Texts().batch()
    found = extract(model, [batch])
    with torch.no_grad():
        own = model(**batch).loss
    assert float(F.cross_entropy(found.head.logits(found.features), found.labels)) == pytest.approx(float(own))


def test_token_classification(tmp_path):
    model = make_bert(BertForTokenClassification, num_labels=3)
    history = train(model, Texts(classes=3), tmp_path, layers="bert.encoder.layer.*")
    rows, labels, logits = take_pairs(model, Texts(classes=3), shift=0)
    exact = nc.measure(rows, labels, head=model.classifier)
    measured = history[-1].measurement
    assert measured.num_samples == int(LENGTHS.sum())
    assert measured.nc1 == pytest.approx(exact.nc1, rel=1e-4)
    assert measured.accuracy == exact.accuracy
    kept = Texts(classes=3).batch()["labels"]
    right = (logits.argmax(2) == kept)[kept >= 0].double().mean()
    assert measured.accuracy == pytest.approx(float(right))
    assert history[-1].layers["bert.encoder.layer.0"].nc1 == pytest.approx(exact.nc1, rel=1e-4)


def test_a_masked_language_model_is_not_shifted():
    model = make_bert(BertForMaskedLM).eval()
    batch = Texts().batch()
    batch["labels"] = torch.where(torch.rand(batch["labels"].shape) < 0.4, batch["labels"], -100)
    found = extract(model, [batch])
    with torch.no_grad():
        own = model(**batch).loss
    assert not predicts_next_token(model)
    assert float(F.cross_entropy(found.head.logits(found.features), found.labels)) == pytest.approx(float(own))


def test_an_encoder_decoder_gets_its_labels_among_the_inputs():
    torch.manual_seed(0)
    size = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
    model = T5ForConditionalGeneration(T5Config(**size, vocab_size=VOCABULARY, pad_token_id=0)).eval()
    batch = {"input_ids": IDS, "labels": torch.where(torch.arange(6) < LENGTHS[:, None] - 2, IDS[:, :6], -100)}
    found = extract(model, [batch], split=lambda batch: (batch, batch["labels"]))
    with torch.no_grad():
        own = model(**batch).loss
    assert float(F.cross_entropy(found.head.logits(found.features), found.labels)) == pytest.approx(float(own))


def test_rare_tokens_are_left_out_by_min_count():
    model, batch = make_gpt2(), Texts().batch()
    everything = extract(model, [batch])
    counts = everything.labels.bincount(minlength=VOCABULARY)
    least = int(counts.sort().values[6])
    seen = nc.monitor(model, [batch], min_count=least).observe().measurement
    assert seen.counts == tuple(int(count) * (int(count) >= least) for count in counts)
    frequent = counts[everything.labels] >= least
    names = counts[: int(everything.labels.max()) + 1].ge(least).cumsum(0) - 1  # the frequent tokens, numbered
    whole = nc.measure(everything.features[frequent], names[everything.labels[frequent]])
    assert seen.nc1 == pytest.approx(whole.nc1, rel=1e-6)
    assert seen.cdnv == pytest.approx(whole.cdnv, rel=1e-6)
    with pytest.raises(ValueError, match="min_count: no class has 999 samples"):
        nc.monitor(model, [batch], min_count=999).observe()
    with pytest.raises(ValueError, match="min_count: expected a whole number of at least 1, got 0"):
        nc.monitor(model, [batch], min_count=0)


class Small(nn.Module):
    """A language model of one's own; its loader shifts the labels, or not."""

    def __init__(self, flat=False):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.flat = nn.Embedding(VOCABULARY, 6), flat
        self.unembed = nn.Linear(6, VOCABULARY, bias=False)
        self.unembed.weight = self.embed.weight  # tied

    def forward(self, ids):
        hidden = self.embed(ids).cumsum(1)
        return self.unembed(hidden.flatten(0, 1) if self.flat else hidden)


@pytest.mark.parametrize("flat", [False, True])
def test_a_model_of_one_s_own(flat):
    model = Small(flat)
    shifted = extract(model, [(IDS, IDS)], tokens=TokenRule(shift=True))
    aligned = extract(model, [(IDS[:, :-1], IDS[:, 1:])])
    assert torch.equal(shifted.labels, aligned.labels)
    assert torch.equal(shifted.features, aligned.features)
    with pytest.raises(
        ValueError, match=r"labels: expected one integer for each vector, got \[40, 9\] for what enters"
    ):
        extract(model, [(IDS, IDS[:, 1:])])


def test_samples_are_sentences():
    watch = nc.monitor(Small(), [(IDS[:, :-1], IDS[:, 1:])], samples=7)
    assert watch.observe().measurement.num_samples == 7 * 9


def test_ignored_samples_of_a_plain_classifier():
    x, y = torch.randn(30, 6), torch.arange(30) % 3
    y[4:9] = -100
    model = nn.Linear(6, 3)
    kept = y != -100
    assert nc.monitor(model, [(x, y)]).observe().measurement == nc.measure(x[kept], y[kept], head=model)
