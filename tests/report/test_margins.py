"""Sorted margins: one point a filled bin, each at a height of its own."""

import numpy as np

from ncollapse.compare import group_runs
from ncollapse.report.figures.margins import draw_margins, sorted_values
from ncollapse.runs.record import read_runs
from reference.runs import write_run


def test_samples_in_ascending_order():
    share, values = sorted_values(np.array([0.0, 1.0, 2.0, 3.0]), np.array([1.0, 0.0, 3.0]))
    np.testing.assert_allclose(share, [0, 0.125, 0.625, 1])
    np.testing.assert_allclose(values, [0, 0.5, 2.5, 3])


def test_margins_that_are_nearly_equal_have_no_stairs(tmp_path):
    write_run(tmp_path, {"optim.epochs": 2})
    records = read_runs(tmp_path)
    edges = np.linspace(1.060, 1.062, 129)
    snapshot = {"train.margin.edges": edges, "train.margin.counts": np.ones(128)}
    figure = draw_margins(group_runs(records), {record.path: snapshot for record in records})
    (curve,) = (trace for trace in figure.spec["data"] if len(trace.get("y", [])) > 100)
    assert len(set(curve["y"])) == len(curve["y"]) == 130
