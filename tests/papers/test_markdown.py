"""docs/reproduction.md says what the records under results/ say."""

import json
from pathlib import Path

import pytest

from ncollapse.papers import publications
from ncollapse.papers.catalogue import CATALOGUE, get_experiment
from ncollapse.papers.experiment import expand
from ncollapse.papers.judge import compare
from ncollapse.papers.matching import match
from ncollapse.runs.record import read_run, read_runs
from reference.scripts import load_script

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script():
    return load_script("reproduction")


def lines_of(file):
    """The lines of a page but for its figures and what is empty."""
    return [line for line in file.read_text().splitlines() if line.strip() and not line.startswith("![")]


def test_the_page_is_up_to_date(script, tmp_path):
    script.main(str(ROOT / "results" / "runs"), str(tmp_path / "page.md"), draw=False)
    assert lines_of(tmp_path / "page.md") == lines_of(ROOT / "docs" / "reproduction.md")


def test_every_figure_the_page_shows_is_there():
    text = (ROOT / "docs" / "reproduction.md").read_text()
    shown = [part.partition(")")[0] for part in text.split("](figures/")[1:]]
    assert all((ROOT / "docs" / "figures" / name).is_file() for name in shown)


def test_the_readme_counts_the_numbers_that_were_reproduced():
    records = read_runs(ROOT / "results" / "runs")
    verdicts = [
        line.verdict
        for number in (9, 10, 11)
        for line in compare(
            get_experiment(f"bce-vs-ce/table-{number}"),
            match(get_experiment(f"bce-vs-ce/table-{number}").grid(), records),
        )
        if line.keys["optimizer"] == "adamw" and line.verdict not in ("not judged", "not run")
    ]
    said = f"{verdicts.count('reproduced')} of {len(verdicts)} reproduced to 1 %"
    assert said in (ROOT / "README.md").read_text()


def test_the_readme_has_the_gains_in_uniform_accuracy():
    experiment = get_experiment("bce-vs-ce/table-1")
    said = check_claims(experiment, match(experiment.grid(), read_runs(ROOT / "results" / "runs")))
    (gains,) = (claim.detail for claim in said if claim.text == "BCE raises uniform accuracy over CE")
    ours = " ".join(f"{float(gain):+.1f}" for gain in gains.removesuffix(" points").split(", "))
    assert f"+6.7 +2.8 +4.4 +0.8, {ours} points" in (ROOT / "README.md").read_text()


def test_the_unsettled_runs_are_as_the_note_says():
    """Of figures 2 and 5 of bce-vs-ce."""
    (note,) = get_experiment("bce-vs-ce/figure-2").notes
    where = {"data": "cifar10", "model": "resnet18", "optimizer": "sgd", "loss": "ce"}
    printed = publications.load("bce-vs-ce")["table-7"].find("train.negative_score", **where)
    assert f"negative scores of {printed.printed} for" in note
    (point,) = expand(get_experiment("bce-vs-ce/figure-2"), {"optimizer": ("sgd",), "loss": ("ce",)})
    ((_, (run,)),) = match([point], read_runs(ROOT / "results" / "runs"))
    mean, std = (run.final(f"train.negative_score.{part}") for part in ("mean", "std"))
    assert f"ours are {mean:.4f} ± {std:.4f}, with an NC3 of {run.final('train.nc3'):.2f}" in note


def test_table_2_is_of_the_correctly_classified():
    """The note beside the table says what the readings of two runs say, and they fit it where all samples do not."""
    table = publications.load("bce-vs-ce")["table-2"]
    readings = json.loads((ROOT / "results" / "compactness.json").read_text())["runs"]
    said = []
    for loss in ("ce", "bce"):
        (name,) = (n for n in readings if read_run(ROOT / "results" / "runs" / n).get("loss.name") == loss)
        where = {"data": "cifar10", "model": "resnet18", "optimizer": "sgd", "augment": "DA1", "loss": loss}
        com, dis = (table.find(f"test.{field}", **where) for field in ("compactness", "distinctiveness"))
        last = readings[name]["final"]
        ours = last["right, own mean"]["com"], last["right, raw"]["dis"]
        assert ours == pytest.approx((com.value, dis.value), abs=0.003)
        assert abs(last["test mean"]["com"] - com.value) > 0.02
        said += [100 * value for value in (*ours, com.value, dis.value)]
    words = "E_com {:.1f} and E_dis {:.1f} under CE (printed {:.1f}, {:.1f}), "
    words += "{:.1f} and {:.1f} under BCE (printed {:.1f}, {:.1f})"
    assert any(words.format(*said) in note for note in table.notes)


def test_sgd_at_its_word_ends_where_the_note_says():
    note = get_experiment("imbalanced-relu/figure-1").notes[0]
    record = read_run(ROOT / "results" / "runs" / "971c085668ec")
    printed = get_experiment("imbalanced-relu/figure-1").grid()[0].recipe
    assert record.get("optim.lr") == pytest.approx(10 * printed.optim.lr)
    assert record.get("optim.epochs") == printed.optim.epochs / 10
    assert f"accuracy of {100 * record.final('train.accuracy'):.0f} % (run {record.run_id})" in note


def test_without_records_everything_is_listed_as_not_run(script, tmp_path):
    script.main(str(tmp_path / "none"), str(tmp_path / "page.md"), draw=False)
    text = (tmp_path / "page.md").read_text()
    for name, experiment in CATALOGUE.items():
        verdict = "reproduced" if experiment.protocol == "landscape" else "not run"
        assert f"| {name} | {experiment.title} | {verdict} |" in text
