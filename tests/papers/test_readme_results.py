"""The README's rows on single runs, against the records in results/ and the published numbers."""

from pathlib import Path

import pytest

from ncollapse.papers import publications
from ncollapse.papers.catalogue import get_experiment
from ncollapse.papers.matching import at_own_lengths, match
from ncollapse.runs.record import read_runs

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def records():
    return read_runs(ROOT / "results" / "runs")


@pytest.fixture(scope="module")
def readme():
    return (ROOT / "README.md").read_text(encoding="utf-8")


def find(experiment, records, **keys):
    """The records of one point of an experiment."""
    (found,) = [
        one.records
        for one in match(get_experiment(experiment).grid(), records)
        if one.point.keys.items() >= keys.items() and one.records
    ]
    return found


def mean(records, field):
    return sum(record.final(field) for record in records) / len(records)


def test_norms_on_mnist(readme, records):
    keys = {"model": "resnet18", "optimizer": "adamw"}
    ce = find("bce-vs-ce/table-6", records, loss="ce", **keys)
    bce = find("bce-vs-ce/table-9", records, loss="bce", optimizer="adamw", bias_init=2)
    assert len(ce) == len(bce) == 3
    ours = [mean(some, "train.weight_energy") for some in (ce, bce)]
    best = [mean(some, "prediction.weight_energy") for some in (ce, bce)]
    assert (
        f"CE 212.22, {ours[0]:.2f}, {best[0]:.2f}; BCE with lambda_b = 0: 350.43, {ours[1]:.2f}, {best[1]:.2f} |"
        in readme
    )


def test_resnet50_on_cifar10(readme, records):
    parts, table = [], publications.load("bce-vs-ce")["table-7"]
    for loss in ("ce", "bce"):
        keys = {"data": "cifar10", "model": "resnet50", "optimizer": "sgd", "loss": loss}
        (record,) = find("bce-vs-ce/table-7", records, **keys)
        assert record.get("optim.epochs") == 100
        printed = [table.find(field, **keys) for field in ("train.weight_energy", "test.accuracy")]
        norm, accuracy = float(printed[0].printed), float(printed[1].printed)
        ours = record.final("train.weight_energy"), 100 * record.final("test.accuracy")
        parts.append(f"{loss.upper()} {norm:.2f}, {ours[0]:.2f}; {accuracy:.2f} %, {ours[1]:.2f} %")
    assert f"| {'. '.join(parts)} |" in readme


def test_a_vision_transformer(readme, records):
    parts = []
    for loss in ("ce", "bce"):
        (record,) = find("bce-vs-ce/vit", records, loss=loss, augment="DA1")
        assert record.get("optim.epochs") == 25
        rates = [100 * record.final(f"test.{name}") for name in ("accuracy", "uniform_accuracy")]
        parts.append(f"{loss.upper()} {rates[0]:.1f} %, {rates[1]:.1f} %")
    assert f"| {'; '.join(parts)} |" in readme


def test_four_losses_on_cifar10(readme, records):
    points = [point for point in get_experiment("all-losses/figure-1").grid() if point.keys["width"] == 2]
    found = {(keys["epochs"], keys["loss"]): run for keys, run in at_own_lengths(points, records) if run.seed == 0}
    accuracies = {
        epochs: [100 * found[epochs, loss].final("test.accuracy") for loss in ("ce", "focal", "ls", "mse")]
        for epochs in (25, 100)
    }
    long, short = (", ".join(f"{value:.1f}" for value in accuracies[epochs]) for epochs in (100, 25))
    assert f"in brackets after 25 epochs | {long} % ({short} %) |" in readme
