"""What our runs under SGD kept of their initial biases and weights: theory.md Sec. 7 against the runs in results/."""

from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.numpy import load_file

from ncollapse.data import INFO
from ncollapse.models import create
from ncollapse.papers.publications import load
from ncollapse.report.notes import MOST
from ncollapse.runs.record import read_run, read_runs
from ncollapse.train import Recipe
from ncollapse.train.initial_values import share_left

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def text():
    """What theory.md says, on one line."""
    return " ".join((ROOT / "docs" / "theory.md").read_text().split())


@cache
def start(model, data, channels, seed):
    """The means over the classes of the initial rows of W and of the initial biases, drawn as training draws them."""
    torch.manual_seed(seed)
    info = INFO[data]
    head = create(
        model.name,
        info.num_classes,
        in_channels=channels or info.shape[0],
        feature_dim=model.feature_dim,
        head=model.head,
        bias=model.bias,
        bias_init=model.bias_init,
        stem=model.stem,
    ).get_classifier()
    bias = 0.0 if head.bias is None else head.bias.detach().double().mean().item()
    return head.weight.detach().double().mean(0), bias


@pytest.fixture(scope="module")
def runs():
    """(record, recipe) of the runs to which it applies, as far as their networks are trained from their start."""
    found = []
    for record in read_runs(ROOT / "results" / "runs"):
        recipe = Recipe.from_dict(record.config)
        if share_left(recipe, "weight") is not None and recipe.select == "last":
            found.append((record, recipe))
    return found


def test_biases_end_where_decay_leaves_them(runs, text):
    off = []
    for record, recipe in runs:
        if recipe.model.bias:
            _, initial = start(recipe.model, recipe.data.name, recipe.data.channels, recipe.seed)
            off.append(abs(record.final("train.bias.mean") - share_left(recipe, "bias") * initial))
    assert f"the mean bias ends within {max(off):.1e} of s b̄₀ in {len(off)} runs".replace("e-05", "e-5") in text
    assert max(off) < 5e-5


def test_weights_end_where_decay_leaves_them(runs, text):
    """By the norm of the mean row, since records turn the space of features."""
    off = []
    for record, recipe in runs:
        snapshot = record.path / "snapshot.safetensors"
        arrays = load_file(snapshot) if snapshot.exists() else {}
        if "weight" in arrays:
            initial, _ = start(recipe.model, recipe.data.name, recipe.data.channels, recipe.seed)
            ours = torch.as_tensor(arrays["weight"]).double().mean(0).norm().item()
            off.append(abs(ours / (share_left(recipe, "weight") * initial.norm().item()) - 1))
    close = sum(value < 2e-4 for value in off)
    assert f"|w̄| within {100 * max(off):.2f} % of s |w̄₀| in {len(off)}, {close} of them within 0.02 %" in text
    assert max(off) < 0.005


def test_the_share_says_whether_sgd_can_collapse(text):
    shares = [
        share_left(Recipe.from_dict(read_run(ROOT / "results" / "runs" / name).config), "weight")
        for name in ("5e711ececa3a", "61025c3da5de")
    ]
    assert f"(s = {shares[0]:.2f} with momentum); at 400 times that rate (s = {shares[1]:.3f})" in text
    assert f"notes runs with s above {MOST}." in text


def test_the_negative_scores_of_table_13_differ_by_the_start(text):
    """Printed 15.8 and -0.18, ours 15.84 and -0.16: another mean score, the same difference."""
    (ours,) = (
        record
        for record in read_runs(ROOT / "results" / "runs")
        if record.get("data.name") == "cifar100"
        and record.get("name") == "bce-vs-ce/setting-3"
        and record.get("loss.name") == "ce"
    )
    where = {"data": "cifar100", "model": "resnet18", "optimizer": "sgd", "augment": "DA1", "loss": "ce"}
    table = load("bce-vs-ce")["table-13"]
    printed = [table.find(f"train.{sign}_score", **where).value for sign in ("positive", "negative")]
    found = [ours.final(f"train.{sign}_score.mean") for sign in ("positive", "negative")]
    means = [(positive + 99 * negative) / 100 for positive, negative in (printed, found)]
    gaps = [positive - negative for positive, negative in (printed, found)]
    assert f"The printed scores have another mean: {means[0]:.3f} for ResNet18".replace("-", "−") in text
    assert f"our run has {means[1]:.3f} with another start".replace("-", "−") in text
    assert f"s_pos − s_neg are {gaps[0]:.2f} and {gaps[1]:.2f}." in text
