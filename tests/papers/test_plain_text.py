"""The numbers of an experiment as lines of plain text, for a terminal."""

import pytest

from ncollapse.papers import markdown, publications
from ncollapse.papers.catalogue import get_experiment
from ncollapse.papers.judge import compare
from ncollapse.papers.matching import match
from ncollapse.runs.record import RunRecord
from reference.paper_runs import record


@pytest.mark.parametrize("name", ["bce-vs-ce/table-6", "bce-vs-ce/table-8", "bce-vs-ce/table-12", "bce-vs-ce/table-11"])
def test_plain_text_fits_80_columns_and_cuts_nothing(name, tmp_path):
    experiment = get_experiment(name)
    table = publications.load(experiment.paper)[experiment.item]
    points = experiment.grid()
    records = []
    for i, point in enumerate(points):
        numbers = {"train": {}, "test": {}}
        for cell in table.cells:
            if cell.where == point.keys and cell.field != "alpha":
                part, _, field = cell.field.partition(".")
                numbers[part][field] = {"mean": cell.value, "std": float(cell.std)} if cell.std else cell.value
        summary = {"status": "finished", **numbers}
        records.append(RunRecord(tmp_path, str(i), point.recipe.to_dict(), {}, [], summary, "finished"))
    lines = compare(experiment, match(points, records))
    text = markdown.to_text(lines, 80)
    assert max(map(len, text)) <= 80
    whole = "\n".join(text)
    for line in lines:
        assert line.published.printed in whole
    assert text[0].split()[:2] == ["published", "ours"]
    assert markdown.to_text(compare(experiment, match(points, [])), 80) == []


def test_plain_text_leaves_empty_columns_out(tmp_path):
    experiment = get_experiment("ncollapse/bias-init")
    points = experiment.grid()[1:2]
    lines = compare(experiment, match(points, [record(points[0], tmp_path, weight_energy=350.4261)]))
    heading = "mnist, resnet18, adamw, bce, bias_decay 0.0, bias_init theory: 1 seed, 100 epochs"
    assert markdown.to_text(lines) == ["       ours      predicted", heading, "  rho  350.4261   350.5628"]
