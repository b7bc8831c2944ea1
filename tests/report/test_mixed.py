"""A folder of many runs of several data sets, networks and optimisers: no cell holds a number of other runs."""

import re

import numpy as np
import pytest

from ncollapse.report import make_report, render
from ncollapse.report.figures.grids import group_cells, name_panel
from ncollapse.report.figures.multiples import find_swept, group_variants
from ncollapse.report.notes import collect_notes
from ncollapse.runs.record import RunRecord
from ncollapse.train import recipes
from reference.runs import write_run

DATA, LOSSES, OPTIMISERS = ("mnist", "cifar10"), ("ce", "bce"), ("sgd", "adamw")
MODELS = ("wide-resnet18-0.5", "wide-resnet18-2", "mlp-64", "mlp-256")
EPOCHS = (2, 4)


def test_optimisers_share_a_panel_where_nothing_else_varies(tmp_path):
    names = ("sgd", "adam", "adamw")
    for loss in ("ce", "bce", "mse"):
        for name in names:
            write_run(tmp_path, {"loss.name": loss, "optim.name": name, "optim.epochs": 4}, snapshot=False)
    figure = next(f for f in make_report(tmp_path).figures if f.id == "collapse")
    titles = [note["text"] for note in figure.spec["layout"]["annotations"]]
    assert titles == ["<b>CE</b>", "<b>BCE</b>", "<b>MSE</b>"]
    assert figure.notes == ()
    assert "combination of loss, data set and network" in figure.method
    assert "Colours follow the optimiser." in figure.method
    lines = {t["name"]: (t["line"]["color"], t["line"]["dash"]) for t in figure.spec["data"]}
    assert set(lines) == {"SGD", "Adam", "AdamW"}
    assert len({dash for _, dash in lines.values()}) == 3, "lines may lie on one another"


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """128 runs: a grid of widths and lengths for each data set, loss, optimiser and family, and two bias decays."""
    folder = tmp_path_factory.mktemp("mixed")
    for data in DATA:
        for loss in LOSSES:
            for optimiser in OPTIMISERS:
                for model in MODELS:
                    for epochs in EPOCHS:
                        for decay in (0.0, 5e-4):
                            changes = {"data.name": data, "loss.name": loss, "optim.name": optimiser}
                            changes |= {"model.name": model, "optim.epochs": epochs, "decays.bias": decay}
                            write_run(folder, changes, per_class=2, snapshot=False)
    return make_report(folder)


def test_a_loss_with_few_runs_has_a_panel_beside_the_others(tmp_path):
    wide, narrow = MODELS[1], MODELS[0]
    points = [("ce", narrow, 2), ("ce", wide, 4), ("bce", narrow, 2), ("bce", wide, 2), ("mse", narrow, 4)]
    for loss, model, epochs in points:
        changes = {"data.name": "cifar10", "loss.name": loss, "model.name": model, "optim.epochs": epochs}
        write_run(tmp_path, changes, per_class=2, snapshot=False)
    grid = next(figure for figure in make_report(tmp_path).figures if figure.id == "grid-accuracy")
    titles = [note["text"].strip("</b>") for note in grid.spec["layout"]["annotations"]]
    assert set(titles) == {"CE", "BCE", "MSE"}
    for title, trace in zip(titles, grid.spec["data"]):
        assert (list(trace["x"]), list(trace["y"])) == ([narrow, wide], ["2", "4"])
        filled = {
            (x, int(y)) for i, y in enumerate(trace["y"]) for j, x in enumerate(trace["x"]) if trace["text"][i][j]
        }
        assert filled == {(model, epochs) for loss, model, epochs in points if loss == title.lower()}


def test_runs_of_other_settings_have_panels_of_their_own(mixed):
    grid = next(f for f in mixed.figures if f.id == "grid-accuracy")
    titles = [note["text"].strip("</b>") for note in grid.spec["layout"]["annotations"]]
    groups = group_cells(mixed.comparison.variants)
    names = [name_panel(group, list(groups)) for group in groups]
    assert len(set(names)) == len(DATA) * len(LOSSES) * len(OPTIMISERS) * 2 * 2, "a panel for each"
    assert titles == names[:16]
    assert "The first 16 of 32 grids are shown." in grid.notes
    assert "and for each other setting in which runs differ" in grid.method
    for group, title in list(zip(groups, names))[:16]:
        trace = grid.spec["data"][titles.index(title)]
        loss, data, family, optimiser, rest = group
        assert rest in ("λb 0", "λb 0.0005")
        assert title.endswith(rest)
        for i, length in enumerate(trace["y"]):
            for j, model in enumerate(trace["x"]):
                (own,) = [
                    r.summary["test"]["accuracy"]
                    for r in mixed.records
                    if (r.loss, r.get("data.name"), r.get("optim.name")) == (loss, data, optimiser)
                    and (r.get("model.name"), str(r.get("optim.epochs"))) == (model, length)
                    and f"λb {r.get('decays.bias'):g}" == rest
                ]
                assert model.startswith(family)
                assert trace["z"][i][j] == pytest.approx(own, abs=1e-4)
                assert trace["customdata"][i][j] == ""


def test_runs_that_were_measured_at_other_epochs_share_a_cell(tmp_path):
    for model in MODELS[:2]:
        for epochs in EPOCHS:
            for seed, every in ((0, 1), (1, 2)):
                changes = {"model.name": model, "optim.epochs": epochs, "seed": seed, "measure_every": every}
                write_run(tmp_path, {**changes, "select": "best-test"}, per_class=2, snapshot=False)
    report = make_report(tmp_path)
    ((group, cells),) = group_cells(report.comparison.variants).items()
    assert group[4] == ""
    grid = next(figure for figure in report.figures if figure.id == "grid-accuracy")
    assert "other setting" not in grid.method
    (trace,) = grid.spec["data"]
    for cell, variants in cells.items():
        records = [
            r for r in report.records if (r.get("model.name"), r.get("optim.epochs")) == (cell.model, cell.epochs)
        ]
        assert (len(variants), len(records)) == (2, 2)
        at = trace["y"].index(str(cell.epochs)), trace["x"].index(cell.model)
        mean = np.mean([r.summary["test"]["accuracy"] for r in records])
        assert trace["z"][at[0]][at[1]] == pytest.approx(mean, abs=1e-4)


def test_lines_stand_in_the_panel_of_their_own_group(mixed):
    variants = mixed.comparison.variants
    groups = group_variants(variants)
    assert len(groups) == len(DATA) * len(LOSSES) * len(OPTIMISERS) * len(MODELS)
    assert find_swept(list(groups.values())) == "decays.bias"
    figure = next(f for f in mixed.figures if f.id == "collapse")
    names = {t["name"] for t in figure.spec["data"]}
    assert names == {"λb 0", "λb 0.0005"}
    shown = [t for t in figure.spec["data"] if t["showlegend"]]
    assert len(shown) == 2, "one entry a value"
    colours = {t["name"]: t["line"]["color"] for t in figure.spec["data"]}
    assert len(set(colours.values())) == 2
    assert "12 largest of 32 groups" in figure.notes[0]


def test_warnings_are_folded_and_nothing_is_called_none(mixed):
    table = next(t for t in mixed.tables if t.id == "summary")
    assert table.notes == (
        "The first 100 of 128 variants; the table of runs has all runs.",
        "One seed per variant: no standard deviation and no interval can be given; differences may be chance.",
    )
    text = re.sub(r"<script.*?</script>|<style.*?</style>|<pre.*?</pre>", "", render(mixed), flags=re.S)
    assert not re.search(r"\bNone\b|\bnan\b", text)


def test_many_faults_are_one_note(tmp_path):
    for seed in range(6):
        write_run(tmp_path, {"seed": seed, "optim.epochs": 2}, status="failed", epochs_done=1)
    report = make_report(tmp_path)
    failed = [note for note in report.notes if "failed" in note]
    assert len(failed) == 1
    assert failed[0].startswith("6 runs failed: ")
    assert "the loss is not finite" in failed[0]


def test_decays_that_hardly_acted_are_told(tmp_path):
    """Settings of SGD: exp(-rate * steps * decay / (1 - momentum)) is left of an unseen weight."""

    def told(rate, epochs=10, status="finished", config=None, **changes):
        recipe = recipes.get("bce-vs-ce/setting-1", data="digits").override(optim__lr=rate, **changes)
        config = config or recipe.override(optim__epochs=10, schedule__name="constant").to_dict()
        summary = {"prediction": {"nc1": 0.0}, "train": {"num_samples": 1280}}
        record = RunRecord(tmp_path, "a-run", config, {}, [{"epoch": epochs}], summary, status)
        return [note for note in collect_notes([record], tmp_path) if "decays hardly acted" in note]

    (note,) = told(1e-2)  # 100 steps
    assert note.startswith("Run a-run: SGD's decays hardly acted: they leave 100 % of an initial weight")
    assert "they leave 79 % of" in told(0.5)[0]  # exp(-0.25), and the first steps gather momentum
    for nothing in (
        told(0.9),
        told(1e-2, optim__name="adamw"),
        told(1e-2, decays__weight=0.5),
        told(1e-2, epochs=9),
        told(1e-2, status="failed"),
        told(1e-2, config={"optim": "damaged"}),
    ):
        assert nothing == []


def test_one_record_that_breaks_a_figure_does_not_take_the_page(tmp_path, monkeypatch):
    from ncollapse.report.figures import grids

    def fail(*_):
        raise ZeroDivisionError("a number nobody expected")

    write_run(tmp_path, {"optim.epochs": 2})
    monkeypatch.setattr(grids, "draw_grids", fail)
    report = make_report(tmp_path)
    assert any("could not be made (grids): ZeroDivisionError: a number nobody expected" in n for n in report.notes)
    assert {"collapse", "scores"} <= {f.id for f in report.figures}
