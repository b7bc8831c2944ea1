"""The page of an experiment: what was run, beside what was printed and what theory says."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ncollapse.compare import group_runs
from ncollapse.papers import landscapes
from ncollapse.papers.catalogue import get_experiment
from ncollapse.papers.experiment import expand
from ncollapse.papers.judge import compare
from ncollapse.papers.matching import match
from ncollapse.papers.outcome import evaluate
from ncollapse.report.figures.experiments import (
    draw_curves,
    draw_gains,
    draw_mean_cosines,
    draw_numbers,
    draw_scores_by_setting,
)
from ncollapse.report.figures.landscapes import draw_arrows, gradient_size
from ncollapse.report.paper_tables import tabulate_lines, tabulate_shape
from ncollapse.report.reproduction import make_experiment, summarise, write_experiment, write_landscape, write_outcome
from ncollapse.runs.record import read_runs
from reference.runs import write_run

RECORDS = Path(__file__).parents[2] / "results" / "runs"


@pytest.fixture(scope="module")
def records():
    return read_runs(RECORDS)


def lay_out(name, records):
    outcome = evaluate(get_experiment(name), records)
    return outcome.experiment, outcome.lines, outcome.claims, outcome.records


def read_specs(text):
    return [json.loads(spec) for spec in re.findall(r'<script type="application/json">(.*?)</script>', text)]


def test_the_page_holds_verdict_numbers_figures_and_runs(records, tmp_path):
    outcome = evaluate(get_experiment("bce-vs-ce/table-1"), records)
    coverage, found = outcome.coverage, outcome.records
    path = write_experiment(tmp_path / "page.html", outcome)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert f"Verdict: reproduced, as far as run ({coverage.detail}; 5 of 6 claims hold, 1 open" in text
    assert "Holds: BCE raises uniform accuracy over CE (" in text
    assert all(f"<code>{record.run_id}</code>" in text for record in found)
    assert {"numbers", "collapse-curves", "provenance"} <= set(re.findall(r'<section id="([a-z-]+)"', text))
    assert len(read_specs(text)) >= 3


def test_what_a_verdict_owes_to_ties_or_draws_stands_below_the_number(records):
    experiment, lines, _, _ = lay_out("bce-vs-ce/table-13", records)
    table = tabulate_lines(experiment, lines)
    place = [column.text for column in table.columns].index("off by")
    below = [(line, row[place].lines) for line, row in zip([x for x in lines if x.values], table.rows, strict=True)]
    assert all("(" not in row[place].text for row in table.rows)
    assert {bool(said) for line, said in below if line.needs_ties} == {True}
    assert {said for line, said in below if line.needs_draw} == {("± 0.02 over initial draws",)}
    assert {said for line, said in below if not (line.needs_ties or line.needs_draw)} == {()}
    assert "over initial draws" in table.method
    assert "over initial draws" not in tabulate_lines(*lay_out("bce-vs-ce/table-1", records)[:2]).method


def test_rows_are_what_was_run_and_columns_what_is_known(records):
    experiment, lines, _, found = lay_out("bce-vs-ce/table-1", records)
    table = tabulate_lines(experiment, lines)
    points = {tuple(record.config[key]["name"] for key in ("data", "loss")) + (record.name,) for record in found}
    assert len(table.rows) == sum(bool(line.values) for line in lines) == 2 * len(points)
    assert [column.text for column in table.columns] == [
        *("number", "published", "ours", "seeds", "epochs", "off by", "verdict")
    ]
    assert {row[0].loss for row in table.rows} == {"ce", "bce"}
    waiting = sum(line.published is not None and not line.values for line in lines)
    assert f"{waiting} published numbers not run are left out." in table.notes
    first = table.rows[0]
    line = next(line for line in lines if line.values)
    assert first[1].numbers == {"published": line.published.value}
    assert first[2].numbers == {"ours": line.ours}
    experiment, lines, _, _ = lay_out("bce-vs-ce/table-11", records)
    assert "predicted" in [column.text for column in tabulate_lines(experiment, lines).columns]


def test_figures_draw_the_numbers(records):
    _, lines, _, _ = lay_out("bce-vs-ce/table-11", records)
    spec = draw_numbers(lines).spec
    titles = [note["text"] for note in spec["layout"]["annotations"]]
    assert titles[:4] == ["<b>rho</b>", "<b>s_pos</b>", "<b>s_neg</b>", "<b>b</b>"]
    whole, short, published, predicted = (
        next(t for t in spec["data"] if t["name"] == f"CE, {kind}" and t["yaxis"] == "y")
        for kind in ("ours", "ours, cut short", "published", "predicted")
    )
    wanted = [x for x in lines if x.values and x.field == "train.weight_energy" and x.keys["loss"] == "ce"]
    assert whole["x"] == short["x"] == published["x"] == predicted["x"]
    assert [value is None for value in whole["y"]] == [x.short for x in wanted]
    assert any(x.short for x in wanted)
    ours = [b if a is None else a for a, b in zip(whole["y"], short["y"])]
    assert ours == pytest.approx([x.ours for x in wanted], rel=1e-4)
    assert published["y"] == pytest.approx([x.published.value for x in wanted], rel=1e-4)
    assert predicted["y"] == pytest.approx([x.predicted for x in wanted], rel=1e-4)
    _, lines, _, _ = lay_out("bce-vs-ce/table-1", records)
    percent = draw_numbers(lines).spec["data"]
    assert all(30 < value <= 100 for trace in percent for value in trace["y"] if value is not None)


def test_numbers_reproduced_are_seen_one_in_another(records):
    """A row alone: its axis is wide enough that a number 0.02 % off does not look missed."""
    experiment = get_experiment("bce-vs-ce/table-10")
    points = expand(experiment, {"optimizer": ("adamw",), "loss": ("ce",), "bias_decay": ("5e-5",)})
    lines = [x for x in compare(experiment, match(points, records)) if x.field != "alpha"]
    spec = draw_numbers(lines).spec
    for place, line in enumerate(lines, 1):
        axis = spec["layout"]["yaxis" if place == 1 else f"yaxis{place}"]
        assert line.verdict == "reproduced"
        values = [line.ours, line.published.value, line.predicted]
        low, high = axis.get("range", (min(values), max(values)))
        assert low <= min(values) < max(values) <= high
        assert abs(line.ours - line.published.value) <= 4.001 / 230 * (high - low), line.field
    assert "range" in spec["layout"]["yaxis2"]  # s_pos, whose own would be 0.002 wide


def test_without_published_numbers_the_figure_says_so(records):
    _, lines, _, _ = lay_out("ncollapse/bias-init", records)
    figure = draw_numbers(lines)
    assert figure.title == "Ours on the predicted numbers"
    assert "published" not in figure.method + figure.title
    assert not any("published" in trace["name"] for trace in figure.spec["data"])


def test_runs_that_differ_apart_from_the_axis_have_panels_of_their_own(records):
    """Two initial biases at each dimension: marks of both at one place could not be told apart."""
    _, lines, _, _ = lay_out("ncollapse/narrow-bias-init", records)
    figure = draw_scores_by_setting(lines)
    spec = figure.spec
    assert "predicted" not in figure.method  # neither in the picture
    titles = [note["text"].removeprefix("<b>").removesuffix("</b>") for note in spec["layout"]["annotations"]]
    assert titles == ["BCE, AdamW, initial bias 0", "BCE, AdamW, initial bias theory"]
    for trace in spec["data"]:
        assert len(trace["x"]) == len(set(trace["x"])) == 3
    biases = {
        line.keys["bias_init"]: line.ours for line in lines if line.field == "train.bias" and line.keys["dim"] == 2
    }
    drawn = [trace["y"][0] for trace in spec["data"] if trace["name"] == "bias, ours"]
    assert drawn == pytest.approx([biases[0.0], biases["theory"]], rel=1e-4)


def test_scores_are_drawn_along_every_axis(records):
    _, lines, _, _ = lay_out("bce-vs-ce/figure-3", records)
    spec = draw_scores_by_setting(lines).spec
    axes = [spec["layout"][key] for key in spec["layout"] if key.startswith("xaxis")]
    assert {axis["title"]["text"] for axis in axes} == {"initial bias", "λb"}
    decays = next(axis for axis in axes if axis["title"]["text"] == "λb")
    assert decays["ticktext"] == ["0.5", "0.05", "0.005", "0.0005", "5e-05", "5e-06"]
    first = {"loss": "ce", "optimizer": "adamw", "bias_init": 4}
    wanted = next(x for x in lines if x.field == "train.bias" and first.items() <= x.keys.items())
    titles = [note["text"] for note in spec["layout"]["annotations"]]
    panel = titles.index("<b>CE, AdamW</b>") + 1  # the first of that name is by the initial bias
    place = "y" if panel == 1 else f"y{panel}"
    drawn = [t for t in spec["data"] if t["name"].startswith("bias, ours") and t["yaxis"] == place]
    at = spec["layout"][f"x{'axis' if panel == 1 else f'axis{panel}'}"]["ticktext"].index("4")
    found = [(x, y, e) for t in drawn for x, y, e in zip(t["x"], t["y"], t["error_y"]["array"]) if round(x) == at]
    ((_, value, spread),) = [point for point in found if point[1] is not None]
    assert value == pytest.approx(wanted.ours, rel=1e-4)
    assert spread == pytest.approx(wanted.spread, rel=1e-3)
    named = [trace["name"] for trace in spec["data"] if trace["showlegend"]]
    assert len(named) == len(set(named)) == len({trace["name"] for trace in spec["data"]})
    _, lines, _, _ = lay_out("bce-vs-ce/table-1", records)
    assert draw_scores_by_setting(lines) is None


def test_curves_are_those_the_paper_shows_and_told_apart(records):
    experiment, _, _, found = lay_out("ncollapse/bias-init", records)
    spec = draw_curves(experiment, found).spec
    assert [note["text"] for note in spec["layout"]["annotations"]] == [
        *("<b>NC1</b>", "<b>NC2</b>", "<b>NC3</b>", "<b>relative gap</b>")
    ]
    looks = {(t["name"], t["line"]["color"], t["line"]["dash"]) for t in spec["data"]}
    assert len(looks) == len({colour for _, colour, _ in looks}) == 4, "one loss: colours tell the settings apart"
    experiment, _, _, found = lay_out("all-losses/figure-2", records)
    notes = draw_curves(experiment, found).spec["layout"]["annotations"]
    assert [n["text"] for n in notes] == [f"<b>{split} accuracy</b>" for split in ("train", "validation", "test")]
    experiment, _, _, found = lay_out("bce-vs-ce/figure-2", records)
    names = {t["name"] for t in draw_curves(experiment, found).spec["data"] if "name" in t}
    assert "BCE · AdamW · schedule delay 1" in names
    experiment, _, _, found = lay_out("bce-vs-ce/figure-4", records)
    named = [t for t in draw_curves(experiment, found).spec["data"] if "name" in t]  # a band over seeds has no name
    colours = {t["name"][:3]: t["line"]["color"] for t in named}
    assert len(colours) == len(set(colours.values())) == 2, "two losses: colours tell the losses apart"


def test_the_class_means_are_drawn_where_they_are_to_be_orthogonal(records):
    experiment, lines, _, found = lay_out("imbalanced-relu/figure-3", records)
    traces, run = draw_mean_cosines(experiment, found).spec["data"], [line for line in lines if line.values]
    assert len(traces) == 3 * len(run) == 9
    sizes = []
    for measured, ideal, apart in zip(traces[::3], traces[1::3], traces[2::3]):
        cosines = np.array(measured["z"], dtype=float)
        np.testing.assert_allclose(np.array(ideal["z"], dtype=float), np.eye(10))
        np.testing.assert_allclose(np.array(apart["z"], dtype=float), cosines - np.eye(10), atol=2e-3)
        assert measured["x"] == [str(k) for k in range(10)], "the classes are named"
        assert np.diag(cosines) == pytest.approx(1)
        sizes.append(np.abs(cosines[~np.eye(10, dtype=bool)]).mean())
    assert sorted(sizes) == pytest.approx(sorted(line.ours for line in run), rel=1e-3)
    experiment, _, _, found = lay_out("imbalanced-relu/figure-1", records)
    assert draw_mean_cosines(experiment, found) is None


@pytest.mark.parametrize("name", ["bce-vs-ce/table-8", "imbalanced-relu/figure-2"])
def test_a_page_before_any_run_says_so(name, tmp_path):
    outcome = evaluate(get_experiment(name), [])
    text = write_experiment(tmp_path / "page.html", outcome).read_text(encoding="utf-8")
    assert "Verdict: not run" in text
    assert f"ncollapse reproduce {name} runs it ({len(outcome.experiment.grid())} runs)." in text
    assert tabulate_lines(outcome.experiment, outcome.lines) is None
    assert draw_numbers(outcome.lines) is None


def test_the_page_opens_quietly_and_loads_nothing(experiment_page, records):
    assert experiment_page.messages == []
    assert [url for url in experiment_page.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    sentences = experiment_page.page.locator("#findings .sentences li")
    assert sentences.count() == 7, "the verdict and six claims"
    assert all(sentences.nth(i).bounding_box()["width"] > 400 for i in range(4))
    _, lines, _, _ = lay_out("bce-vs-ce/table-1", records)
    shown = [line for line in lines if line.values]
    assert len(shown) >= 20
    assert experiment_page.page.locator("#table-published tbody tr").count() == len(shown)


def test_curves_that_only_the_paper_has_come_first(records, tmp_path):
    def draw(name):
        path = write_experiment(tmp_path / "page.html", evaluate(get_experiment(name), records))
        specs = read_specs(path.read_text(encoding="utf-8"))
        return [[note["text"] for note in spec["layout"].get("annotations", ())] for spec in specs]

    paper, usual, *_ = (panels for panels in draw("imbalanced-relu/figure-1") if any("NC1" in t for t in panels))
    assert paper == ["<b>NC1</b>", "<b>NC2 of ReLU features</b>", "<b>NC3 of ReLU features</b>"]
    assert usual[:3] == ["<b>train NC1</b>", "<b>train NC2</b>", "<b>train NC3</b>"]
    drawn = [panel for panels in draw("ncollapse/bias-init") for panel in panels]
    assert len(drawn) == len(set(drawn)), "nothing is drawn twice"
    assert {"<b>train NC1</b>", "<b>certified gap</b>"} <= set(drawn)
    assert "<b>NC1</b>" not in drawn


def test_the_paper_s_shape_has_a_row_a_setting_and_the_gain(records):
    _, lines, _, _ = lay_out("bce-vs-ce/table-1", records)
    table = tabulate_shape(lines)
    assert table.method.startswith("Ours, the mean over seeds, above the published number. The gain is BCE minus CE")
    others = tabulate_shape(lay_out("all-losses/figure-4", records)[1])
    assert others.method == "Ours, the mean over seeds. A is accuracy."
    settings = {
        tuple((k, v) for k, v in line.keys.items() if k not in ("loss", "seed")) for line in lines if line.values
    }
    assert len(table.rows) == len(settings)
    heads = [cell.text for cell in table.columns]
    row = table.rows[0]
    ce, bce, gain = (row[heads.index(f"A test, {name}")] for name in ("CE", "BCE", "gain of BCE"))
    assert gain.numbers["gain"] == pytest.approx(bce.numbers["ours"] - ce.numbers["ours"])
    assert gain.text == f"{100 * gain.numbers['gain']:+.2f}".replace("-", "−")
    places = [i for i, head in enumerate(heads) if head.endswith("gain of BCE")]
    assert all(re.fullmatch(r"[+−]\d+\.\d\d", row[i].text) for row in table.rows for i in places)
    assert all(re.fullmatch(r"paper [+−]\d+\.\d", row[i].lines[0]) for row in table.rows for i in places)
    figure = draw_gains(lines)
    ours = next(t for t in figure.spec["data"] if t["name"] == "ours" and t["xaxis"] == "x")
    assert ours["x"][0] == pytest.approx(100 * gain.numbers["gain"], rel=1e-4)
    assert draw_gains([line for line in lines if line.keys["loss"] == "ce"]) is None
    assert figure.result.startswith("BCE is higher for test accuracy in ")


def test_a_figure_s_page_begins_with_what_that_figure_shows(records):
    def list_own(name):
        sections = make_experiment(evaluate(get_experiment(name), records)).sections
        return {figure.id.partition("-")[0] for s in sections if s.id == "figure" for figure in s.figures}

    for name in ("all-losses/figure-3", "all-losses/figure-7"):
        kept = evaluate(get_experiment(name), records).records
        several = [len({record.get(key) for record in kept}) > 1 for key in ("model.name", "optim.epochs")]
        assert ("grid" in list_own(name)) is all(several), name
    assert "grid" not in list_own("imbalanced-relu/figure-1"), "one length was asked for, a run cut short is no other"
    assert "space" in list_own("mse-landscape/figure-7")
    assert "space" not in list_own("mse-landscape/figure-4")


def test_captions_of_swept_scores_name_the_marks_that_are_drawn(records):
    _, lines, _, _ = lay_out("bce-vs-ce/table-9", records)
    assert "published" in draw_scores_by_setting(lines).method
    bare = [replace(line, published=None) for line in lines]
    assert "published" not in draw_scores_by_setting(bare).method


def test_captions_of_numbers_name_the_marks_that_are_drawn(records):
    start, end = "Filled: ours", " A filled mark within an open one is a number reproduced."
    said = draw_numbers(lay_out("bce-vs-ce/table-1", records)[1]).method
    assert said == f"{start}; open: published.{end}"
    said = draw_numbers(lay_out("bce-vs-ce/table-11", records)[1]).method
    assert said == f"{start}, paler where the run was cut short; open: published; dash: predicted.{end}"


def test_negative_numbers_of_claims_have_a_minus(records):
    said = " ".join(summarise(evaluate(get_experiment("bce-vs-ce/table-1"), records)))
    assert "−0.43" in said
    assert not re.search(r"[ (]-\d", said)
    said = " ".join(summarise(evaluate(get_experiment("bce-vs-ce/figure-3"), records)))
    assert "SGD: 5e-3, AdamW: 5e-4" in said


def test_gradients_are_as_long_as_the_landscape_says():
    """The part across the angle is divided by the norm, checked against finite differences in the plane."""
    from ncollapse.theory import landscape

    field = landscape("ce", 10, norms=[0.5, 2.0, 5.0], angles=[0.3, 1.0])
    sizes = gradient_size(field)
    step = 1e-5
    for i, angle in enumerate(field.angles):
        for j, norm in enumerate(field.norms):
            x, y = norm * np.cos(angle), norm * np.sin(angle)
            slopes = []
            for dx, dy in ((step, 0.0), (0.0, step)):
                values = []
                for sign in (1, -1):
                    px, py = x + sign * dx, y + sign * dy
                    at = landscape("ce", 10, norms=[np.hypot(px, py)], angles=[np.arctan2(py, px)])
                    values.append(at.value.item())
                slopes.append((values[0] - values[1]) / (2 * step))
            assert sizes[i, j] == pytest.approx(np.hypot(*slopes), rel=1e-5)


def test_arrows_are_as_long_as_the_gradient():
    from ncollapse.theory import landscape

    field = landscape("ce", 10, norms=np.linspace(0.1, 6, 40), angles=np.linspace(0, np.pi / 2, 40))
    drawn = draw_arrows(field)
    width, height = np.ptp(field.norms), np.degrees(np.ptp(field.angles))
    starts = np.array([drawn["x"][::6], drawn["y"][::6]], dtype=float)
    ends = np.array([drawn["x"][1::6], drawn["y"][1::6]], dtype=float)
    lengths = np.hypot(*((ends - starts) / [[width], [height]]))
    sizes = gradient_size(field)
    j = np.abs(field.norms[None] - starts[0][:, None]).argmin(1)
    i = np.abs(np.degrees(field.angles)[None] - starts[1][:, None]).argmin(1)
    ratio = lengths / sizes[i, j]
    clear = lengths > 0.01  # shorter ones suffer from the four digits they are written with
    assert clear.sum() > 30
    np.testing.assert_allclose(ratio[clear], np.median(ratio[clear]), rtol=0.05)


def test_the_page_of_gradients_draws_their_size(tmp_path):
    outcome = evaluate(get_experiment("mse-landscape/figure-8"), [])
    path = write_landscape(tmp_path / "page.html", outcome)
    (spec,) = read_specs(path.read_text(encoding="utf-8"))
    assert "−0.01 (MSE, alpha = 5, M = 1)" in path.read_text(encoding="utf-8")
    field = landscapes.compute_panels()["CE"]
    trace = [t for t in spec["data"] if t["type"] == "contour"][1]
    wrong = np.hypot(field.d_norm, field.d_angle)
    found = np.array(trace["z"], dtype=float)
    np.testing.assert_allclose(found, gradient_size(field), rtol=1e-2)
    assert np.abs(found - wrong).max() > 0.1, "the angle's part is divided by the norm"


def test_the_index_links_every_page(records, tmp_path):
    for name in ("bce-vs-ce/table-1", "mse-landscape/figure-8"):
        write_outcome(tmp_path, evaluate(get_experiment(name), records))
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    for page in ("bce-vs-ce-table-1.html", "mse-landscape-figure-8.html"):
        assert f'href="{page}"' in text
        assert (tmp_path / page).is_file()
    assert "reproduced, as far as run" in text
    assert "bce-vs-ce-table-2.html" not in text


def test_curves_are_not_labelled_by_how_often_runs_were_measured(tmp_path):
    for loss, every in (("ce", 1), ("bce", 5)):
        write_run(tmp_path, {"loss.name": loss, "select": "best-test", "measure_every": every, "optim.epochs": 10})
    runs = read_runs(tmp_path)
    assert {variant.label for variant in group_runs(runs)} == {"CE · measure every 1", "BCE · measure every 5"}
    figure = draw_curves(get_experiment("all-losses/figure-2"), runs)
    assert {trace["name"] for trace in figure.spec["data"]} == {"CE", "BCE"}
    write_run(tmp_path, {"loss.name": "ce", "select": "best-test", "measure_every": 2, "optim.epochs": 10})
    figure = draw_curves(get_experiment("all-losses/figure-2"), read_runs(tmp_path))
    assert {trace["name"] for trace in figure.spec["data"]} >= {"CE · measure every 1", "CE · measure every 2"}
