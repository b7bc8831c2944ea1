"""The figure of the sizes of classes: every mark against its own record."""

from dataclasses import replace
from pathlib import Path

import pytest

from ncollapse.compare import group_runs
from ncollapse.report.figures.class_norms import FEW, draw_class_norms
from ncollapse.runs.record import RunRecord

CONFIG = {"data": {"name": "mnist"}, "model": {"name": "mlp-128"}, "loss": {"name": "ce"}, "optim": {"epochs": 9}}


def record(number=0, *, counts=(60, 20, 5), scale=1.0, **config):
    best = {"class_norms": [1.0, 0.5, 0.0], "weight_norms": [4.0, 2.0, 1.0]}
    train = {
        "counts": list(counts),
        "mean_norms": [scale * x for x in best["class_norms"]],
        "weight_norms": [scale * x for x in best["weight_norms"]],
        "nc1": 0.1,
    }
    summary = {"status": "finished", "train": train, "test": {}, "prediction": best}
    return RunRecord(Path(f"run-{number}"), f"{number}", {**CONFIG, **config}, {}, [], summary, "finished")


def traces(figure, title):
    axis = next(note["xref"].split()[0] for note in figure.spec["layout"]["annotations"] if title in note["text"])
    return [trace for trace in figure.spec["data"] if trace["xaxis"] == axis]


def test_every_class_of_every_seed_is_drawn_and_the_optimum_once():
    runs = [record(seed, scale=1 + 0.1 * seed, seed=seed) for seed in range(3)]
    figure = draw_class_norms(group_runs(runs))
    for title, best in (("class mean", [1, 0.5, 0]), ("row of W", [4, 2, 1])):
        *measured, predicted = traces(figure, title)
        assert [trace["name"] for trace in measured] == ["measured"] * 3
        assert predicted["name"] == "predicted"
        assert predicted["y"] == best
        assert all(trace["cliponaxis"] is False for trace in (*measured, predicted)), "marks at 0 are drawn whole"
        for seed, trace in enumerate(measured):
            assert trace["x"] == [1, 3, 12]
            assert trace["y"] == pytest.approx([(1 + 0.1 * seed) * x for x in best])
    named = [trace["name"] for trace in figure.spec["data"] if trace["showlegend"]]
    assert named == ["measured", "predicted"]


def test_of_many_sizes_the_ways_of_training_are_told_apart():
    runs = []
    for ratio in range(2, 2 + FEW):
        for weak in (0, 40):
            config = {"data": {"name": "mnist", "step_imbalance": float(ratio)}, "decays": {"weak_epochs": weak}}
            runs.append(record(len(runs), counts=(60, 60, 60 // ratio), **config))
    variants = group_runs(runs)
    assert len(variants) == 2 * FEW
    *measured, _ = traces(draw_class_norms(variants), "class mean")
    names = {trace["name"] for trace in measured if trace["name"] != "predicted"}
    assert names == {"CE · weak decays in epochs 1 to 40, measured", "CE, measured"}


def test_the_axis_marks_the_sizes_that_there_are():
    layout = draw_class_norms(group_runs([record(counts=(139, 139, 6))])).spec["layout"]
    assert (layout["xaxis"]["tickvals"], layout["xaxis"]["ticktext"]) == ([1, 23.2], ["1", "23.2"])


def test_a_few_settings_are_told_apart_and_many_are_not():
    def draw(number):
        return draw_class_norms(group_runs([record(n, batch_size=2**n) for n in range(number)]))

    few, many = traces(draw(3), "class mean"), traces(draw(FEW + 1), "class mean")
    assert len({(t["marker"]["symbol"], t["marker"]["color"]) for t in few[:-1]}) == 3
    assert len({t["name"] for t in few}) == 4
    assert {t["name"] for t in many} == {"measured", "predicted"}
    assert len({t["marker"]["symbol"] for t in many[:-1]}) == 1


def test_the_optima_of_other_sizes_are_drawn_beside():
    runs = [record(0, seed=0), record(1, counts=(60, 6, 5), seed=1)]
    predicted = [t for t in traces(draw_class_norms(group_runs(runs)), "class mean") if t["name"] == "predicted"]
    assert [t["x"] for t in predicted] == [[1, 3, 12], [1, 10, 12]]


def test_classes_of_like_size_or_without_a_prediction_have_no_figure():
    assert draw_class_norms(group_runs([record(counts=(60, 60, 50))])) is None
    assert draw_class_norms(group_runs([record(counts=(60, 60, 0))])) is None
    found = record()
    assert draw_class_norms(group_runs([replace(found, summary={**found.summary, "prediction": {}})])) is None
    assert draw_class_norms([]) is None


def test_many_settings_are_told_apart_by_their_loss_alone_and_the_caption_says_so():
    def one_loss_each(count, *losses):
        runs = [record(n, batch_size=2**n, loss={"name": losses[n % len(losses)]}) for n in range(count)]
        return draw_class_norms(group_runs(runs))

    figure = one_loss_each(FEW + 1, "ce", "focal")
    drawn = [trace for trace in traces(figure, "class mean") if trace["name"] != "predicted"]
    assert {trace["name"] for trace in drawn} == {"CE, measured", "Focal, measured"}
    assert len({(trace["marker"]["symbol"], trace["marker"]["color"]) for trace in drawn}) == 2
    assert f"The {FEW + 1} settings of the runs are not told apart, only their losses." in figure.method
    assert one_loss_each(FEW + 1, "ce").method.endswith(f"The {FEW + 1} settings of the runs are not told apart.")
    assert "told apart" not in one_loss_each(FEW, "ce", "focal").method
