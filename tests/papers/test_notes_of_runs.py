"""What the notes of bce-vs-ce's entries say of our runs, against the records in results/."""

import json
from pathlib import Path

import pytest

from ncollapse.papers.bce_vs_ce import TEST_SCORES, UNSTATED_4
from ncollapse.papers.catalogue import get_experiment
from ncollapse.papers.judge import compare
from ncollapse.papers.matching import match
from ncollapse.runs.record import read_run, read_runs

RUNS = Path(__file__).parents[2] / "results" / "runs"


def after_both_stages(name):
    return json.loads((RUNS / name / "rebalanced.json").read_text())["after"]


def test_table_4_is_that_of_the_cited_protocol():
    (note,) = (note for note in UNSTATED_4 if note.startswith("Protocol cited gives"))
    ce, bce = after_both_stages("f3a3fa57a7b2"), after_both_stages("e66e6b689820")
    assert f"{100 * ce['mirrored']:.2f} % for CE and {100 * bce['mirrored']:.2f} % for BCE" in note
    assert f"Without the averaging they are {100 * ce['test']:.2f} % and {100 * bce['test']:.2f} %." in note
    random = [after_both_stages(name)["test"] for name in ("f7622c33a04d", "4a00b0b76744")]
    assert f"they end at {100 * random[0]:.2f} % and {100 * random[1]:.2f} %" in note
    for name in ("f3a3fa57a7b2", "e66e6b689820"):
        config = read_run(RUNS / name).config
        assert (config["measure_every"], config["data"]["draw"], config["model"]["name"]) == (2, "first", "resnet34")


@pytest.fixture(scope="module")
def scores():
    """(ours, printed, our spread, printed spread) of the positive scores on test data in Tables 12 and 13."""
    found = {}
    records = read_runs(RUNS)
    for table in ("table-12", "table-13"):
        experiment = get_experiment(f"bce-vs-ce/{table}")
        lines = compare(experiment, match(experiment.grid(), records))
        found[table] = [
            (line.ours, line.published.value, line.spread, float(line.published.std))
            for line in lines
            if line.field == "test.positive_score" and line.published and line.values
        ]
    return found


def test_positive_scores_on_test_data_of_cifar100_are_low(scores):
    (note,) = TEST_SCORES
    shares = [1 - ours / printed for ours, printed, _, _ in scores["table-13"]]
    spreads = [ours / printed - 1 for _, _, ours, printed in scores["table-13"]]
    assert len(shares) == 6
    assert f"by {100 * min(shares):.1f} to {100 * max(shares):.1f} %, and spread more" in note
    assert f"by {100 * min(spreads):.0f} to {100 * max(spreads):.0f} %, while" in note
    others = [1 - ours / printed for ours, printed, _, _ in scores["table-12"]]
    assert min(others) < 0 < max(others), "on CIFAR10 some are above and some below"


def test_no_epoch_has_the_printed_score():
    epochs, means = read_run(RUNS / "f6b6ac31a09f").series("test.positive_score.mean")
    last = [mean for epoch, mean in zip(epochs, means, strict=True) if epoch > 88]
    assert len(last) == 12
    assert f"between {min(last):.2f} and {max(last):.2f}, where 7.47" in TEST_SCORES[0]
