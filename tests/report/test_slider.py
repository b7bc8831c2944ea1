"""The epoch slider of features, scores and heat maps: what each position holds, and how it behaves in a browser."""

import json

import numpy as np
import pytest

from ncollapse.compare import group_runs
from ncollapse.compare.numbers import show
from ncollapse.report import write_report
from ncollapse.report.figures.feature_epochs import draw_feature_epochs
from ncollapse.report.figures.frames import draw_frames, grams
from ncollapse.report.figures.scores import draw_scores
from ncollapse.report.layout import make_report
from ncollapse.report.panels import for_print
from ncollapse.report.snapshots import load_epochs, load_snapshots
from ncollapse.report.static import draw_static
from ncollapse.runs.epoch_snapshots import FILE, add_epoch, read_epochs
from ncollapse.runs.record import read_runs
from reference.runs import make_arrays, write_comparison, write_run

EPOCHS = 12
KEPT = ["1", "2", "3", "4", "5", "7", "9", "12"]
SLIDING = ("feature-epochs", "scores", "frames-0", "frames-1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("sliding")
    for loss in ("ce", "bce"):
        write_run(path, {"loss.name": loss, "optim.epochs": EPOCHS}, epoch_snapshots=True)
    return path


@pytest.fixture(scope="module")
def figures(folder):
    return {figure.id: figure for figure in make_report(folder).figures}


def at(spec, label):
    """The traces of a figure at a position of its slider, as the page's script puts them together."""
    slider = spec["slider"]
    place = slider["labels"].index(label)
    if place == len(slider["frames"]):
        return spec["data"]
    return [trace | change for trace, change in zip(spec["data"], slider["frames"][place], strict=True)]


@pytest.mark.parametrize("name", SLIDING)
def test_positions_are_the_kept_epochs_and_the_last_is_drawn(figures, name):
    slider = figures[name].spec["slider"]
    assert slider["labels"] == KEPT
    assert len(slider["frames"]) == len(KEPT) - 1
    json.dumps(figures[name].spec, allow_nan=False)


def test_heat_maps_are_those_of_each_epoch(figures, folder):
    run = next(r for r in read_runs(folder) if r.loss == "ce")
    for epoch, arrays in read_epochs(run.path)[0].items():
        for trace, name in zip(at(figures["frames-0"].spec, str(epoch)), ("weight", "means", "cross")):
            gram = np.asarray(arrays[f"gram.{name}"], np.float64)
            np.testing.assert_allclose(trace["z"], gram / np.diag(gram).mean(), atol=6e-3)
    drawn = [np.array(trace["z"]) for trace in figures["frames-0"].spec["data"]]
    for measured, ideal, apart in zip(drawn[:3], drawn[3:6], drawn[6:]):
        np.testing.assert_allclose(measured - ideal, apart, atol=6e-3)


def test_features_shrink_in_a_view_that_stays(figures, folder):
    spec = figures["feature-epochs"].spec
    run = next(r for r in read_runs(folder) if r.loss == "ce")
    kept = read_epochs(run.path)[0]
    for label in KEPT:
        train = at(spec, label)[0]
        points = kept[int(label)]["train.features"][:, :2]
        np.testing.assert_allclose(np.array([train["x"], train["y"]]).T, points - points.mean(0), atol=5e-3)
    labels = np.array([text.split()[1].rstrip(",") for text in spec["data"][0]["text"]])

    def spread(label):
        trace = at(spec, label)[0]
        points = np.array([trace["x"], trace["y"]])
        return sum(points[:, labels == k].var(1).sum() for k in np.unique(labels))

    assert spread("1") > 5 * spread("12")
    assert spec["layout"]["xaxis"]["range"] == spec["layout"]["yaxis"]["range"]
    assert max(map(abs, at(spec, "1")[0]["x"])) < 1.5 * spec["layout"]["xaxis"]["range"][1]
    first, last = (run.history[i]["train"]["nc1"] for i in (0, -1))
    assert f"from {show(first, 2)} at epoch 1 to {show(last, 2)} at epoch 12 (CE)" in figures["feature-epochs"].result


def test_means_of_scores_are_those_of_the_history(figures, folder):
    runs = [next(r for r in read_runs(folder) if r.loss == loss) for loss in ("ce", "bce")]
    for label in KEPT:
        drawn = {
            (trace["name"], x): y
            for trace in at(figures["scores"].spec, label)
            if trace["mode"] == "markers" and trace["name"] != "predicted"
            for x, y in zip(trace["x"], trace["y"])
        }
        for place, run in zip((0, 1.6), runs):
            row = next(r for r in run.history if r["epoch"] == int(label))
            for field, name in (("positive_score", "positive scores"), ("bias", "biases")):
                assert drawn[name, place] == pytest.approx(row["train"][field]["mean"], rel=1e-4)


def test_the_reported_epoch_comes_last_where_it_is_not_the_last_trained(tmp_path):
    path = write_run(tmp_path, {"optim.epochs": EPOCHS, "select": "best-test"}, epoch_snapshots=True)
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps(summary | {"selected_epoch": 6}))
    records = read_runs(tmp_path)
    (variant,) = group_runs(records)
    snapshots, epochs = load_snapshots([variant], [variant]), load_epochs(records)
    drawn = draw_frames(variant, 0, snapshots, None, epochs).spec
    assert drawn["slider"]["labels"] == [*KEPT, "6 (reported)"]
    end = snapshots[path]
    expected = grams(np.asarray(end["weight"], np.float64), np.asarray(end["train.class_means"], np.float64))
    np.testing.assert_allclose(drawn["data"][0]["z"], expected[0], atol=6e-3)
    assert draw_scores([variant], snapshots, epochs).spec["slider"]["labels"] == [*KEPT, "the reported epochs"]


def test_runs_without_snapshots_of_epochs_draw_as_before(tmp_path):
    write_comparison(tmp_path, seeds=1, **{"optim.epochs": 4})
    figures = {figure.id: figure for figure in make_report(tmp_path).figures}
    assert "feature-epochs" not in figures
    assert not [figure.id for figure in figures.values() if "slider" in figure.spec]
    assert "principal components" in str(figures["embedding"].spec)


def test_an_unfinished_run_shows_its_newest_epoch(tmp_path):
    changes = {"optim.epochs": EPOCHS}
    write_run(tmp_path, changes, status="interrupted", epochs_done=5, epoch_snapshots=True)
    figures = {figure.id: figure for figure in make_report(tmp_path).figures}
    for name in ("feature-epochs", "scores", "frames-0"):
        assert figures[name].spec["slider"]["labels"] == KEPT[:5]


def test_losses_of_unlike_length_share_a_slider(tmp_path):
    write_run(tmp_path, {"loss.name": "ce", "optim.epochs": 4}, epoch_snapshots=True)
    write_run(tmp_path, {"loss.name": "bce", "optim.epochs": 12}, epoch_snapshots=True)
    spec = draw_feature_epochs(group_runs(read_runs(tmp_path)), load_epochs(read_runs(tmp_path))).spec
    assert spec["slider"]["labels"] == KEPT
    index = [next(i for i, t in enumerate(spec["data"]) if t["xaxis"] == axis) for axis in ("x", "x2")]
    late = spec["slider"]["frames"][KEPT.index("9")]
    assert late[index[0]] == {}, "the shorter run has ended"
    assert late[index[1]].keys() >= {"x", "y"}


def test_many_classes_are_thinned(tmp_path):
    run = write_run(tmp_path, {"optim.epochs": 2, "model.feature_dim": 64}, num_classes=50, epoch_snapshots=True)
    arrays = read_epochs(run)[0][2]
    assert arrays["gram.classes"].tolist() == list(range(0, 50, 3))
    figures = {figure.id: figure for figure in make_report(tmp_path).figures}
    assert figures["frames-0"].notes == ("One class in 3 of all 50 is shown.",)
    assert len(figures["frames-0"].spec["data"][0]["z"]) == 17


def test_a_damaged_file_leaves_a_note_and_the_figures_without_slider(tmp_path):
    run = write_run(tmp_path, {"optim.epochs": 3}, epoch_snapshots=True)
    (run / FILE).write_bytes(b"torn")
    report = make_report(tmp_path)
    assert any(run.name in note and FILE in note for note in report.notes)
    assert "scores" in {figure.id for figure in report.figures}


def test_exports_and_static_figures_show_the_last_epoch(figures):
    for name in SLIDING:
        assert "slider" not in for_print(figures[name].spec)
        assert draw_static(figures[name].spec).count("<svg") == 1


def open_page(chromium, path):
    page = chromium.new_page(viewport={"width": 1200, "height": 900})
    messages = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.goto(path)
    page.wait_for_selector("html[data-ready=true]", timeout=60000)
    return page, messages


@pytest.mark.browser
def test_the_slider_moves_by_keyboard_and_keeps_its_place_in_another_theme(chromium, folder):
    page, messages = open_page(chromium, write_report(folder).as_uri())
    figure = page.locator("#figure-feature-epochs")
    plot = "document.querySelector('#figure-feature-epochs [data-plot]')"
    assert page.locator(".slider").count() == len(SLIDING)
    assert figure.locator("output").text_content() == "12"
    last = page.evaluate(f"{plot}.data[0].x")
    figure.locator("input[type=range]").focus()
    for _ in range(2):
        page.keyboard.press("ArrowLeft")
    assert figure.locator("output").text_content() == "7"
    assert figure.locator("input").get_attribute("aria-valuetext") == "epoch 7"
    page.wait_for_function(f"{plot}.data[0].x[0] !== {last[0]}")
    moved = page.evaluate(f"{plot}.data[0].x")
    ink = "getComputedStyle(document.querySelector('#figure-feature-epochs .annotation-text')).fill"
    before = page.evaluate(ink)
    page.locator("#theme").click()
    page.wait_for_function(f"{ink} !== '{before}'")
    assert page.evaluate(f"{plot}.data[0].x") == moved
    figure.locator("input[type=range]").focus()
    page.keyboard.press("End")
    page.wait_for_function(f"{plot}.data[0].x[0] === {last[0]}")
    assert messages == []
    page.close()


@pytest.mark.browser
def test_a_live_slider_follows_the_run_unless_the_reader_moved_it(chromium, tmp_path):
    import threading

    from ncollapse.report.serve import make_server

    run = write_run(
        tmp_path, {"optim.epochs": EPOCHS}, status="interrupted", epochs_done=3, epoch_snapshots=True, snapshot=False
    )
    server = make_server(tmp_path, port=0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        page, messages = open_page(chromium, f"http://127.0.0.1:{server.server_address[1]}")
        follows, stays = page.locator("#figure-feature-epochs output"), page.locator("#figure-frames-0 output")
        page.locator("#figure-frames-0 input").focus()
        page.keyboard.press("Home")
        assert (follows.text_content(), stays.text_content()) == ("3", "1")
        arrays = make_arrays("ce", 10, 20, 16, np.random.default_rng(1))
        add_epoch(run, 4, {name: array for name, array in arrays.items() if not name.startswith("values.")})
        page.wait_for_function("document.querySelector('#figure-feature-epochs output').textContent === '4'")
        assert stays.text_content() == "1"
        page.wait_for_function("document.querySelector('#figure-frames-0 .result').textContent.includes('At epoch 4')")
        assert page.locator("#figure-frames-0 input").get_attribute("max") == "3"
        assert messages == []
        page.close()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
