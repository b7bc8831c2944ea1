"""A small transformer on text that the script generates: next-token collapse over 8,000 tokens, by token frequency.

python examples/language_model.py           # minutes on one core
python examples/language_model.py --fast    # seconds
"""

import argparse
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ncollapse as nc

GROUPS = {"most frequent 1 %": 0.01, "next 9 %": 0.1, "next 40 %": 0.5, "the rest": 1.0}


@dataclass(frozen=True)
class Setting:
    """Sizes of the text, of the network and of the training."""

    tokens: int = 8000
    sentences: int = 6000
    length: int = 33
    width: int = 64
    depth: int = 2
    steps: int = 600
    measured: int = 1500


FAST = Setting(tokens=200, sentences=400, length=33, width=32, depth=1, steps=150, measured=200)


def generate_text(setting: Setting, surprise: float = 0.15) -> Tensor:
    """Sentences [sentences, length]: every token has one successor, but now and then Zipf's law draws another token."""
    zipf = 1 / torch.arange(1, setting.tokens + 1)
    successor = torch.randperm(setting.tokens)
    shape = (setting.sentences, setting.length)
    drawn = torch.multinomial(zipf, shape[0] * shape[1], replacement=True).reshape(shape)
    surprising = torch.rand(shape) < surprise
    text = drawn.clone()
    for place in range(1, setting.length):
        text[:, place] = torch.where(surprising[:, place], drawn[:, place], successor[text[:, place - 1]])
    return text


class LanguageModel(nn.Module):
    """A decoder with tied embeddings: the classifier of the next token is the table of embeddings."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.embed = nn.Embedding(setting.tokens, setting.width)
        self.places = nn.Parameter(0.02 * torch.randn(setting.length, setting.width))
        layer = nn.TransformerEncoderLayer(
            setting.width, 4, 4 * setting.width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, setting.depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(setting.width)
        self.classify = nn.Linear(setting.width, setting.tokens, bias=False)
        nn.init.normal_(self.embed.weight, std=1 / math.sqrt(setting.width))
        self.classify.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.layers(self.embed(ids) + self.places[:length], mask=mask, is_causal=True)
        return self.classify(self.norm(hidden))


def print_by_frequency(measured: nc.Measurement) -> None:
    """The tokens in four groups, from the most frequent to the rarest."""
    order = sorted((k for k, n in enumerate(measured.counts) if n), key=lambda k: -measured.counts[k])
    print(f"\n{'tokens':<18} {'number':>7} {'of the text':>12} {'accuracy':>9} {'|w|':>7} {'|mean h|':>9}")
    start = 0
    for name, share in GROUPS.items():
        group, start = order[start : round(share * len(order))], round(share * len(order))
        counts = torch.tensor([measured.counts[k] for k in group], dtype=torch.double)
        accuracy, weights, means = (
            torch.tensor([values[k] for k in group], dtype=torch.double)
            for values in (measured.class_accuracy, measured.weight_norms, measured.mean_norms)
        )
        share_of_text, right = counts.sum() / measured.num_samples, (accuracy * counts).sum() / counts.sum()
        sizes = f"{weights.mean():>7.3f} {means.mean():>9.3f}"
        print(f"{name:<18} {len(group):>7} {share_of_text:>12.1%} {right:>9.1%} {sizes}")


def print_step(step: int, measured: nc.Measurement) -> None:
    print(f"step {step:5d}  NC1 {measured.nc1:.4f}  accuracy {measured.accuracy:.4f}")


def main(fast: bool, out: str) -> None:
    torch.manual_seed(0)
    setting = FAST if fast else Setting()
    text = generate_text(setting)
    data = TensorDataset(text[:, :-1], text[:, 1:])  # the labels are shifted here: the monitor takes them as they are
    loader = DataLoader(data, batch_size=64, shuffle=True)
    model = LanguageModel(setting)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, setting.steps)
    measured = DataLoader(TensorDataset(*data[: setting.measured]), batch_size=64)
    step = 0
    with nc.monitor(model, measured, min_count=2, layers="layers.layers.*") as watch:
        print_step(0, watch.step())  # before training
        while step < setting.steps:
            for ids, following in loader:
                loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), following.flatten())
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
                step += 1
                if step % (setting.steps // 3) == 0:
                    print_step(step, watch.step())
                if step == setting.steps:
                    break
    print_by_frequency(watch.last)
    watch.plot().write_html(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fast", action="store_true", help="200 tokens instead of 8,000")
    parser.add_argument("--out", default="language_model.html", help="the curves")
    main(**vars(parser.parse_args()))
