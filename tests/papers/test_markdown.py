"""docs/reproduction.md says what the records under results/ say."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from ncollapse.papers import publications
from ncollapse.papers.catalogue import CATALOGUE, get_experiment
from ncollapse.papers.claims import Claim
from ncollapse.papers.coverage import Coverage
from ncollapse.papers.experiment import expand
from ncollapse.papers.markdown import describe_choice_of_epoch, describe_claim, find_claim_cause, quote_start
from ncollapse.papers.matching import match
from ncollapse.papers.outcome import Outcome, evaluate
from ncollapse.runs.record import read_run, read_runs
from ncollapse.train import Recipe
from ncollapse.train.initial_values import share_left
from reference.paper_runs import run
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


def test_the_numbers_of_mnist_stay_reproduced():
    """Tables 6, 9, 10 and 11, which no recipe that was mended concerns."""
    records = read_runs(ROOT / "results" / "runs")
    judged = {"reproduced": 0}
    for number in (6, 9, 10, 11):
        for line in evaluate(get_experiment(f"bce-vs-ce/table-{number}"), records).lines:
            if line.verdict not in ("not judged", "not run", "too short"):
                judged[line.verdict] = judged.get(line.verdict, 0) + 1
    assert judged == {"reproduced": 204}


def test_every_figure_the_page_shows_is_there():
    text = (ROOT / "docs" / "reproduction.md").read_text()
    shown = [part.partition(")")[0] for part in text.split("](figures/")[1:]]
    assert all((ROOT / "docs" / "figures" / name).is_file() for name in shown)


def test_the_readme_counts_the_numbers_that_were_reproduced():
    records = read_runs(ROOT / "results" / "runs")
    verdicts = [
        line.verdict
        for number in (9, 10, 11)
        for line in evaluate(get_experiment(f"bce-vs-ce/table-{number}"), records).lines
        if line.keys["optimizer"] == "adamw" and line.verdict not in ("not judged", "not run")
    ]
    said = f"{verdicts.count('reproduced')} of {len(verdicts)} reproduced to 1 %"
    assert said in (ROOT / "README.md").read_text()


def test_the_unsettled_runs_are_as_the_note_says():
    """Of figures 2 and 5 of bce-vs-ce."""
    (note,) = get_experiment("bce-vs-ce/figure-2").notes
    where = {"data": "cifar10", "model": "resnet18", "optimizer": "sgd", "loss": "ce"}
    printed = publications.load("bce-vs-ce")["table-7"].find("train.negative_score", **where)
    assert f"negative scores of {printed.printed} for" in note
    (point,) = expand(get_experiment("bce-vs-ce/figure-2"), {"optimizer": ("sgd",), "loss": ("ce",)})
    (run,) = match([point], read_runs(ROOT / "results" / "runs"))[0].records
    mean, std = (run.final(f"train.negative_score.{part}") for part in ("mean", "std"))
    assert f"ours are {mean:.4f} ± {std:.4f}, with an NC3 of {run.final('train.nc3'):.2f}" in note


def test_table_2_is_of_the_correctly_classified():
    """Two runs on CIFAR10, read again, and two on CIFAR100 fit the table by them, and not by all samples."""
    records = read_runs(ROOT / "results" / "runs")
    outcome = evaluate(get_experiment("bce-vs-ce/table-2"), records)
    chosen = [x for x in outcome.lines if x.values and x.keys["optimizer"] == "sgd" and x.keys["augment"] == "DA1"]
    lines = {(line.keys["data"], line.keys["loss"], line.field): line for line in chosen}
    for data in ("cifar10", "cifar100"):
        for loss in ("ce", "bce"):
            correct, every = (lines[data, loss, f"{part}.compactness"] for part in ("test_correct", "test"))
            assert correct.verdict == "reproduced"
            assert abs(correct.ours - correct.published.value) < 0.005
            assert abs(every.ours - correct.published.value) > 0.02


def test_the_readings_of_two_runs_are_those_of_their_records():
    readings = json.loads((ROOT / "results" / "compactness.json").read_text())["runs"]
    for name, reading in readings.items():
        record, best = read_run(ROOT / "results" / "runs" / name), reading["best"]
        assert record.final("test.accuracy") == pytest.approx(best["accuracy"])
        assert record.final("test_correct.compactness") == best["right, own mean"]["com"]
        assert record.final("test_correct.distinctiveness") == best["right, raw"]["dis"]


def test_the_index_names_every_record(script):
    text = (ROOT / "results" / "index.md").read_text()
    records = read_runs(ROOT / "results" / "runs")
    assert text == script.make_index(records, {name: evaluate(e, records) for name, e in CATALOGUE.items()})
    assert all(f"[{record.run_id}](runs/{record.run_id})" in text for record in records)


def test_the_readme_has_the_table_of_the_page():
    page, readme = ((ROOT / name).read_text() for name in ("docs/reproduction.md", "README.md"))
    rows = [line for line in page.splitlines() if line.startswith("| bce-vs-ce | ")]
    assert len(rows) == 1
    assert rows[0] in readme


def test_no_entry_on_mnist_or_cifar_is_left_out():
    text = (ROOT / "docs" / "reproduction.md").read_text()
    unrun = [line for line in text.splitlines() if line.startswith("| ") and "| not run |" in line]
    assert len(unrun) == 3
    assert all("needs imagenet" in line or "needs mini-imagenet" in line for line in unrun)
    assert any("needs imagenet and weights of the three networks" in line for line in unrun)
    assert all("hours of one H200" in line for line in unrun)


def test_sgd_at_its_word_ends_where_the_note_says():
    note = " ".join(get_experiment("imbalanced-relu/figure-1").notes)
    record = read_run(ROOT / "results" / "runs" / "971c085668ec")
    printed = get_experiment("imbalanced-relu/figure-1").grid()[0].recipe
    assert record.get("optim.lr") == pytest.approx(10 * printed.optim.lr)
    assert record.get("optim.epochs") == printed.optim.epochs / 10
    assert f"accuracy of {100 * record.final('train.accuracy'):.0f} % (run {record.run_id})" in note


def read_curve(run_id: str, field: str) -> dict[int, float]:
    """A metric by epoch in one of the kept runs."""
    return dict(zip(*read_run(ROOT / "results" / "runs" / run_id).series(field)))


def test_sgd_with_momentum_goes_the_way_the_note_says():
    note = " ".join(get_experiment("imbalanced-relu/figure-1").notes)
    accuracy, nc2 = (read_curve("5e711ececa3a", f"train.{field}") for field in ("accuracy", "nc2_relu"))
    fitted = min(epoch for epoch, value in accuracy.items() if value == 1.0)
    assert f"from epoch {fitted} on" in " ".join(note.split())
    assert f"NC2 is {nc2[2000]:.2f} there and {nc2[4000]:.2f} at epoch 4000 (run 5e711ececa3a)" in note


def test_sgd_collapses_at_the_pace_of_its_decays_as_the_note_says():
    experiment = get_experiment("imbalanced-relu/figure-3")
    note, record = " ".join(experiment.notes), read_run(ROOT / "results" / "runs" / "61025c3da5de")
    recipe = Recipe.from_dict(record.config)
    plain, momentum, _ = (share_left(point.recipe, "weight") for point in experiment.grid())
    assert f"they leave {100 * plain:.1f} % of an initial weight" in note
    assert f"and {100 * momentum:.1f} % with a momentum of {recipe.optim.momentum}" in note
    assert f"they leave {100 * share_left(recipe, 'weight'):.1f} %, and the MLP" in note
    printed = experiment.grid()[1].recipe
    assert recipe.optim.lr == pytest.approx(400 * printed.optim.lr)
    assert f"At 400 times the rate, with momentum and for {recipe.optim.epochs} epochs (run {record.run_id})" in note
    shape = [record.final(f"train.{field}") for field in ("nc1", "nc2_relu", "nc3_relu")]
    assert f"NC1 is {shape[0]:.5f}, NC2 {shape[1]:.3f}, NC3 {shape[2]:.3f}, no cosine" in note
    cosines = [abs(record.final(f"train.mean_cosines.{part}")) for part in ("min", "max")]
    assert f"two class means is above {max(cosines):.3f}, and" in note
    for where in ("train.positive_score.mean", "prediction.positive_score"):
        assert f"{record.final(where):.2f}" in note
    for where in ("train.negative_score.mean", "prediction.negative_score"):
        assert f"{record.final(where):.3f}" in note


def test_adam_collapses_after_the_rate_is_divided_as_the_note_says():
    experiment = get_experiment("imbalanced-relu/figure-2")
    assert experiment.grid()[0].recipe.schedule.milestones == (2000,)
    note, mlp = " ".join(experiment.notes), read_curve("d5d42b236b49", "train.nc2_relu")
    resnet = read_curve("dd937fa94dc4", "train.nc2_relu")
    assert f"the MLP of width 1024 has {mlp[2000]:.3f} at epoch 2000 (run d5d42b236b49)" in note
    assert f"ResNet18 {resnet[1000]:.3f} at epoch 1000 and {resnet[1960]:.3f} at epoch 1960 (run dd937fa94dc4)" in note
    assert f"falls to {mlp[2400]:.4f} by epoch 2400 in the MLP and {resnet[2400]:.4f} in ResNet18" in note
    assert f"{mlp[4000]:.4f} and {resnet[4000]:.4f} at epoch 4000" in note


def test_augmented_mse_has_not_fitted_its_data_as_the_cause_says():
    (cause,) = get_experiment("mse-landscape/figure-4").claim_causes
    found = match(get_experiment("mse-landscape/figure-4").grid(), read_runs(ROOT / "results" / "runs"))
    runs = [(one.point.keys["loss"], record) for one in found for record in one.records]
    mse, ce = ([record for name, record in runs if name == loss] for loss in ("mse", "ce"))
    highest = [100 * max(record.final("train.accuracy") for record in records) for records in (mse, ce)]
    assert f"at most {highest[0]:.1f} % under MSE, {highest[1]:.1f} % under CE" in cause.why
    assert {record.get("optim.epochs") for _, record in runs} == {50}
    assert {min(record.series("train.nc1")[0]) for _, record in runs} == {5, 10}
    accuracy, nc1 = (read_curve("9c0b7daedbf4", f"train.{field}") for field in ("accuracy", "nc1"))
    ends = f"{nc1[40]:.3f} at {100 * accuracy[40]:.1f} % and of {nc1[200]:.4f} at {100 * accuracy[200]:.1f} %"
    assert f"has an NC1 of {ends}" in cause.why


def test_adam_shares_the_simplex_unevenly_as_the_cause_says():
    """Class means and W of the snapshots, centred: their product, and the singular values of both in reverse order."""
    (cause,) = get_experiment("mse-landscape/figure-3").claim_causes
    said = {}
    for name, run_id in (("adam", "8ba9eb165fae"), ("sgd", "9c0b7daedbf4")):
        record = read_run(ROOT / "results" / "runs" / run_id)
        assert record.get("optim.name") == name
        arrays = load_file(record.path / "snapshot.safetensors")
        w, h = (arrays[key] - arrays[key].mean(0) for key in ("weight", "train.class_means"))
        products, ws, hs = (np.linalg.svd(matrix, compute_uv=False)[:9] for matrix in (w @ h.T, w, h))
        assert ws * hs[::-1] == pytest.approx(1, abs=0.03), "W is long where the means are short"
        said[name] = f"{ws[0]:.2f} to {ws[-1]:.2f} beside {hs[-1]:.2f} to {hs[0]:.2f}"
        if name == "adam":
            assert f"NC3 {record.final('train.nc3'):.4f};" in cause.why
            assert f"both centred, are {products[-1]:.2f} to {products[0]:.2f})" in cause.why
    assert f"(singular values {said['adam']}; with SGD {said['sgd']})" in cause.why
    plain, decayed = (read_run(ROOT / "results" / "runs" / run_id) for run_id in ("3bd5cb20efc0", "597ea757271e"))
    assert f"with an NC2 of {plain.final('train.nc2'):.3f} (run {plain.run_id})" in cause.why
    assert f"and of {decayed.final('train.nc2'):.3f} if W and the features are decayed instead" in cause.why
    changed = {key for key in decayed.config if decayed.config[key] != plain.config[key]}
    assert changed == {"optim", "decays"}
    assert plain.get("decays.feature") == decayed.get("optim.weight_decay") == 0 < decayed.get("decays.feature")


def test_without_records_everything_is_listed_as_not_run(script, tmp_path):
    script.main(str(tmp_path / "none"), str(tmp_path / "page.md"), draw=False)
    text = (tmp_path / "page.md").read_text()
    for name, experiment in CATALOGUE.items():
        verdict = evaluate(experiment, []).verdict if experiment.protocol == "landscape" else "not run"
        entry = f"[{name}](#{name.replace('/', '-')})" if experiment.protocol == "landscape" else name
        assert f"| {entry} | {experiment.title} | {verdict} |" in text


def test_every_claim_that_does_not_hold_has_a_cause_or_says_so():
    records = read_runs(ROOT / "results" / "runs")
    text = (ROOT / "docs" / "reproduction.md").read_text()
    for experiment in CATALOGUE.values():
        outcome = evaluate(experiment, records)
        if not outcome.only_tried and not experiment.asks:
            for claim in (*outcome.claims, *outcome.beyond):
                if claim.holds is False:
                    cause = find_claim_cause(outcome, claim)
                    assert cause
                    assert f"{describe_claim(outcome, claim)}\n" in text
                    assert describe_claim(outcome, claim).endswith(f": {cause}")


def test_every_cause_belongs_to_a_claim_of_its_entry():
    """A claim that is worded anew would else lose its cause in silence."""
    for experiment in CATALOGUE.values():
        for cause in experiment.claim_causes:
            runs = [({**point.keys, "loss": "none", "dim": 512, "head": "none"}, run()) for point in experiment.grid()]
            beyond = experiment.beyond.claims(runs) if experiment.beyond else []
            texts = [claim.text for claim in (*experiment.claims(runs), *beyond)]
            assert any(text.startswith(cause.start) for text in texts), (experiment.id, cause.start)


def test_a_cause_of_shortened_runs_ends_with_them():
    experiment = get_experiment("imbalanced-relu/figure-2")
    claim = Claim("under Adam the NC metrics approach zero", False, "")
    short = Outcome(experiment, (), (claim,), Coverage(2, 2, 2, 2, ((1000, 4000),)), (), "", "")
    whole = replace(short, coverage=Coverage(2, 2, 2))
    assert "ended before" in find_claim_cause(short, claim)
    assert find_claim_cause(whole, claim) == "not explained"
    assert find_claim_cause(short, replace(claim, lengths=(4000,))) == "not explained", "others are the short ones"
    assert "ended before" in find_claim_cause(short, replace(claim, lengths=(1000,)))
    apart = replace(whole, claims=(), beyond=(claim,), beyond_coverage=short.coverage)
    assert "ended before" in find_claim_cause(apart, claim), "of the runs that it is about"
    other = replace(claim, text="something else")
    assert find_claim_cause(short, other) == "not explained; tried at 1000 of 4000 epochs only"


def test_the_page_says_where_the_best_of_a_few_epochs_was_chosen():
    """Runs that report an epoch and were not measured after each; where the last one is reported it does not matter."""
    text, records = (ROOT / "docs" / "reproduction.md").read_text(), read_runs(ROOT / "results" / "runs")
    said = describe_choice_of_epoch(evaluate(get_experiment("bce-vs-ce/table-1"), records))
    sparse = (
        "The best of the measured epochs is reported; measured was every 10 epochs in ae301e74b35f and dceb3c1e8c75."
    )
    assert said == [sparse]
    assert text.count(f"- {sparse}\n") == 1, "with table 1"
    linked = "[bce-vs-ce/table-1](#bce-vs-ce-table-1)"
    links = [line for line in text.splitlines() if line.startswith(f"- As noted under {linked}")]
    assert sum(quote_start(sparse) in line for line in links) == 4, "tables 2 and 13, and two of the early version"
    for name in ("ae301e74b35f", "dceb3c1e8c75"):
        assert len(read_run(ROOT / "results" / "runs" / name).history) == 10
    assert describe_choice_of_epoch(evaluate(get_experiment("bce-vs-ce/table-6"), records)) == []
