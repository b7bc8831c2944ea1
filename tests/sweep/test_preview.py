"""What runs cost before they start: counted by hand, and compared with what a run then writes."""

import json
import math

import numpy as np
import pytest

from ncollapse import Loss
from ncollapse.sweep import preview as module
from ncollapse.sweep.preview import describe_settings, preview
from ncollapse.train import recipes, run

SHORT = recipes.get("digits").override(optim__epochs=1)


def test_disk_is_that_of_the_finished_run(tmp_path):
    before = preview([SHORT], tmp_path)
    assert (before.runs, before.finished) == (1, 0)
    run(SHORT, tmp_path, device="cpu")
    kept = sum(file.stat().st_size for file in (tmp_path / SHORT.run_id).glob("*.safetensors"))
    weights = (tmp_path / SHORT.run_id / "final.safetensors").stat().st_size
    checkpoints = 2 * (2 * weights + weights)  # of SGD: the weights, their momentum and the best so far
    assert before.disk_bytes == pytest.approx(kept + checkpoints, rel=0.3)
    after = preview([SHORT], tmp_path)
    assert (after.runs, after.finished, after.seconds, after.disk_bytes) == (1, 1, 0, 0)


def test_the_time_grows_with_the_epochs(tmp_path):
    one, many = (preview([SHORT.override(optim__epochs=n)], tmp_path).seconds for n in (1, 1000))
    assert many > 20 * one


def test_a_device_that_fails_leaves_the_cost_unknown(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("CUDA out of memory\nand more")

    monkeypatch.setattr(module, "time_run", fail)
    shown = preview([SHORT], tmp_path)
    assert (shown.seconds, shown.disk_bytes) == (None, None)
    assert shown.lines()[-1] == "runs: 1, 0 finished; time and disk could not be estimated (CUDA out of memory)"
    assert json.dumps(shown.class_counts).startswith('{"0": ')


def test_a_mistake_in_a_loss_leaves_the_cost_unknown(tmp_path, monkeypatch):
    def fail(*_):
        raise KeyError("logits")

    monkeypatch.setattr(module, "time_run", fail)
    assert preview([SHORT], tmp_path).untimed == "KeyError: 'logits'"


class Refusing(Loss):
    def forward(self, logits, target):
        raise ValueError("a mistake of the user's own")


class Undefined(Loss):
    def forward(self, logits, target):
        return math.nan * logits.sum()


@pytest.mark.parametrize(
    ("loss", "reason"),
    [("Refusing", "a mistake of the user's own"), ("Undefined", "the loss of the first steps is not finite")],
)
def test_a_loss_that_fails_stops_no_other_run(tmp_path, loss, reason):
    """Before a comparison only what all runs share may end it: a ValueError of one loss is the matter of its runs."""
    recipes = [SHORT.override(loss__name=name) for name in (f"{__name__}:{loss}", "ce")]
    assert preview(recipes, tmp_path).untimed == reason


@pytest.mark.parametrize(
    ("normalise", "said"),
    [
        ("auto", "floating point values as they are, not normalised (no recipe says how for {})"),
        ("8/6", "floating point values as they are, minus mean 8, over std 6 (as given)"),
    ],
)
def test_floating_point_values_are_not_said_to_be_scaled(tmp_path, normalise, said):
    name = f"npz:{tmp_path / 'a.npz'}"
    np.savez(tmp_path / "a.npz", images=16 * np.random.default_rng(0).random((100, 64)), labels=np.arange(100) % 10)
    recipe = SHORT.override(data__name=name, data__normalise=normalise)
    assert preview([recipe], tmp_path, timed=False).data.endswith(said.format(name))


def test_runs_of_a_tuning_are_looked_for_where_they_are(tmp_path):
    tuned = SHORT.override(data__validation=0.1)
    run(tuned, tmp_path / "tuning" / "runs", device="cpu")
    shown = preview([SHORT], tmp_path, tuning=[tuned], timed=False)
    assert (shown.runs, shown.finished) == (2, 1)


def test_weak_decays_at_first_are_among_the_settings():
    recipe = recipes.get("digits").override(decays__weak_epochs=20)
    said = "decays in the loss: W 0.005, features 0.005, b 0.01"
    assert f"; {said}, times 0.1 in the first 20 epochs; " in describe_settings(recipe)
    assert f"; {said}; " in describe_settings(recipes.get("digits"))
