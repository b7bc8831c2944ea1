"""Compactness and distinctiveness of the correctly classified: against all pairs, and where a class has none."""

import json

import numpy as np
import pytest
import torch

from ncollapse.heads import LinearHead
from ncollapse.metrics import collect, measure
from ncollapse.models import create
from ncollapse.train import recipes, run
from ncollapse.train.distributed import World
from ncollapse.train.evaluate import Extractor, measure_correct, shorten
from reference.scripts import load_script


@pytest.fixture
def scored():
    """Features, labels, and a head that errs on some of them."""
    torch.manual_seed(0)
    labels = torch.arange(60) % 4
    head = LinearHead(6, 4)
    features = 0.9 * torch.randn(60, 6) + 3 * torch.nn.functional.normalize(head.weight.detach(), dim=1)[labels]
    return features, labels, head


def test_a_row_of_history_is_a_measurement_without_the_values_by_class(scored):
    features, labels, head = scored
    for found in (measure(features, labels, head=head), collect(features, labels, head=head).measurement):
        plain = found.to_dict()
        row = shorten(found)
        assert str(row) == str({name: value for name, value in plain.items() if not isinstance(value, list)})
        assert len(row) < len(plain)
        assert row["positive_score"]["mean"] == found.positive_score.mean
        assert json.loads(json.dumps(row)) is not None


@pytest.mark.parametrize("batches", [[24], [10, 14], [8, 8, 8], []])
def test_features_of_all_batches_in_their_order(batches):
    model = create("mlp-small", 4, in_channels=1, image_size=8).train()
    x, y = torch.randn(sum(batches), 1, 8, 8), torch.arange(sum(batches)) % 4
    found = Extractor(model, "fp32", World(0, 1, torch.device("cpu")))(list(zip(x.split(batches), y.split(batches))))
    assert model.training
    assert torch.equal(found[1], y)
    assert found[0].shape == (len(x), 256)
    assert torch.allclose(found[0], model.features(x).detach(), atol=1e-6)


def test_against_all_pairs(scored):
    features, labels, head = scored
    right = (features @ head.weight.detach().T - head.bias.detach()).argmax(1) == labels
    assert 20 < int(right.sum()) < 60
    h, y = features[right].double().numpy(), labels[right].numpy()

    def cosines(rows):
        units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return units @ units.T

    centred, raw = cosines(h - h.mean(0)), cosines(h)
    inside = [centred[np.ix_(y == k, y == k)].mean() for k in range(4)]
    between = [raw[np.ix_(y == j, y == k)].mean() for j in range(4) for k in range(4) if j != k]
    found = measure_correct(features, labels, head)
    assert found["num_samples"] == len(h)
    assert found["compactness"] == pytest.approx((1 + np.mean(inside)) / 2, rel=1e-9)
    assert found["distinctiveness"] == pytest.approx((1 - np.mean(between)) / 2, rel=1e-9)


@pytest.mark.filterwarnings("error")
def test_a_class_without_one_leaves_them_open(scored):
    features, labels, head = scored
    with torch.no_grad():
        head.bias[2] = 1e3
    found = measure_correct(features, labels, head)
    assert 0 < found["num_samples"] < 60
    assert (found["compactness"], found["distinctiveness"]) == (None, None)
    with torch.no_grad():
        head.bias.fill_(0.0)
        head.weight.neg_()
    found = measure_correct(features, labels, head)
    assert found["num_samples"] < 20
    assert found["compactness"] is None


def test_the_script_reads_the_same_from_the_weights(tmp_path):
    recipe = recipes.get("digits").override(optim__epochs=3, select="best-test")
    summary = run(recipe, tmp_path / "runs", device="cpu")
    load_script("compactness").main(str(tmp_path / "runs"), str(tmp_path / "found.json"))
    whole = json.loads((tmp_path / "found.json").read_text())
    assert whole["versions"]["torch"] == torch.__version__
    assert whole["command"] == f"python scripts/compactness.py {tmp_path / 'runs'} {tmp_path / 'found.json'}"
    found = whole["runs"][recipe.run_id]
    assert found["recipe"] == "digits mlp-small bce sgd seed 0"
    best, correct = found["best"], summary["test_correct"]
    assert best["accuracy"] == pytest.approx(summary["test"]["accuracy"])
    for reading, wanted in {
        "test mean": summary["test"]["compactness"],
        "right, own mean": correct["compactness"],
    }.items():
        assert best[reading]["com"] == pytest.approx(wanted, rel=1e-5)
    for reading, wanted in {
        "raw": summary["test"]["distinctiveness"],
        "right, raw": correct["distinctiveness"],
    }.items():
        assert best[reading]["dis"] == pytest.approx(wanted, rel=1e-5)
    assert best["right, own mean"]["com"] > best["test mean"]["com"]
