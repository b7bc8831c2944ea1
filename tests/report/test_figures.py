"""The figures as specifications: valid for plotly, true to the records, left out without data."""

import json
import re
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ncollapse.compare.variants import group_runs
from ncollapse.report import make_report
from ncollapse.report.figures.curves import curve_panel, draw_collapse
from ncollapse.report.figures.features import draw_embedding, subsample
from ncollapse.report.figures.frames import grams
from ncollapse.report.figures.phases import DECAYS, map_phases, outline
from ncollapse.report.figures.scores import half_violin, place_labels
from ncollapse.report.layout import load_snapshots
from ncollapse.report.panels import ROW, Panel, arrange, for_print, legend_height, merge_alike
from ncollapse.runs.record import read_runs
from reference.runs import write_comparison, write_run


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    write_comparison(folder, ("ce", "bce", "mse"), seeds=2, **{"optim.epochs": 6})
    return make_report(folder)


def test_every_section_is_there(report):
    ids = {figure.id.split("-")[0] for figure in report.figures}
    assert ids == {
        "differences", "collapse", "accuracy", "gap", "scores", "agreement", "margins", "frames", "embedding", "phases",
        "landscapes"
    }  # fmt: skip
    assert all(figure.method and figure.title and figure.source for figure in report.figures)


def test_plotly_accepts_every_specification(report):
    import plotly.graph_objects as go

    for figure in report.figures:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            spec = for_print(figure.spec)
            go.Figure(json.loads(json.dumps(spec)))
        assert "var:" not in json.dumps(spec)


def test_width_by_epochs_grids(tmp_path):
    for model in ("wide-resnet18-0.25", "wide-resnet18-2"):
        for epochs in (3, 6):
            write_run(tmp_path, {"model.name": model, "optim.epochs": epochs})
    report = make_report(tmp_path)
    grid = next(f for f in report.figures if f.id == "grid-accuracy")
    z = grid.spec["data"][0]["z"]
    by_cell = {(r.get("optim.epochs"), r.get("model.name")): r.summary["test"]["accuracy"] for r in report.records}
    assert grid.spec["data"][0]["x"] == ["wide-resnet18-0.25", "wide-resnet18-2"]
    assert z[1][0] == pytest.approx(by_cell[6, "wide-resnet18-0.25"], abs=1e-4)


def test_three_dimensional_features_are_drawn_in_space(tmp_path):
    write_run(tmp_path, {"model.feature_dim": 3})
    report = make_report(tmp_path)
    (space,) = [f for f in report.figures if f.id.startswith("space")]
    assert {trace["type"] for trace in space.spec["data"]} == {"scatter3d"}
    clouds = [trace for trace in space.spec["data"] if trace["mode"] == "markers"]
    rays = [trace for trace in space.spec["data"] if trace["mode"] == "lines"]
    snapshot = report.records[0].snapshot()
    reach = max(np.linalg.norm(list(zip(t["x"], t["y"], t["z"])), axis=1).max() for t in clouds)
    assert len(clouds) == len(rays) == 10
    for k, (cloud, ray) in enumerate(zip(clouds, rays)):
        assert cloud["marker"]["color"] == ray["line"]["color"]
        row = snapshot["weight"][k]
        end = np.array([ray["x"][1], ray["y"][1], ray["z"][1]])
        np.testing.assert_allclose(end, reach * row / np.linalg.norm(row), rtol=2e-3)


def test_features_that_are_all_the_same_are_not_drawn_in_space(tmp_path):
    path = write_run(tmp_path, {"model.feature_dim": 3})
    arrays = dict(load_file(path / "snapshot.safetensors"))
    save_file(arrays | {"train.features": 0 * arrays["train.features"]}, path / "snapshot.safetensors")
    assert not [figure for figure in make_report(tmp_path).figures if figure.id.startswith("space")]


def test_words_of_long_labels_stand_one_above_another_where_they_fit():
    panel = Panel("", [])
    assert place_labels(panel, ["CE", "BCE"]) == 46
    assert "ticktext" not in panel.x
    label = "CE · cifar10 · mlp-64 · AdamW · epochs 10 · λb 0 · <b>"
    assert place_labels(panel, [label]) == 30 + 16 * 7
    assert panel.x == {"ticktext": ["CE<br>cifar10<br>mlp-64<br>AdamW<br>epochs 10<br>λb 0<br>&lt;b&gt;"]}
    crowded = Panel("", [])
    assert place_labels(crowded, [label] * 9) > 200
    assert crowded.x == {"tickangle": -90}


def test_curves_are_geometric_means_with_bands_of_the_seeds(tmp_path):
    write_comparison(tmp_path, ("ce",), seeds=3, **{"optim.epochs": 5})
    records = read_runs(tmp_path)
    panel = curve_panel(group_runs(records), "train.nc1", "", log=True)
    band, line = panel.traces
    values = np.array([[row["train"]["nc1"] for row in r.history] for r in records])
    np.testing.assert_allclose(line["y"], np.exp(np.log(values).mean(0)), rtol=1e-4)
    np.testing.assert_allclose(band["y"], [*values.min(0), *values.max(0)[::-1]], rtol=1e-3)
    assert line["x"] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [(0.03, 0.6, ["0.02", "0.05", "0.1", "0.2", "0.5", "1"]), (1e-6, 1e-3, None), (0.3, 0.4, None)],
)
def test_log_axes_of_one_to_two_decades_are_labelled_in_full(tmp_path, low, high, labels):
    path = write_run(tmp_path, {"optim.epochs": 2})
    rows = [json.loads(line) for line in (path / "history.jsonl").read_text().splitlines()]
    for row, value in zip(rows, (high, low)):
        row["train"]["nc1"] = value
    (path / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    axis = curve_panel(group_runs(read_runs(tmp_path)), "train.nc1", "", log=True).y
    if labels is None:
        assert "tickvals" not in axis
    else:
        assert set(labels) <= set(axis["ticktext"])
        assert [float(text) for text in axis["ticktext"]] == axis["tickvals"]


def test_missing_epochs_and_nan_leave_gaps(tmp_path):
    path = write_run(tmp_path, {"optim.epochs": 4})
    rows = [json.loads(line) for line in (path / "history.jsonl").read_text().splitlines()]
    rows[1]["train"]["nc1"] = None
    rows[2]["train"]["nc1"] = float("nan")
    (path / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    figure = draw_collapse(group_runs(read_runs(tmp_path)))
    line = next(t for t in figure.spec["data"] if t["yaxis"] == "y")
    assert line["x"] == [1, 3, 4]
    assert line["y"][1] is None
    assert draw_collapse([]) is None


def test_half_violin_is_the_histogram(tmp_path):
    edges = np.linspace(0, 4, 5)
    x, y = half_violin(edges, np.array([0.0, 1.0, 3.0, 0.0]), 2.0, 1)
    assert y == [1, 1.5, 2.5, 3]
    np.testing.assert_allclose(x, [2, 2 + 0.44 / 3, 2.44, 2], rtol=1e-4)


def test_grams_are_scaled_by_their_diagonal():
    rng = np.random.default_rng(0)
    weight, means = rng.standard_normal((2, 4, 6))
    first, second, third = grams(weight, means)
    np.testing.assert_allclose([np.diag(first).mean(), np.diag(second).mean(), np.abs(np.diag(third)).mean()], 1)
    np.testing.assert_allclose(first * np.diag(weight @ weight.T).mean(), weight @ weight.T)


def test_embedding_repeats_itself_and_takes_every_class(tmp_path):
    write_run(tmp_path, {}, per_class=6)
    records = read_runs(tmp_path)
    snapshots = {r.path: r.snapshot() for r in records}
    from ncollapse.report.figures.features import embed_run

    first = draw_embedding(group_runs(records), snapshots)
    embed_run.cache_clear()
    assert draw_embedding(group_runs(records), snapshots).spec == first.spec
    features, labels = np.zeros((100, 2)), np.repeat(np.arange(10), 10)
    assert np.bincount(subsample(features, labels, 35)[1]).tolist() == [3] * 10


def test_phase_map_is_the_predictions():
    import ncollapse as nc

    columns = map_phases("bce", "{}", 10, "relu", True, 1e-4)
    rng = np.random.default_rng(0)
    names = set()
    for column in columns[:: max(1, len(columns) // 12)]:
        for decay in 10 ** rng.uniform(np.log10(DECAYS[0]), np.log10(DECAYS[1]), 4):
            below = sum(border < decay for border in column.borders)
            decays = {"weight_decay": column.mu, "feature_decay": column.mu, "bias_decay": float(decay)}
            phase = nc.predict("bce", num_classes=10, per_class=1, features="relu", **decays).phase
            near = min((abs(np.log(border / decay)) for border in column.borders), default=1)
            assert phase == column.phases[below] or near < 0.02
            names.add(phase)
    assert len(names) >= 3
    # the border between the two large phases is the closed form's own
    column = next(c for c in columns if c.phases == ("orthogonal-frame", "saturated"))
    own = nc.predict(
        "bce", num_classes=10, per_class=1, weight_decay=column.mu, feature_decay=column.mu, features="relu"
    )
    assert column.borders[0] == pytest.approx(own.critical_bias_decay, rel=0.01)


def test_phase_regions_leave_no_holes():
    columns = map_phases("bce", "{}", 10, "relu", True, 1e-4)
    for before, after in pairwise(columns):
        assert before.phases == after.phases or after.mu / before.mu < 1.01, "every change has columns on both sides"
    area = 0.0
    for phase in {phase for column in columns for phase in column.phases}:
        for x, y in outline(columns, phase):
            x, y = np.log10(x), np.log10(y)
            area += abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2
    whole = -np.log10(columns[0].mu) * (np.log10(DECAYS[1]) - np.log10(DECAYS[0]))
    assert area == pytest.approx(whole, rel=0.01)


def test_a_mark_in_the_phases_names_all_settings_that_share_it(tmp_path):
    for rate in (0.1, 0.01):
        for decay in (1e-3, 1e-2):
            write_run(tmp_path, {"loss.name": "bce", "optim.lr": rate, "decays.bias": decay, "optim.epochs": 2})
    (figure,) = (figure for figure in make_report(tmp_path).figures if figure.id == "phases")
    (marks,) = (trace for trace in figure.spec["data"] if trace["name"] == "settings of these runs")
    assert marks["y"] == [1e-3, 1e-2]
    assert [text.count("λb") for text in marks["text"]] == [2, 2]
    assert all("lr 0.1" in text and "lr 0.01" in text for text in marks["text"])


def test_captions_speak_of_predictions_where_they_are_drawn(tmp_path):
    path = write_run(tmp_path, {"optim.epochs": 4})

    def read_captions():
        figures = {figure.id: figure.method for figure in make_report(tmp_path).figures}
        return "dash is the predicted" in figures["scores"], "Dotted lines" in figures["scores-epochs"]

    assert read_captions() == (True, True)
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps({**summary, "prediction": {}}))
    assert read_captions() == (False, False)


@pytest.mark.parametrize(
    ("losses", "width", "columns"),
    [(1, 920, 1), (2, 920, 2), (3, 920, 3), (4, 920, 2), (5, 920, 3), (3, 768, 2), (5, 768, 2), (5, 358, 1)],
)
def test_panels_of_losses_stand_side_by_side_on_a_page(tmp_path, losses, width, columns):
    for name in ("ce", "bce", "focal", "ls", "mse")[:losses]:
        write_run(tmp_path, {"loss.name": name, "optim.epochs": 4}, epoch_snapshots=True)
    figures = {figure.id: figure.spec for figure in make_report(tmp_path).figures}
    for id in ("phases", "landscapes", "embedding", "feature-epochs"):
        layout = arrange(figures[id], width)["layout"]
        panels = layout["meta"]["panels"]
        starts = {layout[f"xaxis{n or ''}"]["domain"][0] for n in (None, *range(2, panels + 1))}
        assert len(starts) == min(columns, panels), id


def test_panels_stack_where_they_do_not_fit(report):
    spec = json.loads(json.dumps(next(f for f in report.figures if f.id == "collapse").spec))
    wide, narrow = (json.loads(json.dumps(arrange(spec, width)["layout"])) for width in (1000, 360))
    assert wide["xaxis"]["domain"] != wide["xaxis2"]["domain"]
    assert wide["yaxis"]["domain"] == wide["yaxis2"]["domain"]
    assert narrow["xaxis"]["domain"] == narrow["xaxis2"]["domain"]
    assert narrow["height"] > 2 * wide["height"]


def test_lines_that_look_alike_are_joined_with_gaps():
    line = {"mode": "lines", "name": "a", "x": [1, 2], "y": [3, 4]}
    joined = merge_alike([line, {**line, "x": [5], "y": [6]}, {**line, "name": "b"}])
    assert [t["x"] for t in joined] == [[1, 2, None, 5], [1, 2]]
    assert line["x"] == [1, 2]


def test_only_drawn_features_are_kept_in_memory(tmp_path):
    write_comparison(tmp_path, ("ce", "bce"), seeds=2, **{"optim.epochs": 2})
    variants = group_runs(read_runs(tmp_path))
    snapshots = load_snapshots(variants, variants[:1])
    held = [path for path, arrays in snapshots.items() if "test.features" in arrays]
    assert held == [variants[0].counted[0].path]
    assert all("test.margin.counts" in arrays for arrays in snapshots.values())
    assert len(snapshots) == 4


def test_every_row_of_the_legend_has_its_room(report):
    names = ["a long name of a variant", "another name of a variant", "c"]
    spec = {"layout": {}, "data": [{"name": name} for name in names]}
    assert legend_height(spec, 250) - legend_height(spec, 1000) == 2 * ROW == 58
    script = (Path(curve_panel.__code__.co_filename).parents[1] / "templates" / "page.js").read_text()
    assert f"ROW = {ROW};" in script, "the page's script arranges panels alike"
    assert "return ROW * " in script


def test_quotes_in_names_stay_quotes_and_tags_stay_text(tmp_path):
    for model in ('the "best"', "it's <b>"):
        for epochs in (2, 3):
            write_run(tmp_path, {"model.name": model, "optim.epochs": epochs})
    specs = json.dumps([figure.spec for figure in make_report(tmp_path).figures])
    assert not re.search("&quot;|&#x27;|it's <b>", specs)
    assert "it's &lt;b&gt;" in specs
    assert json.dumps('the "best"')[1:-1] in specs


def test_pointers_show_rates_as_their_axis_does(report):
    for id, form in (("accuracy", "%{y:.2%}"), ("collapse", "%{y:.4g}")):
        lines = [t for t in next(f for f in report.figures if f.id == id).spec["data"] if "hovertemplate" in t]
        assert lines
        assert all(form in t["hovertemplate"] for t in lines)
    assert "0 at the optimum" in next(f for f in report.figures if f.id == "gap").method


def test_long_names_get_room_below_the_violins(tmp_path):
    for name in "vwxyz":
        write_run(tmp_path, {"model.name": name * 60, "optim.epochs": 2})
    layout = next(f for f in make_report(tmp_path).figures if f.id == "scores").spec["layout"]
    assert layout["xaxis"]["tickangle"] == -90
    assert layout["margin"]["b"] >= 60 * 6.5
