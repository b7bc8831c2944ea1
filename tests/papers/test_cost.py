"""Estimated GPU minutes, beside what runs on an H200 took."""

import json
import statistics
from pathlib import Path

import pytest
import torch

from ncollapse.data import INFO
from ncollapse.models import create
from ncollapse.papers.bce_vs_ce import train_point
from ncollapse.papers.catalogue import CATALOGUE
from ncollapse.papers.cost import (
    GIGA_OPERATIONS,
    PACKED_PERCEPTRONS,
    STEP_MS,
    count_weights,
    estimate_measurement,
    estimate_minutes,
    estimate_step,
    estimate_step_of,
)
from ncollapse.runs.record import read_run
from ncollapse.train import Recipe

ROOT = Path(__file__).parents[2]
TOGETHER = ("5e711ececa3a", "d5d42b236b49", "e39ab9eb0d89", "6255d8a6ae88")
"""Four perceptrons that shared a GPU, in the order in which they ended."""


def read_json(*place):
    return json.loads(ROOT.joinpath("results", *place).read_text(encoding="utf-8"))


def load(run):
    """A kept run and its recipe."""
    record = read_run(ROOT / "results" / "runs" / run)
    return record, Recipe.from_dict(record.config)


def step_times(record):
    """Milliseconds of a step in each measured epoch."""
    per_epoch = record.history[-1]["step"] / record.history[-1]["epoch"]
    return [1e3 * row["time"]["epoch_s"] / per_epoch for row in record.history]


@pytest.mark.parametrize("run", ["6b330cd1584c", "81e7601d672f", "dd937fa94dc4", "4a00b0b76744", "f7622c33a04d"])
def test_runs_that_had_the_gpu_alone_took_what_is_estimated(run):
    """ResNet18 at batch 128 and 32, ResNet34 at batch 64."""
    record, recipe = load(run)
    assert estimate_minutes(recipe) * 60 == pytest.approx(record.final("time.wall_s"), rel=0.13)


@pytest.mark.parametrize("run", TOGETHER)
def test_a_step_of_a_perceptron_is_its_fastest(run):
    record, recipe = load(run)
    assert estimate_step_of(recipe) == pytest.approx(min(step_times(record)), rel=0.05)
    assert estimate_minutes(recipe) * 60 < record.final("time.wall_s"), "it shared the GPU"


def test_the_last_of_four_perceptrons_had_the_gpu_alone_in_the_end():
    *others, (record, recipe) = map(load, TOGETHER)
    last = max(other.final("time.wall_s") for other, _ in others)
    alone = [row for row in record.history if row["time"]["elapsed_s"] > last + 2]
    assert len(alone) > 10
    assert statistics.median(step_times(record)[-len(alone) :]) == pytest.approx(estimate_step_of(recipe), rel=0.05)
    assert (recipe.data.name, sum(recipe.data.per_class_counts)) == ("cifar10", 3000)
    measured = statistics.median(row["time"]["measure_s"] for row in alone)
    assert measured == pytest.approx(1.1e-8 * 13000 * 2048, rel=0.1)


def test_four_perceptrons_at_a_time_take_half():
    runs = list(map(load, TOGETHER))
    wall = max(record.final("time.wall_s") for record, _ in runs)
    one_at_a_time = sum(60 * estimate_minutes(recipe) for _, recipe in runs)
    assert wall / one_at_a_time == pytest.approx(PACKED_PERCEPTRONS, rel=0.03)


def test_a_search_takes_less_than_before_its_evaluations_were_graphs():
    """The one run on a GPU is an upper bound: it shared the GPU and started kernel by kernel."""
    record, recipe = load("d7ce95b762b7")
    assert 25 * 1.83 < estimate_step_of(recipe) < min(step_times(record)) / 5


def test_every_perceptron_is_estimated_as_one():
    recipes = [point.recipe for experiment in CATALOGUE.values() for point in experiment.grid()]
    small = [recipe for recipe in recipes if recipe.model.name.startswith("mlp")]
    assert {recipe.model.name for recipe in small} == {f"mlp-{width}" for width in (128, 1024, 2048)}
    plain = [recipe for recipe in small if recipe.optim.name != "lbfgs"]
    assert all(0.3 < estimate_step_of(recipe) < 0.61 for recipe in plain)


@pytest.mark.parametrize(("name", "data"), [("mlp-small", "mnist"), ("mlp-40", "cifar10")])
def test_weights_are_counted(name, data):
    recipe = load(TOGETHER[0])[1].override(model__name=name, data__name=data, data__per_class_counts=None)
    channels, size, _ = INFO[data].shape
    network = create(name, 10, in_channels=channels, image_size=size)
    weights = [layer.weight.numel() for layer in network.trunk.modules() if isinstance(layer, torch.nn.Linear)]
    assert count_weights(recipe) == sum(weights) > 0
    assert count_weights(recipe.override(model__name="resnet18")) is None


def test_the_estimate_follows_the_measured_rate():
    recipe = train_point({"data": "mnist", "model": "resnet18", "optimizer": "adamw", "loss": "ce"}).recipe
    training = 100 * (60000 / 128) * 1.83e-3 / 60
    assert training < estimate_minutes(recipe) < 1.5 * training
    assert estimate_minutes(recipe.override(model__name="resnet50")) > 2 * estimate_minutes(recipe)
    assert estimate_minutes(recipe.override(optim__name="lbfgs")) > 15 * estimate_minutes(recipe)
    assert estimate_minutes(recipe.override(optim__batch_size=32)) > 1.9 * estimate_minutes(recipe)
    tail = recipe.override(data__name="cifar100", data__long_tail=100.0)
    assert estimate_minutes(tail) < 0.4 * estimate_minutes(recipe.override(data__name="cifar100"))


def test_steps_and_measurements_take_as_long_as_their_pixels():
    """Four times the pixels take four times as long, and the stem for large images leaves a sixteenth of them."""
    recipe = train_point({"data": "cifar10", "model": "resnet18", "optimizer": "adamw", "loss": "ce"}).recipe
    plain, large = (recipe.override(data__image_size=size) for size in (32, 64))
    assert estimate_measurement(plain) == pytest.approx(0.14 * 1.83 / 128), "a share of a trained sample's time"
    for estimate in (estimate_step_of, estimate_measurement):
        assert estimate(large) == pytest.approx(4 * estimate(plain))
        whole = recipe.override(data__image_size=128, model__stem="imagenet")
        assert estimate(whole) == pytest.approx(estimate(plain))


def test_the_two_adams_keep_the_same_state():
    recipe = load(TOGETHER[0])[1].override(optim__name="adam")
    assert estimate_step_of(recipe.override(optim__name="adamw")) == estimate_step_of(recipe)
    assert estimate_step_of(recipe.override(optim__name="sgd")) < estimate_step_of(recipe)


def test_steps_are_those_that_were_measured():
    networks = read_json("benchmarks", "networks-h200.json")["networks"]
    for name in networks:
        assert estimate_step(name) == pytest.approx(networks[name]["ours"]["ms"], rel=0.02), name
    assert set(STEP_MS) - set(networks) == {"densenet121-small"}
    narrow = estimate_step("wide-resnet50-0.25") / estimate_step("resnet50")
    assert narrow == pytest.approx(5.0 / 6.17, rel=0.02)  # with the kernels of that time
    assert estimate_step("resnet34") == pytest.approx(1.83 * 1.16 / 0.56)


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet32"])
def test_operations_are_counted(name):
    counted = []
    network = create(name, 10, in_channels=3, image_size=32).eval()
    for layer in network.modules():
        if isinstance(layer, torch.nn.Conv2d):
            layer.register_forward_hook(lambda x, _, out: counted.append(out.numel() * x.weight[0].numel()))
    with torch.no_grad():
        network(torch.zeros(1, 3, 32, 32))
    assert GIGA_OPERATIONS[name] == pytest.approx(sum(counted) / 1e9, rel=0.03)
