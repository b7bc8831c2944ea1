"""What a reader of the page meets in unusual folders: rounding, failed losses, long labels, extreme numbers."""

import io
import json
import math
import re

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import load_file, save_file

from ncollapse.compare import compare_records
from ncollapse.report import make_report
from ncollapse.report.answer import make_answer
from ncollapse.report.explain import SIZE, draw_explanations
from ncollapse.report.figures.feature_epochs import find_range
from ncollapse.report.long_tail import draw_rare
from ncollapse.report.panels import Panel, build, log_axis, shorten_labels
from ncollapse.report.terminal import print_comparison, print_packed
from ncollapse.runs.record import read_runs
from ncollapse.theory import certify, predict
from reference.runs import write_comparison, write_run


def figures(folder):
    return {figure.id: figure for figure in make_report(folder).figures}


def rewrite(path, change):
    """Change every row of a run's history and its summary in place."""
    rows = [json.loads(line) for line in (path / "history.jsonl").read_text().splitlines()]
    summary = json.loads((path / "summary.json").read_text())
    for row in (*rows, summary):
        change(row)
    (path / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "summary.json").write_text(json.dumps(summary))


def test_two_classes_have_no_curve_of_nc2(tmp_path):
    for loss in ("ce", "bce"):
        path = write_run(tmp_path, {"loss.name": loss, "optim.epochs": 4}, num_classes=2)
        rewrite(path, lambda row: row["train"].update(nc2=1.57e-16))
    figure = figures(tmp_path)["collapse"]
    titles = [note["text"] for note in figure.spec["layout"]["annotations"]]
    assert "<b>train NC1</b>" in titles
    assert "<b>train NC2</b>" not in titles
    assert figure.title == "NC1 and NC3 over epochs"
    assert "same on the test set" not in figure.method
    assert "with two classes it is always 0" in figure.method


@pytest.mark.parametrize("values", [[1e-39, 1e42], [3e-7, 2e5], [4e5, 3e7], [0.3, 4.2], [0.01, 0.2]])
def test_ticks_of_a_log_axis_are_few_and_readable(values):
    axis = log_axis(values)
    decades = math.log10(values[1] / values[0])
    if "dtick" in axis:
        assert 2 <= decades / axis["dtick"] <= 6.1
    else:
        shown = [text for v, text in zip(axis["tickvals"], axis["ticktext"]) if values[0] <= v <= values[1]]
        assert 2 <= len(shown) <= 8
        assert not [text for text in axis["ticktext"] if "e" in text or len(text) > 6]


def test_axes_write_no_si_prefixes():
    line = {"type": "scatter", "mode": "lines", "x": [0, 1], "y": [0, 2.3e8]}
    layout = build([Panel("p", [line])])["layout"]
    assert layout["yaxis"]["exponentformat"] == layout["xaxis"]["exponentformat"] == "power"


def test_deviations_and_ranges_are_no_floating_point_notation(tmp_path):
    for loss in ("ce", "bce"):
        path = write_run(tmp_path, {"loss.name": loss, "optim.epochs": 4})
        rewrite(path, lambda row: row["train"].update(weight_energy=2.3e8))
    result = figures(tmp_path)["agreement"].result
    assert "weight energy" in result
    assert not re.search(r"\de[+-]?\d", result)


def test_the_legend_of_differences_is_in_full_colour(tmp_path):
    write_comparison(tmp_path, ("ce", "bce", "mse"), seeds=3, **{"optim.epochs": 4})
    figure = figures(tmp_path)["differences"]
    entries = [t for t in figure.spec["data"] if t.get("showlegend")]
    assert [t["name"] for t in entries] == ["BCE", "MSE"]
    assert all(t.get("opacity", 1) == 1 for t in entries)
    pale = [t for t in figure.spec["data"] if t.get("opacity", 1) < 1]
    assert pale
    assert "what is not clear is pale" in figure.method


def test_the_card_says_which_intervals_are_corrected(tmp_path):
    found = compare_records(read_runs(write_comparison(tmp_path, ("ce", "bce", "mse"), seeds=3)))
    method = make_answer(found).method
    assert "The ranking alone is corrected for the number of losses." in method
    effects = found.rankings[0].effects
    assert effects
    assert {e.difference.confidence for e in effects} == {0.95}
    assert {p.behind.confidence for p in found.rankings[0].places if p.behind} == {1 - 0.05 / 3}


@pytest.mark.parametrize("seeds", [1, 3])
def test_images_of_several_seeds_are_a_mean_with_one_decimal(seeds, tmp_path):
    found = compare_records(read_runs(write_comparison(tmp_path, ("ce", "bce"), seeds=seeds)))
    (strip,) = make_answer(found).strips
    for row in strip.rows:
        share, images = row.wrong.removesuffix(" images wrong").split(" of ")
        rate = row.finding.estimates[found.rankings[0].quantity.key].mean
        assert float(share) == pytest.approx((1 - rate) * int(images), abs=0.05)
        assert re.fullmatch(r"\d+(\.[1-9])?", share)


@pytest.mark.parametrize("rate", [0.04, 0.97])
def test_the_axis_of_the_card_stays_between_0_and_1(rate, tmp_path):
    """Wide intervals reach beyond what a rate can be; the axis must not, nor may it hide that it does."""
    for loss in ("ce", "bce"):
        for seed in range(2):
            path = write_run(tmp_path, {"loss.name": loss, "seed": seed, "optim.epochs": 3})
            rewrite(path, lambda row, seed=seed: row["test"].update(accuracy=rate + 0.02 * (seed - 0.5)))
    found = compare_records(read_runs(tmp_path))
    (strip,) = make_answer(found).strips
    key = found.rankings[0].quantity.key
    low, high = (float(end.removesuffix(" %")) / 100 for end in strip.axis)
    assert 0 <= low < high <= 1
    for row in strip.rows:
        place = (row.finding.estimates[key].mean - low) / (high - low)
        assert row.at == pytest.approx(place, abs=2e-3)


def test_many_classes_are_not_said_to_carry_numbers(tmp_path):
    for name, classes in (("few", 10), ("many", 25)):
        write_run(tmp_path / name, {"optim.epochs": 3}, num_classes=classes, per_class=4, epoch_snapshots=True)
    few, many = (figures(tmp_path / name) for name in ("few", "many"))
    for id in ("embedding", "feature-epochs"):
        assert "numbers" in few[id].method.lower()
        assert "numbers" not in many[id].method.lower()
        assert "colours tell" in many[id].method.lower()


def test_settings_of_one_loss_differ_in_their_markers_and_columns_are_named(tmp_path):
    for optimiser in ("sgd", "adamw"):
        write_comparison(tmp_path, ("ce", "bce"), seeds=2, **{"optim.name": optimiser, "optim.epochs": 3})
    found = figures(tmp_path)
    entries = [t for t in found["differences"].spec["data"] if t.get("showlegend")]
    assert [t["name"] for t in entries] == ["BCE · AdamW", "BCE · SGD"]
    assert len({t["marker"]["symbol"] for t in entries}) == 2
    for entry in entries:
        drawn = [t for t in found["differences"].spec["data"] if t.get("legendgroup") == entry["legendgroup"]]
        assert {t["marker"]["symbol"] for t in drawn} == {entry["marker"]["symbol"]}
    assert "One column per run, in each group from left to right CE and BCE: " in found["scores"].method
    write_run(tmp_path, {"loss.name": "mse", "optim.epochs": 3})
    assert "One column per run, losses side by side told apart by their marks: " in figures(tmp_path)["scores"].method


def test_no_run_that_separates_is_none(tmp_path):
    write_comparison(tmp_path, seeds=2, **{"optim.epochs": 2})
    for path in tmp_path.iterdir():
        rewrite(path, lambda row: row["train"]["bias"].update(mean=99.0))
    assert "; in none it separates every training score." in figures(tmp_path)["scores"].result


def test_a_failed_loss_makes_no_crowd(tmp_path):
    write_run(tmp_path, {"optim.epochs": 3})
    write_run(tmp_path, {"loss.name": "mse", "optim.epochs": 3}, status="failed", epochs_done=0)
    assert not [s.id for s in make_report(tmp_path).sections if "Of many variants" in s.lead]


def test_of_many_optimal_frames_the_nearest_is_drawn(tmp_path):
    """MSE with d < K - 1: any d of the K - 1 directions are optimal, and none of them is a deviation."""
    problem = {"num_classes": 6, "batch_size": 64, "weight_decay": 5e-3, "feature_decay": 5e-3, "dim": 3}
    changes = {"loss.name": "mse", "optim.epochs": 3, "model.feature_dim": 3}
    path = write_run(tmp_path, changes, num_classes=6)
    posed = {"loss": "mse", "loss_params": {}, **problem}
    rewrite(path, lambda row: row.update(prediction={**(row.get("prediction") or {}), "problem": posed}))
    turn = np.linalg.qr(np.c_[np.ones(6), np.random.default_rng(0).normal(size=(6, 3))])[0][:, 1:].astype(np.float32)
    arrays = load_file(path / "snapshot.safetensors")
    save_file({**arrays, "weight": 3 * turn, "train.class_means": 2 * turn}, path / "snapshot.safetensors")
    optimum = predict("mse", **problem)
    weight, features = (turn * np.sqrt(e / 3) for e in (optimum.weight_energy, 6 * optimum.feature_energy))
    turned = certify(features, np.arange(6), weight, np.full(6, optimum.bias), problem=optimum.problem)
    assert turned.objective == pytest.approx(optimum.objective, rel=1e-6)
    figure = figures(tmp_path)["frames-0"]
    assert "Any 3 directions are optimal: the ideal is the optimum nearest to W." in figure.notes
    apart = [np.array(trace["z"], dtype=float) for trace in figure.spec["data"][6:]]
    assert max(np.abs(matrix).max() for matrix in apart) < 1e-3


def test_frames_say_where_no_optimum_is_predicted(tmp_path):
    path = write_run(tmp_path, {"optim.epochs": 3})
    note = "No optimum is predicted for these runs: the ideal is the simplex of balanced classes."
    assert note not in figures(tmp_path)["frames-0"].notes
    rewrite(path, lambda row: row.pop("prediction", None))
    assert note in figures(tmp_path)["frames-0"].notes


def test_labels_lose_what_they_share_and_stay_distinct():
    ends = " · crop 4 · precision bf16 · measure every 5 · batch 128 · no random labels"
    labels = [f"{loss} · cifar{n} · resnet18{ends}{lag}" for loss, n, lag in (("CE", 10, ""), ("BCE", 100, " · lag 1"))]
    assert shorten_labels(labels) == ["CE · cifar10", "BCE · cifar100 · lag 1"]
    settings = [" · ".join(["CE", *(f"setting-{i} {i * k}" for i in range(1, 12))]) for k in (1, 2)]
    assert all(len(short) <= 60 for short in shorten_labels(settings))
    last = [f"CE · {'x' * 70} · {k}" for k in (1, 2)]
    assert len(set(shorten_labels(last))) == 2


def test_every_variant_of_several_long_tails_has_its_legend_entry(tmp_path):
    from ncollapse.compare.classes import ClassRow, ClassTable
    from ncollapse.compare.seeds import Estimate

    def table(counts, labels):
        numbers = tuple(Estimate(0.5, 0.1, 2) for _ in counts)
        rows = tuple(ClassRow(label, "ce", None, {}, {}, numbers, numbers) for label in labels)
        return ClassTable(tuple("abc"), counts, ("tail", "middle", "head"), rows)

    figure = draw_rare([table((1, 5, 9), ["CE · mlp", "CE · cnn"]), table((2, 20, 200), ["CE · vit", "CE · resnet"])])
    named = [t["name"] for t in figure.spec["data"] if t["showlegend"]]
    assert sorted(named) == ["CE · cnn", "CE · mlp", "CE · resnet", "CE · vit"]


def test_no_dot_of_the_drawings_is_cut_off():
    for item in draw_explanations():
        for x, y, r in re.findall(r'cx="([-\d.]+)" cy="([-\d.]+)" r="([\d.]+)"', item.svg):
            assert float(r) - 0.06 <= min(float(x), float(y))
            assert max(float(x), float(y)) <= SIZE - float(r) + 0.06


def test_few_outliers_do_not_leave_the_panel_of_features():
    import numpy as np

    random = np.random.default_rng(0)
    points = random.standard_normal((200, 2))
    points -= points.mean(0)
    arrays = {"train.features": points, "train.labels": np.zeros(200, int)}
    assert find_range({1: arrays}) > np.abs(points).max()


def print_to_text(function, width=100):
    stream = io.StringIO()
    function(Console(file=stream, width=width))
    return stream.getvalue()


def test_titles_on_the_terminal_are_not_broken_to_the_width_of_a_table():
    title = "difference to the first loss, where any is clear"
    rows = [["BCE", "1"], ["MSE", "2"]]
    assert title in print_to_text(lambda output: print_packed(output, title, ["", "a"], rows)).splitlines()


def test_the_number_of_seeds_stays_whole_in_a_heading(tmp_path):
    write_comparison(tmp_path, seeds=1, **{"optim.epochs": 3})
    found = compare_records(read_runs(tmp_path))
    lines = print_to_text(lambda output: print_comparison(output, found)).splitlines()
    assert not [line for line in lines if re.search(r"n =\s*$|n =\s{2,}|, n\s", line)]
    assert [line for line in lines if line.count("n = 1") == 2]
