"""Classes of unlike size on the page, and what a certified gap guarantees: every number against its own record."""

import itertools
import json
import math

import numpy as np
import pytest
import torch

from ncollapse import certify, measure, measure_layers
from ncollapse.compare import compare_records, group_runs
from ncollapse.compare.classes import tabulate_classes
from ncollapse.console import clean
from ncollapse.report.figures.bounds import BOUNDED, draw_bounds
from ncollapse.report.guarantees import tabulate_guarantees, within_class_scatter
from ncollapse.report.layout import make_report
from ncollapse.report.long_tail import draw_rare, tabulate_groups, tabulate_rare
from ncollapse.report.panels import thin
from ncollapse.runs.record import RunRecord, read_runs
from ncollapse.train import recipes, run
from reference.runs import write_run

COUNTS = [100, 60, 30, 20, 10, 5]
NAMES = ["cat", "dog", "ant", "bee", "<b>elk</b>", "fox"]


def change_summary(path, **content):
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps(summary | content))


@pytest.fixture
def tail(tmp_path):
    """Two losses and two seeds, with the accuracy of each class."""
    for loss in ("ce", "bce"):
        for seed in (0, 1):
            path = write_run(tmp_path, {"loss.name": loss, "seed": seed, "optim.epochs": 2}, num_classes=6)
            accuracy = [1.0, 0.9, 0.8, 0.7, 0.5 + 0.1 * seed, 0.3 if loss == "bce" else 0.1]
            block = {"names": NAMES, "train_counts": COUNTS, "accuracy": accuracy, "f1": accuracy}
            change_summary(path, test_by_class={**block, "balanced_accuracy": np.mean(accuracy), "macro_f1": 0.5})
    return tmp_path


def test_groups_and_classes_stand_on_the_page(tail):
    report = make_report(tail)
    tables = {table.id: table for table in report.tables}
    groups = tables["class-groups"]
    assert [cell.text for cell in groups.columns[1:]] == ["balanced accuracy", "macro F1", "head", "middle", "tail"]
    ce, bce = groups.rows
    assert ce[3].numbers["mean"] == pytest.approx(0.95)
    assert ce[5].numbers["mean"] == pytest.approx((0.55 + 0.1) / 2)
    assert bce[5].numbers["mean"] == pytest.approx((0.55 + 0.3) / 2)
    assert ce[5].lines == ()
    assert bce[5].lines[0].startswith("+10")
    rare = tables["rare-classes"]
    assert [row[0].text for row in rare.rows] == NAMES[::-1]
    assert [row[1].numbers["samples"] for row in rare.rows] == COUNTS[::-1]
    assert [row[4].numbers["mean"] for row in rare.rows] == pytest.approx([0.3, 0.55, 0.7, 0.8, 0.9, 1.0])
    figure = next(figure for figure in report.figures if figure.id == "rare-classes")
    assert figure.spec["data"][0]["x"] == COUNTS[::-1]
    assert figure.spec["data"][1]["y"] == pytest.approx([0.3, 0.55, 0.7, 0.8, 0.9, 1.0])
    assert "&lt;b&gt;elk" in figure.spec["data"][0]["text"][1]
    assert figure.result == "The tail is less accurate than the head by 62.5 points (CE) and 52.5 points (BCE)."


@pytest.fixture
def steps(tmp_path):
    """Three classes of 40 samples and three of 4."""
    path = write_run(tmp_path, {"optim.epochs": 2}, num_classes=6)
    accuracy = [1.0, 0.9, 0.8, 0.6, 0.0, 0.3]
    block = {"names": NAMES, "train_counts": [40] * 3 + [4] * 3, "accuracy": accuracy, "f1": accuracy}
    change_summary(path, test_by_class={**block, "balanced_accuracy": np.mean(accuracy), "macro_f1": 0.5})
    return tmp_path


def test_classes_of_two_sizes_have_no_middle(steps):
    table = next(table for table in make_report(steps).tables if table.id == "class-groups")
    assert table.title == "Head and tail classes"
    assert "with 40 and of those with 4 training samples" in table.method
    assert "middle" not in table.method
    assert [cell.text for cell in table.columns[1:]] == ["balanced accuracy", "macro F1", "head", "tail"]
    assert [cell.numbers["mean"] for cell in table.rows[0][3:]] == pytest.approx([0.9, 0.3])


def test_the_line_joins_means_of_classes_of_one_size(steps):
    figure = next(figure for figure in make_report(steps).figures if figure.id == "rare-classes")
    marks, line = figure.spec["data"]
    assert marks["mode"] == "markers"
    assert marks["cliponaxis"] is False, "a mark at 0 % is drawn whole"
    assert marks["x"] == [4] * 3 + [40] * 3
    assert (line["mode"], line["x"]) == ("lines", [4, 40])
    assert line["y"] == pytest.approx([0.3, 0.9])
    assert [trace["showlegend"] for trace in figure.spec["data"]] == [True, False]


def test_balanced_classes_have_no_such_tables(tmp_path):
    path = write_run(tmp_path, {"optim.epochs": 2}, num_classes=6)
    block = {"names": NAMES, "train_counts": [10] * 6, "accuracy": [1.0] * 6, "f1": [1.0] * 6}
    change_summary(path, test_by_class=block)
    ids = {table.id for table in make_report(tmp_path).tables}
    assert "classes" in ids
    assert not {"class-groups", "rare-classes"} & ids
    assert draw_rare([]) is None


def test_two_data_sets_get_tables_of_their_own(tail):
    path = write_run(tail, {"data.name": "other", "optim.epochs": 2}, num_classes=3)
    block = {"names": ["a", "b", "c"], "train_counts": [9, 3, 1], "accuracy": [1.0, 0.5, 0.0], "f1": [1.0, 0.5, 0.0]}
    change_summary(path, test_by_class=block)
    tables = tabulate_classes(compare_records(read_runs(tail)).findings)
    made = [*tabulate_groups(tables), *tabulate_rare(tables)]
    assert [table.id for table in made] == ["class-groups", "class-groups-1", "rare-classes", "rare-classes-1"]
    assert len({table.title for table in made}) == 4
    assert draw_rare(tables).spec["layout"]["meta"]["panels"] == 2


def test_ticks_do_not_crowd():
    marks = thin(list(range(1, 1000)))
    assert (marks[0], marks[-1]) == (1, 999)
    assert 6 <= len(marks) <= 9
    assert min(b / a for a, b in itertools.pairwise(marks)) >= 999 ** (1 / 8)
    assert thin([]) == []
    assert thin([7]) == [7]


def test_scatter_within_classes_is_that_of_the_features():
    rng = torch.Generator().manual_seed(0)
    labels = torch.tensor([0] * 7 + [1] * 3 + [2] * 5)
    features = torch.randn(15, 4, generator=rng, dtype=torch.float64)
    slow = sum(float((x - features[labels == y].mean(0)).square().sum()) for x, y in zip(features, labels)) / 15
    record = RunRecord("", "", summary={"train": measure(features, labels).to_dict()})
    assert within_class_scatter(record) == pytest.approx(slow)
    assert math.isnan(within_class_scatter(RunRecord("", "", summary={})))


def test_guarantees_of_a_real_run_are_those_of_its_final_weights(tmp_path):
    recipe = recipes.get("digits", loss="bce").override(
        optim__epochs=4, model__name="mlp-16", data__samples_per_class=20
    )
    summary = run(recipe, tmp_path, device="cpu")
    record = read_runs(tmp_path)[0]
    table = tabulate_guarantees(group_runs([record]))
    assert [cell.text for cell in table.columns][-2:] == ["accuracy", "uniform accuracy"]
    scatter, bound = (table.rows[0][2].numbers[name] for name in ("measured", "bound"))
    assert bound == summary["certificate"]["within_class_bound"]
    assert 0 < scatter <= bound
    accuracy = table.rows[0][-2].numbers
    assert accuracy["measured"] == summary["train"]["accuracy"] >= accuracy["bound"]
    arrays = record.snapshot()
    again = certify(
        torch.from_numpy(arrays["train.features"]).double(),
        torch.from_numpy(arrays["train.labels"]),
        torch.from_numpy(arrays["weight"]),
        torch.from_numpy(arrays["bias"]),
        recipe.problem(num_classes=10, samples=200, dim=16),
    )
    assert again.within_class_bound == pytest.approx(bound, rel=1e-3), "all 20 samples a class are in the snapshot"
    assert "guarantees" in {table.id for table in make_report(tmp_path).tables}


def test_the_weakest_bound_of_all_seeds_counts(tmp_path):
    for seed, (within, accuracy) in enumerate(((0.5, 0.9), (0.25, 0.8))):
        path = write_run(tmp_path, {"seed": seed, "optim.epochs": 2})
        certificate = {"gap": 0.1, "relative_gap": 0.1, "within_class_bound": within, "accuracy_bound": accuracy}
        change_summary(path, certificate={**certificate, "uniform_accuracy_bound": None})
    table = tabulate_guarantees(group_runs(read_runs(tmp_path)))
    bounds = {column.text: cell.numbers.get("bound") for column, cell in zip(table.columns, table.rows[0])}
    assert bounds["accuracy"] == 0.8
    assert bounds["spread within classes"] == 0.5
    assert "uniform accuracy" not in bounds


def test_profiles_over_depth_are_drawn_where_a_summary_has_layers(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    profile = measure_layers(model, [(torch.randn(30, 4), torch.arange(30) % 3)])
    change_summary(write_run(tmp_path, {"loss.name": "bce", "optim.epochs": 2}), layers=clean(profile.to_dict()))
    write_run(tmp_path, {"loss.name": "ce", "optim.epochs": 2})
    (figure,) = [figure for figure in make_report(tmp_path).figures if figure.id == "depth"]
    nc1 = figure.spec["data"][0]
    assert (nc1["name"], nc1["text"]) == ("BCE", ["0", "1", "2"])
    assert nc1["y"] == pytest.approx([values.nc1 for values in profile.values()], rel=1e-4)


def test_records_without_bounds_have_no_such_table(tmp_path):
    write_run(tmp_path, {"optim.epochs": 2})
    assert tabulate_guarantees(group_runs(read_runs(tmp_path))) is None


def write_bounds(path, **bounds):
    """Give every row of a history bounds: a list of values, one an epoch."""
    rows = [json.loads(line) for line in (path / "history.jsonl").read_text().splitlines()]
    for i, row in enumerate(rows):
        row["certificate"] |= {f"{name}_bound": values[i] for name, values in bounds.items()}
    (path / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_weakest_bound_of_all_seeds_is_drawn_beside_what_was_measured(tmp_path):
    bounds = ({"nc1": [9.0, 3.0], "nc2": [2.0, 2.0]}, {"nc1": [8.0, 4.0], "nc2": [2.0, 2.0]})
    for seed, own in enumerate(bounds):
        path = write_run(tmp_path, {"seed": seed, "optim.epochs": 2})
        write_bounds(path, **own, accuracy=[0.0, 0.7 + seed / 10], uniform_accuracy=[None, None])
    figure = draw_bounds(group_runs(read_runs(tmp_path)))
    titles = [note["text"] for note in figure.spec["layout"]["annotations"]]
    assert titles == ["<b>train NC1</b>", "<b>train accuracy</b>"], "a bound of 2 on NC2 holds for every network"
    dotted = [trace for trace in figure.spec["data"] if trace.get("name", "").endswith("guaranteed")]
    assert [(trace["x"], trace["y"]) for trace in dotted] == [([1, 2], [9, 4]), ([1, 2], [0, 0.7])]
    assert figure.result.startswith("NC1 is at most 4 by the gap and")
    assert "bounds" in {figure.id for figure in make_report(tmp_path).figures}


def test_bounds_of_a_real_run_hold(tmp_path):
    recipe = recipes.get("digits", loss="bce").override(data__samples_per_class=40, optim__epochs=20)
    run(recipe, tmp_path, device="cpu")
    (record,) = read_runs(tmp_path)
    figure = draw_bounds(group_runs([record]))
    drawn = [trace for trace in figure.spec["data"] if trace.get("name", "").endswith("guaranteed")]
    assert drawn
    for row in record.history:
        bounds = {name: row["certificate"].get(f"{name}_bound") for name in BOUNDED}
        for name, bound in bounds.items():
            if bound is not None:
                low, high = (row["train"][name], bound) if BOUNDED[name][1] else (bound, row["train"][name])
                assert low <= high * (1 + 1e-6), name


def test_without_bounds_in_the_history_none_are_drawn(tmp_path):
    write_run(tmp_path, {"optim.epochs": 2})
    assert draw_bounds(group_runs(read_runs(tmp_path))) is None
