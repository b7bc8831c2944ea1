"""How far initial draws scatter the scores of runs under SGD and CE: traces, simulated draws, and trained networks."""

import math
import statistics
from dataclasses import replace

import pytest
import torch

import ncollapse as nc
from ncollapse.papers.initial_draws import deviation_of_scores, norm_of_mean_feature
from ncollapse.papers.judge import Line, judge
from ncollapse.papers.markdown import _deviate
from ncollapse.papers.publications import load
from ncollapse.sweep.sweep import sweep
from ncollapse.train import recipes
from ncollapse.train.initial_values import share_left
from reference.paper_runs import run

SMALL = {"data__samples_per_class": 20, "optim__epochs": 4, "decays__bias": 0.0}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Forty seeds of one small network under CE and SGD."""
    seeds = [recipes.get("digits", loss="ce", seed=seed).override(**SMALL) for seed in range(40)]
    return sweep(seeds, tmp_path_factory.mktemp("runs"), engine="packed", jobs=1, device="cpu")


def test_the_norm_of_the_mean_feature_follows_from_the_traces():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(5).repeat(40)
    features = torch.rand(5, 7, generator=generator)[labels] + torch.rand(200, 7, generator=generator)
    record = replace(run(), summary={"train": nc.measure(features, labels).to_dict()})
    assert norm_of_mean_feature(record) == pytest.approx(features.double().mean(0).norm().item(), rel=1e-6)
    uneven = replace(run(), summary={"train": nc.measure(features[3:], labels[3:]).to_dict()})
    assert math.isnan(norm_of_mean_feature(uneven))
    assert math.isnan(norm_of_mean_feature(replace(run(), summary=None)))


def test_the_deviation_is_that_of_many_draws(trained):
    """Heads drawn anew, their mean row times any feature of that norm."""
    record = trained[0]
    classes, dim = record.summary["train"]["num_classes"], record.summary["train"]["dim"]
    torch.manual_seed(1)
    feature = torch.rand(dim)
    feature *= norm_of_mean_feature(record) / feature.norm()
    share = share_left(recipes.get("digits", loss="ce").override(**SMALL), "weight")
    drawn = [float(share * nc.LinearHead(dim, classes).weight.detach().mean(0) @ feature) for _ in range(4000)]
    assert deviation_of_scores(record) == pytest.approx(statistics.stdev(drawn), rel=0.05)


def test_trained_networks_scatter_as_far(trained):
    """Forty mean scores over their own deviations have a mean square of 1, to three standard errors."""
    classes = 10
    scaled = []
    for record in trained:
        positive, negative = (record.final(f"train.{sign}_score.mean") for sign in ("positive", "negative"))
        scaled.append((positive + (classes - 1) * negative) / classes / deviation_of_scores(record))
    square = statistics.fmean(value**2 for value in scaled)
    assert abs(square - 1) < 3 * math.sqrt(2 / len(scaled)), scaled


def test_it_is_not_known_elsewhere(trained):
    record = trained[0]
    for change in (
        {"loss": {**record.config["loss"], "name": "bce"}},
        {"optim": {**record.config["optim"], "name": "adam"}},
    ):
        assert deviation_of_scores(replace(record, config={**record.config, **change})) == 0.0
    fixed = {"model": {**record.config["model"], "head": "etf"}}
    assert deviation_of_scores(replace(record, config={**record.config, **fixed})) == 0.0


def test_a_number_within_three_of_them_is_reproduced_and_says_so():
    where = {"data": "cifar100", "model": "resnet18", "optimizer": "sgd", "augment": "DA1", "loss": "ce"}
    cell = load("bce-vs-ce")["table-13"].find("train.negative_score", **where)
    assert cell.value == -0.18
    line = Line("", "", "train.negative_score", where, cell, values=(-0.1633,), epochs=(100,), asked=100)
    assert judge(line, [line]).verdict == "not reproduced"
    known = judge(replace(line, drawn=0.0163), [line])
    assert known.verdict == "reproduced"
    assert known.needs_draw
    assert _deviate(known, 2).endswith("(± 0.02 over initial draws)")
    assert judge(replace(line, drawn=0.005), [line]).verdict == "not reproduced", "3.3 of them away"
    near = judge(replace(line, values=(-0.18,), drawn=0.0163), [line])
    assert (near.verdict, near.needs_draw) == ("reproduced", False)
