"""Results of single classes over seeds: head, middle and tail, checked by hand."""

import json
import math

import numpy as np
import pytest
import torch

from ncollapse.compare import compare_runs
from ncollapse.compare.classes import assign_groups, read_class_values, tabulate_classes
from ncollapse.metrics.by_class import describe_classes
from ncollapse.runs.record import read_runs
from reference.runs import write_run


def by_hand(predicted, labels, num_classes):
    """Recall, precision and F1 of each class by counting pairs."""
    rows = []
    for k in range(num_classes):
        hit = sum(p == k == y for p, y in zip(predicted, labels))
        own, guessed = labels.count(k), predicted.count(k)
        recall = hit / own if own else math.nan
        precision = hit / guessed if guessed else math.nan
        f1 = math.nan if not own else 0.0 if not hit else 2 * precision * recall / (precision + recall)
        rows.append((recall, precision, f1))
    return list(zip(*rows))


@pytest.mark.parametrize("seed", range(5))
def test_describe_classes_counts_as_one_would(seed):
    random = np.random.default_rng(seed)
    labels = random.choice(6, size=40, p=[0.5, 0.2, 0.15, 0.1, 0.05, 0.0])
    predicted = np.where(random.random(40) < 0.6, labels, random.integers(0, 5, 40))
    found = describe_classes(torch.from_numpy(predicted), torch.from_numpy(labels), 6)
    recall, precision, f1 = by_hand(predicted.tolist(), labels.tolist(), 6)
    assert found["accuracy"] == pytest.approx(recall, nan_ok=True)
    assert found["precision"] == pytest.approx(precision, nan_ok=True)
    assert found["f1"] == pytest.approx(f1, nan_ok=True)
    assert found["balanced_accuracy"] == pytest.approx(np.nanmean(recall))
    assert found["macro_f1"] == pytest.approx(np.nanmean(f1))


def test_agrees_with_scikit_learn():
    from sklearn.metrics import balanced_accuracy_score, f1_score

    random = np.random.default_rng(7)
    labels, predicted = random.integers(0, 4, 100), random.integers(0, 4, 100)
    found = describe_classes(torch.from_numpy(predicted), torch.from_numpy(labels), 4)
    assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels, predicted))
    assert found["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro"))


def test_groups_are_thirds_of_the_classes_by_their_size():
    counts = [500, 10, 100, 50, 20, 5]
    assert assign_groups(counts) == ("head", "tail", "head", "middle", "middle", "tail")
    assert assign_groups([3, 2]) == ("head", "tail")
    assert assign_groups([3]) == ("middle",)


def test_groups_part_no_classes_of_one_size_where_there_are_two_sizes():
    assert assign_groups([90] * 5 + [5] * 5) == ("head",) * 5 + ("tail",) * 5
    assert assign_groups([5] + [90] * 9) == ("tail",) + ("head",) * 9


ACCURACY = {
    ("ce", 0): [0.9, 0.5, 0.1],
    ("ce", 1): [0.8, 0.7, 0.3],
    ("bce", 0): [0.9, 0.6, 0.4],
    ("bce", 1): [0.7, 0.7, 0.5],
}


def write_classes(folder, counts):
    for (loss, seed), accuracy in ACCURACY.items():
        path = write_run(folder, {"loss.name": loss, "seed": seed})
        summary = json.loads((path / "summary.json").read_text())
        block = {"names": ["cat", "dog", "newt"], "train_counts": counts, "accuracy": accuracy, "f1": accuracy}
        summary["test_by_class"] = {**block, "balanced_accuracy": sum(accuracy) / 3, "macro_f1": sum(accuracy) / 3}
        (path / "summary.json").write_text(json.dumps(summary))


def test_tables_take_every_seed_and_pair_them(tmp_path):
    write_classes(tmp_path, [100, 30, 5])
    (table,) = tabulate_classes(compare_runs(read_runs(tmp_path)))
    assert (table.names, table.groups, table.imbalance) == (("cat", "dog", "newt"), ("head", "middle", "tail"), 20)
    ce, bce = table.rows
    assert ce.differences == {}
    assert bce.values["tail"].mean == pytest.approx(0.45)
    assert bce.values["balanced_accuracy"].n == 2
    assert bce.differences["tail"].mean == pytest.approx(0.25)
    assert bce.differences["head"].mean == pytest.approx(-0.05)
    assert [estimate.mean for estimate in ce.class_accuracy] == pytest.approx([0.85, 0.6, 0.2])


def test_balanced_classes_and_old_records_give_no_table(tmp_path):
    write_classes(tmp_path / "a", [100, 95, 90])
    write_run(tmp_path / "b", {"loss.name": "ce"})
    assert tabulate_classes(compare_runs(read_runs(tmp_path))) == []


def test_groups_have_the_mean_accuracy_of_their_classes(tmp_path):
    """Of those that were tested: a class without test samples has no accuracy."""
    path = write_run(tmp_path, {})
    summary = json.loads((path / "summary.json").read_text())
    accuracy = [0.9, 0.7, 0.5, None, 0.3, 0.2, None]
    block = {"names": list("abcdefg"), "train_counts": [9, 8, 7, 6, 5, 4, 3], "accuracy": accuracy, "f1": accuracy}
    summary["test_by_class"] = {**block, "balanced_accuracy": 0.52, "macro_f1": 0.5}
    (path / "summary.json").write_text(json.dumps(summary))
    (record,) = read_runs(tmp_path)
    groups = assign_groups(block["train_counts"])
    assert groups == ("head", "head", "middle", "middle", "middle", "tail", "tail")
    wanted = {"head": 0.8, "middle": 0.4, "tail": 0.2, "balanced_accuracy": 0.52, "macro_f1": 0.5}
    assert read_class_values(record, groups) == pytest.approx(wanted)
    nothing = read_class_values(record, ("head",) * 3 + ("middle",) + ("head",) * 3)
    assert math.isnan(nothing["middle"])
    assert math.isnan(nothing["tail"])
    assert read_class_values(record, groups[:3]) == {}


def test_a_seed_without_classes_is_no_pair(tmp_path):
    write_classes(tmp_path, [100, 30, 5])
    for file in tmp_path.glob("*/summary.json"):
        summary, config = json.loads(file.read_text()), json.loads((file.parent / "config.json").read_text())
        if (config["loss"]["name"], config["seed"]) == ("bce", 1):
            del summary["test_by_class"]
            file.write_text(json.dumps(summary))
    (table,) = tabulate_classes(compare_runs(read_runs(tmp_path)))
    difference = table.rows[1].differences["tail"]
    assert (difference.n, difference.mean) == (1, pytest.approx(0.3))
