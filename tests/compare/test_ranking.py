"""The verdict on a comparison: who leads, by how much, and what is never called a finding."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from ncollapse.compare import QUANTITIES, compare_records, compare_runs
from ncollapse.compare.findings import find, sample_share
from ncollapse.compare.ranking import Effect, find_effects, rank
from ncollapse.compare.seeds import Difference
from ncollapse.compare.variants import Variant
from ncollapse.runs.record import RunRecord, read_runs
from reference.runs import write_run


def write_values(folder, values, images=1000, **changes):
    """Runs whose summaries hold the given numbers: values[loss][field] is a list over seeds."""
    for loss, fields in values.items():
        for seed in range(len(next(iter(fields.values())))):
            path = write_run(folder, {"loss.name": loss, "seed": seed, "optim.epochs": 2, **changes}, snapshot=False)
            summary = json.loads((path / "summary.json").read_text())
            for field, numbers in fields.items():
                split, _, name = field.partition(".")
                summary[split][name] = numbers[seed]
                summary[split]["num_samples"] = images
            (path / "summary.json").write_text(json.dumps(summary))
    return compare_records(read_runs(folder))


def test_a_clear_lead_wins(tmp_path):
    found = write_values(
        tmp_path,
        {"ce": {"test.accuracy": [0.90, 0.91, 0.905]}, "bce": {"test.accuracy": [0.93, 0.941, 0.934]}},
    )
    (ranking,) = found.rankings
    assert [p.finding.variant.label for p in ranking.places] == ["BCE", "CE"]
    assert [p.leads for p in ranking.places] == [True, False]
    assert found.verdict.startswith("BCE wins on accuracy: 3 points, 30 images above CE (95 % interval +2.8 to +3.2).")
    assert ranking.places[0].images == 1000


def test_rates_of_training_are_told_from_those_of_the_test_set(tmp_path):
    values = {
        "ce": {"test.accuracy": [0.9, 0.91, 0.92], "train.accuracy": [0.95, 0.951, 0.952]},
        "bce": {"test.accuracy": [0.91, 0.90, 0.92], "train.accuracy": [0.96, 0.961, 0.962]},
    }
    sentence = write_values(tmp_path, values).findings[1].sentence
    assert "; train accuracy 1 point higher (10 images)" in sentence
    assert "Against CE: accuracy not distinguishable" in sentence


def test_one_or_two_images_win_nothing(tmp_path):
    found = write_values(
        tmp_path, {"ce": {"test.accuracy": [0.9, 0.91, 0.92]}, "bce": {"test.accuracy": [0.902, 0.912, 0.922]}}
    )
    assert found.verdict.startswith("No loss wins on accuracy: BCE lies 0.2 points (2 images) above CE,")
    assert "a larger test set would tell more" in found.verdict
    assert not found.findings[1].differences["test.accuracy"].clear


@pytest.mark.parametrize("others", [[0.9, 0.91], [0.91, 0.90]])
def test_losses_that_are_equal_on_average_are_said_to_be(tmp_path, others):
    found = write_values(tmp_path, {"ce": {"test.accuracy": [0.9, 0.91]}, "bce": {"test.accuracy": others}})
    assert found.verdict.startswith("No loss wins on accuracy: CE and BCE are equal on average. ")
    assert "0 images" not in found.verdict
    assert "0 points" not in found.verdict
    assert found.verdict.endswith(" A larger test set would tell more.")


def test_one_loss_with_two_parameters_has_two_names_in_the_verdict(tmp_path):
    write_values(tmp_path, {"focal": {"test.accuracy": [0.90, 0.91, 0.905]}}, **{"loss.gamma": 1.0})
    found = write_values(tmp_path, {"focal": {"test.accuracy": [0.93, 0.941, 0.934]}}, **{"loss.gamma": 3.0})
    assert found.verdict.startswith("Focal · γ 3 wins on accuracy: 3 points, 30 images above Focal · γ 1 (")


def test_equal_differences_of_two_seeds_are_not_certain(tmp_path):
    """Each seed five images better: the interval is as wide as rounding makes it, and holds zero at two seeds."""
    found = write_values(
        tmp_path, {"ce": {"test.accuracy": [0.9, 0.91]}, "bce": {"test.accuracy": [0.903, 0.913]}}, images=1000
    )
    d = found.findings[1].differences["test.accuracy"]
    assert d.low < 0 < d.high
    assert "No loss wins" in found.verdict


def test_the_advice_says_how_many_seeds(tmp_path):
    found = write_values(
        tmp_path, {"ce": {"test.accuracy": [0.90, 0.92, 0.91]}, "bce": {"test.accuracy": [0.93, 0.90, 0.94]}}
    )
    d = found.findings[1].differences["test.accuracy"]
    std = np.std([0.03, -0.02, 0.03], ddof=1)
    from scipy import stats

    needed = next(n for n in range(2, 999) if stats.t.ppf(0.975, n - 1) * std / math.sqrt(n) < d.mean)
    assert found.verdict.endswith(f"Run {needed - 3} more seeds to tell 1.3 points apart.")


def test_one_seed_gives_no_verdict(tmp_path):
    found = write_values(tmp_path, {"ce": {"test.accuracy": [0.9]}, "bce": {"test.accuracy": [0.95]}})
    assert found.verdict.startswith("No verdict from one seed: on accuracy, BCE lies 5 points (50 images) above CE,")
    assert found.verdict.endswith("Run at least two more seeds.")


def test_one_loss_alone_is_not_ranked(tmp_path):
    found = write_values(tmp_path, {"ce": {"test.accuracy": [0.9, 0.91]}})
    assert found.verdict == "Only CE was run: test accuracy 90.50 % ± 0.71. Compare it with another loss."


def test_several_may_lead_and_others_lag(tmp_path):
    found = write_values(
        tmp_path,
        {
            "ce": {"test.accuracy": [0.950, 0.951, 0.949, 0.952]},
            "bce": {"test.accuracy": [0.951, 0.949, 0.952, 0.951]},
            "mse": {"test.accuracy": [0.90, 0.901, 0.902, 0.90]},
        },
    )
    assert found.verdict.startswith("BCE and CE lead on accuracy and cannot be told apart; MSE is 5 points lower.")
    (ranking,) = found.rankings
    assert ranking.places[1].behind.confidence == pytest.approx(1 - 0.05 / 3), (
        "three pairs, of which the data choose two"
    )


def test_equal_losses_are_told_apart_no_more_often_than_said():
    """Five losses without any difference: which one is best is chance, and so must be that another is clearly lower."""
    rng, told, draws = np.random.default_rng(1), 0, 600

    def make(loss, seed, value):
        summary = {"test": {"accuracy": value, "num_samples": 10**6}}
        return RunRecord(Path(f"{loss}{seed}"), f"{loss}{seed}", {"seed": seed}, summary=summary, status="finished")

    for _ in range(draws):
        values = 0.9 + 0.01 * rng.standard_normal((5, 5))
        runs = [tuple(make(f"l{k}", seed, value) for seed, value in enumerate(row)) for k, row in enumerate(values)]
        ranking = rank([find(Variant(own[0].run_id, "l", {}, "", own), None) for own in runs])
        told += any(not place.leads for place in ranking.places)
    assert told / draws <= 0.05


def test_the_losses_are_ranked_on_the_seeds_they_share(tmp_path):
    """BCE is a point better on each of three shared seeds; two of its own, far lower, decide nothing."""
    values = {
        "ce": {"test.accuracy": [0.900, 0.901, 0.902]},
        "bce": {"test.accuracy": [0.911, 0.9125, 0.913, 0.70, 0.70]},
    }
    found = write_values(tmp_path, values)
    points = 100 * np.mean([0.011, 0.0115, 0.011])
    assert found.verdict.startswith(f"BCE wins on accuracy: {points:.2g} points")
    assert "Against CE: accuracy 1.1 points higher" in found.findings[1].sentence


def test_a_loss_without_a_shared_seed_is_not_compared(tmp_path):
    values = {"ce": {"test.accuracy": [0.9, 0.91, 0.9]}, "bce": {"test.accuracy": [0.94, 0.95, 0.94]}}
    write_values(tmp_path, values)
    path = write_run(tmp_path, {"loss.name": "mse", "seed": 7, "optim.epochs": 2}, snapshot=False)
    summary = json.loads((path / "summary.json").read_text())
    summary["test"] |= {"accuracy": 0.8, "num_samples": 1000}
    (path / "summary.json").write_text(json.dumps(summary))
    found = compare_records(read_runs(tmp_path))
    assert found.verdict.startswith("BCE wins on accuracy: 4 points")
    assert "MSE shares no seed with BCE and is not compared." in found.verdict
    (ranking,) = found.rankings
    assert [p.finding.variant.loss for p in ranking.leaders] == ["bce"]


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_a_loss_without_a_finished_run_wins_nothing(tmp_path, status):
    for seed in range(3):
        write_run(tmp_path, {"loss.name": "ce", "seed": seed, "optim.epochs": 6}, snapshot=False)
        change = {"loss.name": "bce", "seed": seed, "optim.epochs": 6}
        write_run(tmp_path, change, status=status, epochs_done=3, snapshot=False)
    verdict = compare_records(read_runs(tmp_path)).verdict
    assert verdict.startswith("No verdict yet: BCE has no finished run. So far, on accuracy, CE lies ")
    assert "wins" not in verdict


def test_the_largest_difference_is_named_whichever_field_it_is_in(tmp_path):
    """The demo's own: distinctiveness, at which nobody looked before."""
    rng = np.random.default_rng(0)
    ce, bce = (0.48 + 0.002 * rng.standard_normal(3), 0.39 + 0.002 * rng.standard_normal(3))
    found = write_values(
        tmp_path,
        {
            "ce": {"test.distinctiveness": ce.tolist(), "train.nc1": [1e-3, 1.1e-3, 0.9e-3]},
            "bce": {"test.distinctiveness": bce.tolist(), "train.nc1": [2e-3, 2.2e-3, 1.8e-3]},
        },
    )
    points = 100 * (ce - bce).mean()
    assert f"BCE separates classes less than CE: test distinctiveness {points:.2g} points lower" in found.verdict
    (ranking,) = found.rankings
    sizes = [effect.size for effect in ranking.effects]
    assert sizes == sorted(sizes, reverse=True)
    assert ranking.effects[0].quantity.key in ("test.distinctiveness", "train.nc1", "train.nc2", "train.nc3")


def test_nc1_is_compared_by_its_ratio(tmp_path):
    ce, bce = np.array([1e-3, 4e-3, 1e-2]), np.array([2e-3, 8.4e-3, 1.9e-2])
    found = write_values(tmp_path, {"ce": {"train.nc1": ce.tolist()}, "bce": {"train.nc1": bce.tolist()}})
    ratio = found.findings[1].ratios["train.nc1"]
    assert math.exp(ratio.mean) == pytest.approx(np.exp(np.log(bce / ce).mean()))
    assert ratio.clear
    assert not found.findings[1].differences["train.nc1"].clear, "the plain difference drowns in the spread of seeds"
    assert f"NC1 {np.exp(np.log(bce / ce).mean()):.3g} times higher" in found.findings[1].sentence


def test_ratios_of_zero_are_left_out(tmp_path):
    found = write_values(tmp_path, {"ce": {"train.nc1": [0.0, 1e-3]}, "bce": {"train.nc1": [1e-3, 2e-3]}})
    assert found.findings[1].ratios["train.nc1"].n == 1


def test_effects_are_clear_and_have_a_direction(tmp_path):
    found = write_values(
        tmp_path, {"ce": {"test.accuracy": [0.9, 0.91, 0.9]}, "bce": {"test.accuracy": [0.95, 0.96, 0.95]}}
    )
    for effect in find_effects(found.findings):
        assert effect.difference.clear
        assert effect.quantity.better
    accuracy = next(e for e in find_effects(found.findings) if e.quantity.key == "test.accuracy")
    assert accuracy.good


def test_many_settings_are_counted(tmp_path):
    for data, gain in (("mnist", 0.05), ("cifar10", 0.0)):
        values = {"ce": {"test.accuracy": [0.9, 0.912]}, "bce": {"test.accuracy": [0.9 + gain, 0.91 + gain]}}
        write_values(tmp_path, values, images=10000, **{"data.name": data})
    write_run(tmp_path, {"data.name": "cifar100", "optim.epochs": 2}, snapshot=False)
    verdict = compare_records(read_runs(tmp_path)).verdict
    assert verdict.startswith("2 of 3 settings compare losses, all of them with two seeds or more. ")
    assert "On accuracy, BCE wins in 1 and no loss wins in 1." in verdict


def test_nothing_measured_is_said(tmp_path):
    write_run(tmp_path, {}, status="interrupted", epochs_done=0)
    found = compare_records(read_runs(tmp_path))
    assert found.verdict == "No run has measured anything yet."
    assert found.rankings == ()


def test_every_quantity_with_a_direction_is_explained():
    assert all(q.meaning and q.source for q in QUANTITIES if q.better)


def test_findings_alone_are_those_of_the_comparison(tmp_path):
    write_values(tmp_path, {"ce": {"test.accuracy": [0.9]}, "bce": {"test.accuracy": [0.95]}})
    records = read_runs(tmp_path)
    assert [f.sentence for f in compare_runs(records)] == [f.sentence for f in compare_records(records).findings]


@pytest.mark.parametrize(
    ("failed", "history", "said"),
    [
        (1, True, "1 of 3 runs of BCE failed and is left out."),
        (2, True, "2 of 3 runs of BCE failed and are left out."),
        (3, True, "3 of 3 runs of BCE failed."),
        (3, False, "BCE has no results: 3 of 3 runs failed."),
    ],
)
def test_the_verdict_names_failed_runs(tmp_path, failed, history, said):
    """What trains under some seeds alone is compared on these; the reader has to know."""
    for seed in range(3):
        write_run(tmp_path, {"loss.name": "ce", "seed": seed, "optim.epochs": 6}, snapshot=False)
        status = "failed" if seed < failed else "finished"
        path = write_run(tmp_path, {"loss.name": "bce", "seed": seed, "optim.epochs": 6}, status=status, snapshot=False)
        if not history:
            (path / "history.jsonl").unlink()
    verdict = compare_records(read_runs(tmp_path)).verdict
    assert verdict.endswith(said)
    assert verdict.startswith("Only CE has results: ") is not history
    assert "wins" not in verdict or failed < 3


def test_failures_at_one_setting_are_not_those_of_the_loss(tmp_path):
    write_run(tmp_path, {"loss.name": "ce", "optim.lr": 0.1, "optim.epochs": 6}, snapshot=False)
    path = write_run(tmp_path, {"loss.name": "ce", "optim.lr": 9.0, "optim.epochs": 6}, status="failed", snapshot=False)
    (path / "history.jsonl").unlink()
    verdict = compare_records(read_runs(tmp_path)).verdict
    assert verdict.endswith("CE · lr 9 has no results: its run failed.")


def test_the_verdict_says_which_loss_is_ahead(tmp_path):
    values = {"ce": {"test.accuracy": [0.5, 0.8, 0.6]}, "bce": {"test.accuracy": [0.8, 0.7, 0.7]}}
    verdict = write_values(tmp_path, values).verdict
    assert verdict.startswith(
        "No loss wins on accuracy: BCE lies 10 points (100 images) above CE, which may be chance."
    )


def test_three_images_count_and_two_do_not(tmp_path):
    """Five seeds, each better by the same number of images: the interval is that of rounding, 0.05 points wide."""
    accuracies = [0.90, 0.91, 0.92, 0.93, 0.94]
    for images, verdict in (
        (2, "No loss wins on accuracy"),
        (3, "BCE wins on accuracy: 0.3 points, 3 images above CE"),
    ):
        better = [accuracy + images / 1000 for accuracy in accuracies]
        values = {"ce": {"test.accuracy": accuracies}, "bce": {"test.accuracy": better}}
        found = write_values(tmp_path / str(images), values)
        d = found.findings[1].differences["test.accuracy"]
        assert d.excludes_zero
        assert d.clear is (images == 3)
        assert found.verdict.startswith(verdict)
        assert ("accuracy within 2 images, too few to count" in found.findings[1].sentence) is (images == 2)


@pytest.mark.parametrize("images", [93, 105, 123, 1000])
def test_the_number_of_images_is_that_of_the_split(tmp_path, images):
    """1 / (1 / n) is below n for some of these."""
    (ranking,) = write_values(tmp_path, {"ce": {"test.accuracy": [0.9]}}, images=images).rankings
    assert ranking.places[0].images == images


def test_where_the_number_of_images_is_unknown_none_are_counted():
    known = RunRecord("", "", summary={"test": {"num_samples": 360}})
    assert sample_share(known, "test") == 1 / 360
    assert sample_share(known, "train") == 0
    rows = [{"test": {"num_samples": 500}}, {"test": {"num_samples": 400}}, {"test": {}}]
    assert sample_share(RunRecord("", "", history=rows), "test") == 1 / 400, "of the last epoch that has it"


def test_differences_that_are_equal_in_every_seed_are_said_so(tmp_path):
    values = {"ce": {"train.nc1": [1e-3, 2e-3, 4e-3]}, "bce": {"train.nc1": [1e-3, 2e-3, 4e-3]}}
    sentence = write_values(tmp_path / "equal", values).findings[1].sentence
    assert "; NC1 equal in each of 3 seeds" in sentence
    values["bce"] = {"train.nc1": [2e-3, 4e-3, 8e-3]}
    sentence = write_values(tmp_path / "twice", values).findings[1].sentence
    assert "; NC1 2 times higher in each of 3 seeds" in sentence
    values["bce"] = {"train.nc1": [0.999 * value for value in values["ce"]["train.nc1"]]}
    sentence = write_values(tmp_path / "nearly", values).findings[1].sentence
    assert "; NC1 0.1 % lower in each of 3 seeds" in sentence


def test_three_losses_that_cannot_be_told_apart(tmp_path):
    """The spread told is that between the best and the last."""
    found = write_values(
        tmp_path,
        {
            "ce": {"test.accuracy": [0.95, 0.93]},
            "bce": {"test.accuracy": [0.94, 0.96]},
            "mse": {"test.accuracy": [0.96, 0.93]},
        },
    )
    assert found.verdict.startswith("No loss wins on accuracy: all 3 lie within 1 point.")


def test_a_win_over_several_names_the_next(tmp_path):
    found = write_values(
        tmp_path,
        {
            "ce": {"test.accuracy": [0.950, 0.951, 0.949], "train.nc1": [1e-3, 1.1e-3, 0.9e-3]},
            "bce": {"test.accuracy": [0.971, 0.973, 0.969], "train.nc1": [2e-3, 2.3e-3, 1.7e-3]},
            "mse": {"test.accuracy": [0.90, 0.901, 0.902], "train.nc1": [8e-3, 8.6e-3, 7.5e-3]},
        },
    )
    assert found.verdict.startswith("BCE wins on accuracy: 2.1 points, 21 images above the next, CE (98.3 % interval")
    ratio = np.exp(np.log(np.array([8e-3, 8.6e-3, 7.5e-3]) / np.array([1e-3, 1.1e-3, 0.9e-3])).mean())
    assert f"train NC1 {ratio:.3g} times higher, the largest of 2 such differences." in found.verdict


def test_more_seeds_than_anyone_runs(tmp_path):
    """A difference of 0.3 points in a spread of some 3."""
    found = write_values(
        tmp_path, {"ce": {"test.accuracy": [0.90, 0.90, 0.90]}, "bce": {"test.accuracy": [0.93, 0.872, 0.907]}}
    )
    assert found.verdict.endswith("More than 100 seeds would be needed to tell 0.3 points apart.")


def test_equal_accuracies_of_one_seed(tmp_path):
    found = write_values(tmp_path, {"ce": {"test.accuracy": [0.9]}, "bce": {"test.accuracy": [0.9]}})
    assert found.verdict.startswith("No verdict from one seed: on accuracy, CE and BCE are equal, and chance")


def test_losses_without_a_shared_seed_are_not_compared(tmp_path):
    write_values(tmp_path, {"ce": {"test.accuracy": [0.9]}})
    found = write_values(tmp_path, {"bce": {"test.accuracy": [0.95]}}, seed=1)
    assert found.verdict.startswith("BCE has the highest accuracy, but shares no seed with CE: nothing is shown by it.")
    assert "seed" not in found.verdict.partition("by it.")[2]
    assert found.findings[1].sentence.endswith("No seed is shared with CE, so there is no paired difference.")


def test_a_loss_without_a_shared_seed_neither_leads_nor_hides_a_win(tmp_path):
    """Nothing is known of how far it lies behind, however low its accuracy."""
    values = {"ce": {"test.accuracy": [0.90, 0.91, 0.905]}, "bce": {"test.accuracy": [0.95, 0.961, 0.954]}}
    alone = write_values(tmp_path / "two", values).verdict
    assert alone.startswith("BCE wins on accuracy: 5 points, 50 images above CE (95 % interval ")
    for name, accuracy in (("low", 0.5), ("between", 0.93)):
        write_values(tmp_path / name, values)
        found = write_values(tmp_path / name, {"mse": {"test.accuracy": [accuracy]}}, seed=7)
        (ranking,) = found.rankings
        assert [p.finding.variant.label for p in ranking.leaders] == ["BCE"]
        assert ranking.pairs == 3
        assert found.verdict.startswith("BCE wins on accuracy: 5 points, 50 images above CE (98.3 % interval ")
        assert ". MSE shares no seed with BCE and is not compared." in found.verdict
    found = write_values(tmp_path / "low", {"focal": {"test.accuracy": [0.4]}}, seed=8)
    assert " MSE and Focal share no seed with BCE and are not compared." in found.verdict


def test_settings_of_one_seed_are_counted_without_a_winner(tmp_path):
    for data, ce, bce in (("mnist", 0.9, 0.95), ("cifar10", 0.8, 0.85), ("cifar100", 0.7, 0.6), ("svhn", 0.5, 0.5)):
        values = {"ce": {"test.accuracy": [ce]}, "bce": {"test.accuracy": [bce]}}
        write_values(tmp_path, values, **{"data.name": data})
    verdict = compare_records(read_runs(tmp_path)).verdict
    assert verdict == (
        "All 4 settings compare losses, all with one shared seed, so chance is not ruled out. "
        "Ahead on accuracy: BCE in 2, CE in 1 and neither in 1."
    )


def test_settings_of_one_loss_each_compare_nothing(tmp_path):
    for data in ("mnist", "cifar10"):
        write_values(tmp_path, {"ce": {"test.accuracy": [0.9, 0.91]}}, **{"data.name": data})
    assert compare_records(read_runs(tmp_path)).verdict == "2 settings, each with one loss: nothing is compared."


@pytest.mark.parametrize(
    ("data", "told"),
    [(("mnist",), "it"), (("mnist", "svhn"), "both"), (("mnist", "svhn", "cifar10"), "all 3")],
)
def test_a_loss_that_wins_everywhere_is_said_to(tmp_path, data, told):
    for name in data:
        values = {"ce": {"test.accuracy": [0.9, 0.912]}, "bce": {"test.accuracy": [0.95, 0.96]}}
        write_values(tmp_path, values, images=10000, **{"data.name": name})
    write_run(tmp_path, {"data.name": "cifar100", "optim.epochs": 2}, snapshot=False)
    assert f"On accuracy, BCE wins in {told}." in compare_records(read_runs(tmp_path)).verdict


def test_wins_are_counted_in_every_setting(tmp_path):
    for data, gain in (("mnist", 0.05), ("cifar10", 0.04), ("cifar100", -0.05)):
        values = {"ce": {"test.accuracy": [0.9, 0.912]}, "bce": {"test.accuracy": [0.9 + gain, 0.91 + gain]}}
        write_values(tmp_path, values, images=10000, **{"data.name": data})
    verdict = compare_records(read_runs(tmp_path)).verdict
    assert "all of them with two seeds or more. On accuracy, BCE wins in 2 and CE wins in 1." in verdict


def test_no_winner_in_several_settings_is_good_english(tmp_path):
    for data in ("mnist", "cifar10"):
        values = {"ce": {"test.accuracy": [0.9, 0.912]}, "bce": {"test.accuracy": [0.9, 0.91]}}
        write_values(tmp_path, values, images=10000, **{"data.name": data})
    verdict = compare_records(read_runs(tmp_path)).verdict
    assert verdict.startswith("Both settings compare losses, all of them with two seeds or more. ")
    assert "On accuracy, no loss wins in any of them." in verdict


def test_rounding_of_nc2_is_no_difference(tmp_path):
    noise = {"ce": {"train.nc2": [3e-16, 2e-16, 5e-17]}, "bce": {"train.nc2": [1e-16, 1e-15, 4e-16]}}
    found = write_values(tmp_path, noise)
    ratio = found.findings[1].ratios["train.nc2"]
    assert ratio.n == 0
    assert "NC2" not in found.verdict


def test_ten_points_weigh_as_much_as_a_factor_of_e():
    rates, ratios = (
        [q for q in QUANTITIES if q.percent is percent and q.ratio is not percent] for percent in (True, False)
    )
    assert rates
    assert ratios
    for mean, quantities in ((0.1, rates), (-0.1, rates), (1.0, ratios), (-1.0, ratios)):
        for quantity in quantities:
            effect = Effect(None, quantity, Difference(mean, mean - 0.01, mean + 0.01, 0.01, 3))
            assert effect.size == pytest.approx(1, rel=1e-12)
            assert effect.good is ((quantity.better == "higher") == (mean > 0))


def test_the_fewest_shared_seeds_count(tmp_path):
    values = {
        "ce": {"test.accuracy": [0.93, 0.94, 0.93]},
        "bce": {"test.accuracy": [0.91, 0.92, 0.91]},
        "mse": {"test.accuracy": [0.80]},
    }
    found = write_values(tmp_path, values)
    (ranking,) = found.rankings
    assert sorted(p.behind.n for p in ranking.places if p.behind) == [1, 3]
    assert ranking.pairs == 1
    assert found.verdict.startswith("No verdict from one seed")
