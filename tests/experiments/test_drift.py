"""How far AdamW carries the mean of CE's bias at small lambda_b: theory.md Sec. 7 against the runs kept in results/."""

import math
from pathlib import Path

import numpy as np
import pytest

from ncollapse.experiments.catalogue import find
from ncollapse.experiments.experiment import adjust, expand
from ncollapse.experiments.runs import read_runs
from ncollapse.experiments.verdicts import match, sign
from ncollapse.theory.posed import predict_posed
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


@pytest.mark.parametrize(("decay", "said", "end"), [("5e-5", "1.0 %", "3.686"), ("5e-6", "1.1 %", "8.983")])
def test_the_last_epochs_drift_as_predicted(decay, said, end, records):
    points = expand(find("bce-vs-ce/table-10"), {"loss": ("ce",), "optimizer": ("adamw",), "bias_decay": (decay,)})
    ((_, found),) = match(points, records)
    record = next(record for record in found if record.seed == 0)
    recipe = Recipe.from_dict(record.config)
    assert recipe.optim.epochs == 100
    epochs, biases = record.series("train.bias.mean")
    bias = dict(zip(epochs, biases))
    measured = math.log(bias[80] / bias[100])
    optimum = predict_posed(recipe.problem(num_classes=10, samples=60_000))
    wrong = math.exp(optimum.negative_score - optimum.positive_score)
    way = sum(rate_at(recipe, epoch) for epoch in range(81, 101)) * math.ceil(60_000 / 128)
    predicted = way * drift(float(decay), wrong / (1 + 9 * wrong), math.sqrt(bias[80] * bias[100]))
    text = (ROOT / "docs" / "theory.md").read_text()
    assert f"{100 * (1 - measured / predicted):.1f} %" == said
    assert said in text
    assert f"{bias[100]:.3f}" == end
    assert end in text


def test_seed_and_precision_matter_less_than_the_network(records):
    """An MLP on the same problem: what theory.md says of its final biases."""
    (point,) = expand(find("bce-vs-ce/table-10"), {"loss": ("ce",), "optimizer": ("adamw",), "bias_decay": ("5e-5",)})
    wanted = sign(adjust(point.recipe, model__name="mlp-256").to_dict())
    ends = {(r.get("precision"), r.seed): r.final("train.bias.mean") for r in records if sign(r.config) == wanted}
    assert set(ends) == {("fp32", 0), ("fp32", 1), ("bf16", 0)}
    text = (ROOT / "docs" / "theory.md").read_text()
    assert (
        f"{ends['fp32', 0]:.3f} and {ends['fp32', 1]:.3f} (two seeds) and {ends['bf16', 0]:.3f} (in bfloat16)" in text
    )
    ((_, resnets),) = match([point], records)
    apart = max(ends.values()) / min(ends.values()) - 1
    assert apart < 0.005
    assert min(ends.values()) > 1.5 * max(record.final("train.bias.mean") for record in resnets)
