"""What docs/reading.md says to expect is what the kept records say, and its code prints what its comments promise."""

import json
import re
from pathlib import Path

import pytest

from ncollapse.papers.catalogue import get_experiment
from ncollapse.theory import predict
from reference.rare_classes import read_rare

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/reading.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if re.search(r"`[0-9a-f]{12}` \|$", line)
]


def read(run, name):
    return json.loads((ROOT / "results/runs" / run / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[-1])
def test_a_row_is_that_of_its_record(row):
    about, loss, *cells, run = row
    config, summary = read(run.strip("`"), "config.json"), read(run.strip("`"), "summary.json")
    data, optim, augment = config["data"], config["optim"], config["augment"]
    assert loss.lower() == config["loss"]["name"]
    assert about.lower().replace("-", "").startswith(data["name"])
    assert (optim["name"] in about.lower().split(", "), "random labels" in about) == (True, data["random_labels"])
    assert ("long tail" in about, "rotation" in about) == (data["long_tail"] == 100, augment["rotation"] == 15)
    assert ("crop" in about or "mixup" in about) == (augment["crop"] == 4 and augment["flip"])
    assert ("mixup" in about) == bool(augment["mixup"]) == bool(augment["cutmix"])
    epochs = 200 if data["random_labels"] else 320 if data["long_tail"] else 100
    assert (optim["epochs"], config["select"] == "last") == (epochs, augment["crop"] == 0)
    assert config["model"]["name"] == ("resnet34" if data["long_tail"] else "resnet18")
    train, test = summary["train"], summary["test"]
    rates = (train["accuracy"], test["accuracy"], test["uniform_accuracy"])
    wanted = [train["nc1"], test["nc1"], train["nc2"], train["nc3"], *(100 * rate for rate in rates)]
    for cell, value in zip(cells, wanted, strict=True):
        assert cell == f"{value:.{len(cell.partition('.')[2])}f}"


def test_the_rows_are_there():
    assert len(ROWS) == 10


def test_bce_loses_fewer_points_to_one_threshold():
    losses = {row[1]: float(row[-3]) - float(row[-2]) for row in ROWS if "rotation" in row[0]}
    assert {loss: round(points) for loss, points in losses.items()} == {"CE": 23, "BCE": 7}
    assert "on CIFAR-100 above it loses 23 points against its accuracy, BCE loses 7" in " ".join(PAGE.split())


def test_the_code_prints_what_it_says(capsys):
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
        exec(compile(block, "reading.md", "exec"), names)
    optimum, *norms = capsys.readouterr().out.splitlines()
    assert float(optimum) == pytest.approx(0.0279, abs=5e-5)
    vanished = [sum(float(norm) == 0 for norm in line.strip("()").split(",")) for line in norms]
    assert vanished == [5, 0]


def test_rare_classes_live_where_the_decays_are_weak_at_first():
    for (ratio, weak), runs in read_rare().items():

        def span(key, scale, digits, runs=runs):
            low, high = (f"{scale * pick(run[key] for run in runs):.{digits}f}" for pick in (min, max))
            return low if low == high else f"{low} to {high}"

        cells = [f"{span('relative_gap', 100, 1)} %", span("predicted_mean_norm", 1, 2), span("mean_norm", 1, 2)]
        name = "weak decays first" if weak else "full decays throughout"
        cells = [str(ratio), name, *cells, f"{span('test_accuracy', 100, 1)} %"]
        assert f"| {' | '.join(cells)} |" in PAGE
    point = get_experiment("ncollapse/minority-collapse").grid()[0]
    optimum = predict(point.recipe.problem(class_counts=(5421,) * 5 + (271,) * 5))
    assert f"up to a ratio of sizes of {optimum.collapse_ratio:.0f}." in " ".join(PAGE.split())
