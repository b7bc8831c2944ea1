"""A loss is one file and one registration; everything that takes a loss by name then takes it."""

import importlib
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import ncollapse as nc
from ncollapse.cli import main
from ncollapse.losses import LOSS_NAMES, base, register
from ncollapse.train import recipes, run

DECAYS = {"weight_decay": 5e-3, "feature_decay": 5e-3}


@pytest.fixture
def toy():
    import reference.toy_loss

    if "toy" not in LOSS_NAMES:
        importlib.reload(reference.toy_loss)
    yield reference.toy_loss
    base.unregister("toy")


def test_a_toy_loss_can_be_made_and_used(toy):
    loss = nc.make_loss("toy")
    z = torch.tensor([[2.0, 0.0, 1.0]], dtype=torch.float64)
    assert loss(z, torch.tensor([0])).item() == pytest.approx(2 * nc.CELoss()(z / 2, torch.tensor([0])).item())
    value, d_pos, d_neg = loss.at(3.0, -1.0, 4)
    plain = nc.CELoss().at(1.5, -0.5, 4)
    assert (value, d_pos, d_neg) == pytest.approx((2 * plain.value, plain.d_pos, plain.d_neg), rel=1e-12)
    field, known = nc.landscape("toy", 5, scale=2.0), nc.landscape("ce", 5)
    np.testing.assert_allclose(field.value, 2 * known.value, rtol=1e-10)
    np.testing.assert_allclose(field.d_angle, 2 * known.d_angle, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("features", ["free", "relu"])
def test_a_toy_loss_is_predicted_and_certified(toy, features):
    """2 CE(W h / 2): CE with logits halved, so its decays are twice the other's of the halved W."""
    problem = nc.Problem("toy", 4, per_class=3, features=features, **DECAYS)
    p = nc.predict(problem)
    twin = nc.predict("ce", 4, per_class=3, features=features, weight_decay=5e-3, feature_decay=5e-3)
    assert p.gap == pytest.approx(2 * twin.gap, rel=1e-12)
    assert p.sensitivity()["gap"]["weight_decay"] == pytest.approx(
        2 * twin.sensitivity()["gap"]["weight_decay"], rel=1e-6
    )
    certificate = nc.certify(*p.configuration(), problem)
    assert certificate.objective == pytest.approx(p.objective, rel=1e-12)
    assert 0 <= certificate.gap < 1e-12
    assert nc.solve(problem).objective == pytest.approx(p.objective, abs=1e-9)
    unequal = nc.predict("toy", class_counts=[20, 5, 1], bias=False, features="relu", **DECAYS)
    assert unequal.class_gaps == pytest.approx(
        [2 * gap for gap in nc.predict("ce", class_counts=[20, 5, 1], bias=False, features="relu", **DECAYS).class_gaps]
    )


def test_a_toy_loss_is_known_to_the_command_line(toy, capsys, tmp_path):
    words = ["--num-classes", "4", "--per-class", "3", "--weight-decay", "5e-3", "--feature-decay", "5e-3", "--json"]
    assert main(["predict", "toy", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    p = nc.predict("toy", 4, per_class=3, **DECAYS)
    assert found["gap"] == p.gap
    names = ("features", "labels", "weight", "bias")
    np.savez(tmp_path / "a.npz", **{name: array.numpy() for name, array in zip(names, p.configuration())})
    options = ["--loss", "toy", "--batch-size", "12", "--weight-decay", "5e-3", "--feature-decay", "5e-3", "--json"]
    assert main(["certify", str(tmp_path / "a.npz"), *options]) == 0
    assert 0 <= json.loads(capsys.readouterr().out)["gap"] < 1e-12


def test_a_toy_loss_trains_with_prediction_and_certificate(toy, tmp_path):
    run(recipes.get("digits").override(optim__epochs=1, loss__name="toy"), out=tmp_path / "run")
    (summary,) = (json.loads(path.read_text()) for path in tmp_path.rglob("summary.json"))
    assert summary["status"] == "finished"
    assert summary["prediction"]["problem"]["loss"] == "toy"
    assert summary["certificate"]["gap"] > 0


def test_a_toy_loss_is_compared_in_workers_and_on_the_page(toy, tmp_path, monkeypatch, capsys):
    """A worker process knows the loss by its class alone: package.module:Class."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    name = "reference.toy_loss:ToyLoss"
    words = ["--losses", "ce", name, "--seeds", "1", "--epochs", "2", "--jobs", "1", "--json"]
    assert main(["compare", *words, "--out", str(tmp_path / "runs")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [variant["loss"] for variant in found["variants"]] == ["ce", name]
    assert found["variants"][1]["predicted"]["positive_score"] > 0
    page = Path(found["report"]).read_text(encoding="utf-8")
    assert "ToyLoss" in page


def test_a_class_that_is_no_loss_is_refused():
    with pytest.raises(TypeError, match=r"expected a subclass of ncollapse\.Loss, got 'torch\.nn:Linear'"):
        nc.make_loss("torch.nn:Linear")
    with pytest.raises(ImportError, match=r"loss: 'no_such_module:Loss' cannot be imported"):
        nc.make_loss("no_such_module:Loss")


def test_names_are_taken_once():
    with pytest.raises(ValueError, match="name: expected a new one, got 'ce', which is CELoss"):

        @register("ce")
        class Other(nc.Loss):
            pass

    assert nc.make_loss("ce").__class__ is nc.CELoss


def test_a_loss_that_is_not_registered_is_named_by_its_class():
    class Tilted(nc.losses.Loss):
        def forward(self, logits, target):
            return logits.exp().sum(1).mean()

    assert Tilted.name == "Tilted"
    assert nc.Problem(Tilted(), num_classes=3, per_class=1, weight_decay=1e-3, feature_decay=1e-3).loss.name == "Tilted"
