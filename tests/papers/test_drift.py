"""How far AdamW carries the mean of CE's bias at small lambda_b: theory.md Sec. 7 against the runs kept in results/."""

import itertools
import math
import statistics
from pathlib import Path

import numpy as np
import pytest

from ncollapse.papers.catalogue import get_experiment
from ncollapse.papers.experiment import expand
from ncollapse.papers.matching import match
from ncollapse.runs.identity import point_key
from ncollapse.runs.record import read_runs
from ncollapse.theory import predict_if_known
from ncollapse.train import Recipe
from ncollapse.train.schedule import rate_at

ROOT = Path(__file__).parents[2]


def drift(decay, wrong, bias, classes=10, batch=128):
    """-d log b / dt over the rate, `wrong` being the probability of one wrong class."""
    return decay / math.sqrt(wrong**2 * (classes - 1) / batch + decay**2 * bias**2)


@pytest.mark.parametrize("decay", [5e-5, 5e-6])
def test_adam_on_collapsed_features_drifts_as_derived(decay):
    """Adam itself on the bias of 10 classes whose features do not move: batches differ in their class counts alone."""
    rng = np.random.default_rng(0)
    wrong, rate, steps = 1.9e-3, 1e-4, 20_000
    bias, first, second = np.full(10, 10.0), np.zeros(10), np.zeros(10)
    margin = math.log((1 - 9 * wrong) / wrong)  # of the own class over another, at equal biases
    start = None
    for step in range(1, steps + 1):
        if step == steps // 2:
            start = bias.mean()
        scores = margin * np.eye(10) - bias  # of the classes, a row each
        odds = np.exp(scores - scores.max(1, keepdims=True))
        counts = rng.multinomial(128, [0.1] * 10)
        away = counts @ (np.eye(10) - odds / odds.sum(1, keepdims=True)) / 128 + decay * bias
        first, second = 0.9 * first + 0.1 * away, 0.999 * second + 0.001 * away**2
        bias = bias - rate * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    measured = math.log(start / bias.mean())
    predicted = rate * steps / 2 * drift(decay, wrong, math.sqrt(start * bias.mean()))
    assert measured == pytest.approx(predicted, rel=0.05)


@pytest.fixture(scope="module")
def records():
    return read_runs(ROOT / "results" / "runs")


@pytest.fixture(scope="module")
def text():
    """What theory.md says, on one line."""
    return " ".join((ROOT / "docs" / "theory.md").read_text().split())


def pick(decay):
    """The point of table 10."""
    (point,) = expand(
        get_experiment("bce-vs-ce/table-10"), {"loss": ("ce",), "optimizer": ("adamw",), "bias_decay": (decay,)}
    )
    return point


def follow(record):
    """The mean of the bias by epoch, from its start."""
    return {0: 10.0, **dict(zip(*record.series("train.bias.mean")))}


@pytest.fixture(scope="module")
def resnets(records):
    """The runs at 5e-5 by (precision, seed, lag), and the one at 5e-6."""
    marks = {point_key(pick(decay).recipe.to_dict()): decay for decay in ("5e-5", "5e-6")}
    found = {}
    for record in records:
        decay = marks.get(point_key(record.config))
        if decay:
            found[decay, record.get("precision"), record.seed, record.get("schedule.lag", 0)] = record
    return found


def test_the_last_epochs_drift_as_predicted(resnets, text):
    """And the earlier ones by less."""
    missing = {"late": [], "early": []}
    for (decay, *_), record in resnets.items():
        recipe, bias = Recipe.from_dict(record.config), follow(record)
        assert recipe.optim.epochs == 100
        optimum = predict_if_known(recipe.problem(num_classes=10, samples=60_000))
        wrong = math.exp(optimum.negative_score - optimum.positive_score)
        for name, (first, last) in {"late": (80, 100), "early": (20, 40)}.items():
            way = sum(rate_at(recipe, epoch) for epoch in range(first + 1, last + 1)) * math.ceil(60_000 / 128)
            predicted = way * drift(float(decay), wrong / (1 + 9 * wrong), math.sqrt(bias[first] * bias[last]))
            missing[name].append(1 - math.log(bias[first] / bias[last]) / predicted)
    assert len(resnets) == 7
    least, most = (f"{100 * bound(missing['late']):.1f} %" for bound in (min, max))
    assert f"our seven runs of ResNet18 drifted {least} to {most} less than that" in text
    assert 0.4 < min(missing["early"]) < max(missing["early"]) < 0.6


def test_where_the_biases_ended(resnets, text):
    ends = {key: record.final("train.bias.mean") for key, record in resnets.items()}
    seeds = [ends["5e-5", "bf16", seed, 1] for seed in range(3)]
    a, b, c = (f"{end:.3f}" for end in seeds)
    d, e = (f"{ends['5e-5', 'tf32', seed, 1]:.3f}" for seed in range(2))
    assert f"three seeds ended at {a}, {b} and {c}, two in TF32 at {d} and {e}" in text
    assert f"deviation over seeds is {100 * statistics.stdev(seeds) / statistics.fmean(seeds):.1f} %" in text
    assert f"our run of seed 0 ended at {ends['5e-5', 'bf16', 0, 0]:.3f};" in text
    assert f"At 5e-6, without it: {ends['5e-6', 'bf16', 0, 0]:.3f}" in text


def test_what_an_epoch_of_lag_does(resnets, text):
    """The way of the run without lag, stretched by the rates with it."""
    record = resnets["5e-5", "bf16", 0, 0]
    recipe, bias = Recipe.from_dict(record.config), follow(record)
    late = recipe.override(schedule__lag=1)
    end = 10.0
    for first, last in itertools.pairwise(bias):
        with_lag, without = (sum(rate_at(r, epoch) for epoch in range(first + 1, last + 1)) for r in (late, recipe))
        end *= (bias[last] / bias[first]) ** (with_lag / without)
    assert f"would have ended at {end:.3f} with it" in text


def test_seed_and_precision_matter_less_than_the_network(records, text):
    """An MLP on the same problem: what theory.md says of its final biases."""
    point = pick("5e-5")
    wanted = point_key(point.recipe.override(model__name="mlp-256").to_dict())
    ends = {(r.get("precision"), r.seed): r.final("train.bias.mean") for r in records if point_key(r.config) == wanted}
    assert set(ends) == {("fp32", 0), ("fp32", 1), ("bf16", 0)}
    assert (
        f"{ends['fp32', 0]:.3f} and {ends['fp32', 1]:.3f} (two seeds) and {ends['bf16', 0]:.3f} (in bfloat16)" in text
    )
    (found,) = match([point], records)
    apart = max(ends.values()) / min(ends.values()) - 1
    assert apart < 0.005
    assert min(ends.values()) > 1.5 * max(record.final("train.bias.mean") for record in found.records)
