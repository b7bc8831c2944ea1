"""What the notes of bce-vs-ce's entries say of our runs, against the records in results/."""

import itertools
import json
import math
from pathlib import Path

import pytest

from ncollapse.papers import bce_vs_ce, bce_vs_ce_claims, bce_vs_ce_discussion, publications
from ncollapse.papers.catalogue import get_experiment
from ncollapse.papers.judge import compare
from ncollapse.papers.matching import match
from ncollapse.runs.record import read_run, read_runs

MIXED, MOVING, PLATEAU, TEST_SCORES, UNSTATED_4 = (
    " ".join(getattr(bce_vs_ce, name)) for name in ("MIXED", "MOVING", "PLATEAU", "TEST_SCORES", "UNSTATED_4")
)
RUNS = Path(__file__).parents[2] / "results" / "runs"


def after_both_stages(name):
    return json.loads((RUNS / name / "rebalanced.json").read_text())["after"]


def test_table_4_is_that_of_the_cited_protocol():
    note = UNSTATED_4
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
    note = TEST_SCORES
    shares = [1 - ours / printed for ours, printed, _, _ in scores["table-13"]]
    spreads = [ours / printed - 1 for _, _, ours, printed in scores["table-13"]]
    assert len(shares) == 8
    assert f"by {100 * min(shares):.1f} to {100 * max(shares):.1f} %, and spread more" in note
    assert f"by {100 * min(spreads):.0f} to {100 * max(spreads):.0f} %, while" in note
    others = [1 - ours / printed for ours, printed, _, _ in scores["table-12"]]
    assert min(others) < 0 < max(others), "on CIFAR10 some are above and some below"


def test_no_epoch_has_the_printed_score():
    epochs, means = read_run(RUNS / "f6b6ac31a09f").series("test.positive_score.mean")
    last = [mean for epoch, mean in zip(epochs, means, strict=True) if epoch > 88]
    assert len(last) == 12
    assert f"between {min(last):.2f} and {max(last):.2f}, where 7.47" in TEST_SCORES


def gaps(part, line_of):
    """s_pos - s_neg of a part of the data."""
    return line_of[f"{part}.positive_score"] - line_of[f"{part}.negative_score"]


@pytest.fixture(scope="module")
def shares():
    """(ours, printed) of the gap between the scores on test data over that on training data, by table."""
    found, records = {}, read_runs(RUNS)
    for table in ("table-12", "table-13"):
        experiment = get_experiment(f"bce-vs-ce/{table}")
        rows = {}
        for line in compare(experiment, match(experiment.grid(), records)):
            if line.field.endswith("_score") and line.values and line.published:
                rows.setdefault(line.row, []).append((line.field, line.ours, line.published.value))
        found[table] = {}
        for row, cells in rows.items():
            ours, printed = ({cell[0]: cell[place] for cell in cells} for place in (1, 2))
            found[table][row] = tuple(gaps("test", one) / gaps("train", one) for one in (ours, printed))
    return found


def test_the_gap_on_test_data_of_cifar100_is_a_smaller_share(shares):
    off = [1 - ours / printed for ours, printed in shares["table-13"].values()]
    assert len(off) == 8
    assert f"is {100 * min(off):.1f} to {100 * max(off):.1f} % below the printed share" in TEST_SCORES
    others = [abs(ours / printed - 1) for ours, printed in shares["table-12"].values()]
    assert len(others) == 8
    assert f"within {100 * max(others):.1f} % of it in the eight" in TEST_SCORES


def test_no_late_epoch_has_the_printed_share(shares):
    runs = {"1, CE": "f6b6ac31a09f", "1, BCE": "e58a56b64e55", "1&2, CE": "40a75ecabcd5", "1&2, BCE": "24ab0c8be2e1"}
    runs = {f"AdamW, {row}": name for row, name in runs.items()}
    for row, name in {**runs, "SGD, 1&2, CE": "2b784090d62a", "SGD, 1&2, BCE": "ab5dd9bc9c27"}.items():
        late = [line for line in read_run(RUNS / name).history if line["epoch"] > 80]
        assert len(late) == 20
        for line in late:
            means = {
                f"{part}.{f}": line[part][f]["mean"] for part in ("train", "test") for f in line[part] if "_s" in f
            }
            assert gaps("test", means) / gaps("train", means) < shares["table-13"][f"ResNet18, {row}"][1]


def measure_steps(record):
    """The root mean square of the relative changes of s_pos over the last twenty epochs; None without all of them."""
    curve = dict(zip(*record.series("train.positive_score.mean"), strict=True))
    late = [curve[epoch] for epoch in range(81, 101) if epoch in curve]
    if len(late) < 20:
        return None
    steps = [b - a for a, b in itertools.pairwise(late)]
    return math.sqrt(sum(step**2 for step in steps) / len(steps)) / (sum(late) / len(late))


def test_scores_move_with_mixing():
    found, records = {}, read_runs(RUNS)
    for table in ("table-12", "table-13"):
        experiment = get_experiment(f"bce-vs-ce/{table}")
        for one in match(experiment.grid(), records):
            steps = [step for step in map(measure_steps, one.records) if step]
            found.setdefault(one.point.keys["augment"], []).extend(steps)
    mixed, plain = found["DA1+DA2"], found["DA1"]
    assert len(mixed) == 8
    assert len(plain) == 9
    assert f"by {100 * min(mixed):.1f} to {100 * max(mixed):.1f} % (root mean square)" in MOVING
    assert f"without mixing by {100 * min(plain):.1f} to {100 * max(plain):.1f} %" in MOVING


def test_the_probability_of_mixing_is_what_the_note_says():
    names = {"bce": ("74a51aba1147", "b898dbcd7b18"), "ce": ("efd1525f1da1", "8bdb5eca2878")}
    for loss, pair in {**names, "adamw": ("60a3ede7afa1", "82ec070175b4")}.items():
        one, less = map(read_run, (RUNS / name for name in pair))
        assert [run.get("augment.mix_probability") for run in (one, less)] == [1.0, 0.8]
        accuracies = [[100 * run.final(f"train.{kind}accuracy") for run in (one, less)] for kind in ("", "uniform_")]
        rho = [run.final("train.weight_energy") for run in (one, less)]
        s_pos = [run.final("train.positive_score.mean") for run in (one, less)]
        if loss == "bce":
            assert f"BCE has rho {rho[0]:.2f} with probability 1.0 and {rho[1]:.2f} with 0.8 (printed 19.66)" in MIXED
            assert f"s_pos {s_pos[0]:.2f} and {s_pos[1]:.2f} (3.86)" in MIXED
        if loss != "adamw":
            assert f"accuracy {accuracies[0][0]:.2f} and {accuracies[0][1]:.2f} (98." in MIXED
        else:
            assert (
                f"CE has rho {rho[0]:.2f} and {rho[1]:.2f} (36.26), s_pos {s_pos[0]:.2f} and {s_pos[1]:.2f} (2.54)"
                in MIXED
            )
        if loss != "bce":
            assert f"accuracy {accuracies[1][0]:.2f} and {accuracies[1][1]:.2f} (9" in MIXED


def test_mixing_every_batch_gives_the_printed_numbers_of_cifar100():
    recipes = " ".join((RUNS.parents[1] / "docs" / "recipes.md").read_text().split())
    for loss, name in (("CE", "2b784090d62a"), ("BCE", "ab5dd9bc9c27")):
        run = read_run(RUNS / name)
        assert run.get("augment.mix_probability") == 1.0
        rho, accuracy = run.final("train.weight_energy"), 100 * run.final("train.accuracy")
        said = MIXED.partition("on CIFAR100 under SGD")[2].partition(f"{loss} has rho ")[2]
        assert said.startswith(f"{rho:.2f} and ")
        assert f"training accuracy {accuracy:.2f} and 92." in said
        uniform = f"; {100 * run.final('train.uniform_accuracy'):.2f} |" if loss == "CE" else " |"
        assert f"| {rho:.2f}; {accuracy:.2f}{uniform}" in recipes
        if loss == "BCE":
            scores = [run.final(f"train.{sign}_score.mean") for sign in ("positive", "negative")]
            assert f"| {scores[0]:.2f}; {scores[1]:.2f}; {run.final('train.bias.mean'):.3f} |" in recipes


def test_sgd_on_cifar100_starts_on_a_plateau():
    ce, bce = read_run(RUNS / "cbd64ba18cdf"), read_run(RUNS / "a8829151241c")
    early = [100 * dict(zip(*run.series("train.accuracy"), strict=True))[10] for run in (ce, bce)]
    assert f"after 10 epochs {early[0]:.0f} % of the training samples" in PLATEAU
    assert f"under BCE {early[1]:.0f} %." in PLATEAU
    assert f"99.81 % for {100 * ce.final('train.uniform_accuracy'):.2f} %" in PLATEAU
    spreads = [ce.final(f"train.{sign}_score.std") for sign in ("positive", "negative")]
    assert f"0.4316 for {spreads[0]:.4f} and 1.3897 for {spreads[1]:.4f}" in PLATEAU
    experiment = get_experiment("bce-vs-ce/table-8")
    lines = compare(experiment, match(experiment.grid(), read_runs(RUNS)))
    above = [100 * (x.ours - x.published.value) for x in lines if x.values and x.field.startswith("test.")]
    assert len(above) == 8
    assert f"by {min(above):.1f} to {max(above):.1f} points" in PLATEAU


def test_the_mean_of_resnet50_s_negative_scores_hangs_on_a_few_samples():
    record = read_run(RUNS / "cfa420863d23")
    spread = {part: record.final(f"train.negative_score.{part}") for part in ("min", "max", "q05", "q95", "std")}
    note = bce_vs_ce_claims.SCATTERED
    assert f"from {spread['min']:.0f} to {spread['max']:.0f}, where nine in ten lie" in note
    assert f"between {spread['q05']:.2f} and {spread['q95']:.2f})" in note
    epochs, means = record.series("train.negative_score.mean")
    later = [mean for epoch, mean in zip(epochs, means, strict=True) if epoch >= 20]
    assert f"between {max(later):.2f} and {min(later):.2f} while" in note
    deviations = [std for epoch, std in zip(*record.series("train.negative_score.std"), strict=True) if epoch >= 20]
    assert f"at most {max(deviations):.2f}, and" in note
    keys = {"model": "resnet50", "optimizer": "sgd", "loss": "bce", "data": "cifar10"}
    printed = publications.load("bce-vs-ce")["table-7"].find("train.negative_score", **keys)
    assert f"and {float(printed.std):.2f} is printed" in note


def test_what_is_said_of_more_classes_than_dimensions():
    (cause,) = bce_vs_ce_discussion.NARROW_CAUSES
    rows = json.loads((RUNS.parent / "theory" / "narrow-optima.json").read_text())
    rows = {(row["loss"], row["dim"]): row for row in rows if row["num_classes"] == 100}
    row = rows["bce", 10]
    (run,) = row["runs"].values()
    best = row["optimum"]
    assert row["uniform_accuracy"] == 1.0
    assert f"|W|^2 is {run['weight_energy']:.0f} and the mean bias {run['bias']:.2f}, where" in cause.why
    assert f"has {best['weight_energy']:.0f} and {best['bias']:.2f} (" in cause.why
    above = {
        key: 100 * (next(iter(row["runs"].values()))["objective"] / row["optimum"]["objective"] - 1)
        for key, row in rows.items()
    }
    page = " ".join((RUNS.parents[1] / "docs" / "theory.md").read_text().split())
    assert f"CE {above['ce', 10]:.1f} % above the lowest known minimum for d = 10 and {above['ce', 50]:.1f} %" in page
    assert f"under BCE {above['bce', 10]:.1f} and {above['bce', 50]:.1f} %" in page
