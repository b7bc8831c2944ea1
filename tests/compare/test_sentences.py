"""Numbers in sentences: intervals the right way round, ranges, and which settings count as open."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from ncollapse.compare.findings import find
from ncollapse.compare.ranking import rank
from ncollapse.compare.sentences import describe_contexts, describe_finding, describe_ranges, describe_ranking
from ncollapse.compare.variants import Variant
from ncollapse.runs.record import RunRecord

IMAGES = 10_000


def variant(loss, accuracies, status="finished", seeds=None, context="", **train):
    """Runs with these test accuracies over seeds, and with numbers of training over seeds."""
    records = []
    for i, accuracy in enumerate(accuracies):
        summary = {"status": status, "test": {"accuracy": accuracy, "num_samples": IMAGES}}
        summary["train"] = {name: values[i] for name, values in train.items()}
        config = {"seed": seeds[i] if seeds else i, "optim": {"epochs": 1}}
        history = [{"epoch": 1, "test": {"accuracy": accuracy, "num_samples": IMAGES}}]
        records.append(RunRecord(Path(f"{loss}{i}"), f"{loss}{i}", config, {}, history, summary, status))
    return Variant(loss, loss.lower(), {}, context, tuple(records))


def findings(*variants):
    return [find(v, variants[0] if v is not variants[0] else None) for v in variants]


def interval(first, second):
    """In points, by scipy."""
    low, high = stats.ttest_rel(second, first).confidence_interval(0.95)
    return f"95 % interval {100 * low:+.2g} to {100 * high:+.2g}".replace("-", "−")


@pytest.mark.parametrize("others", [(0.84, 0.853, 0.86), (0.95, 0.9534, 0.96), (0.89, 0.92, 0.924)])
def test_the_interval_of_a_difference_is_that_of_the_variant_less_the_reference(others):
    ce = (0.90, 0.91, 0.905)
    clause = describe_finding(findings(variant("CE", ce), variant("BCE", others))[1]).split("Against CE: ")[1]
    assert f"({interval(ce, others)})" in clause
    mean = np.mean(others) - np.mean(ce)
    assert ("higher" in clause, "lower" in clause) == ((mean > 0.02), (mean < -0.02))


def test_the_lead_of_the_best_is_told_from_its_side():
    ce, bce = (0.90, 0.91, 0.905), (0.92, 0.934, 0.93)
    verdict = describe_ranking(rank(findings(variant("CE", ce), variant("BCE", bce))))
    assert f"({interval(ce, bce)})" in verdict


def test_a_quantity_that_is_not_clear_is_named_only_if_it_always_is():
    scattered, clear = (0.2, 0.3, 0.1), (0.01, 0.0101, 0.0102)
    ce = variant("CE", (0.9, 0.91, 0.92), nc1=(0.2, 0.1, 0.3), nc2=(0.3, 0.1, 0.2), nc3=(0.05, 0.0501, 0.0502))
    sentence = describe_finding(
        findings(ce, variant("BCE", (0.91, 0.9, 0.92), nc1=scattered, nc2=scattered, nc3=clear))[1]
    )
    assert "NC1 not distinguishable" in sentence
    ratio = stats.gmean(np.divide((0.05, 0.0501, 0.0502), clear))
    assert f"NC3 {ratio:.3g} times lower" in sentence
    assert "NC2" not in sentence
    assert "bias" not in sentence


def test_ranges_are_those_of_the_means():
    made = [variant("CE", (0.9, 0.92)), variant("CE", (0.8, 0.84)), variant("BCE", (0.95,)), variant("CE", (0.86,))]
    found = dict(describe_ranges([find(v, None) for v in made]))
    assert found["ce"] == "CE (3 variants, 5 runs): test accuracy from 82.00 to 91.00 %."
    assert found["bce"] == "BCE (1 variant, 1 run): test accuracy from 95.00 to 95.00 %."


def test_settings_without_a_winner_are_counted_beside_those_with_one():
    won = rank(findings(variant("CE", (0.90, 0.901, 0.9)), variant("BCE", (0.95, 0.951, 0.95))))
    lost = rank(findings(variant("CE", (0.95, 0.951, 0.95)), variant("BCE", (0.90, 0.901, 0.9))))
    even = rank(findings(variant("CE", (0.90, 0.91, 0.9)), variant("BCE", (0.91, 0.90, 0.9))))
    said = describe_contexts([won, won, lost, even, even])
    assert said.endswith(" On accuracy, BCE wins in 2, CE wins in 1 and no loss wins in 2."), (
        "no other quantity differs"
    )


def test_the_largest_clear_difference_is_in_another_quantity_than_the_ranked_one():
    ce = variant("CE", (0.5, 0.51, 0.505), nc3=(0.05, 0.0501, 0.0502))
    bce = variant("BCE", (0.95, 0.951, 0.95), nc3=(0.1, 0.1, 0.1004))
    said = describe_contexts([rank(findings(ce, bce)), rank(findings(ce, ce))])
    assert "The largest clear difference: BCE against CE: train NC3 2 times higher." in said


@pytest.mark.parametrize(("seeds", "said"), [((0, 1), " So far, on accuracy, BCE lies 4 points"), ((5, 6), "")])
def test_an_unfinished_loss_is_compared_on_the_seeds_it_shares(seeds, said):
    unfinished = variant("BCE", (0.94, 0.95), status="interrupted", seeds=seeds)
    verdict = describe_ranking(rank(findings(variant("CE", (0.9, 0.91)), unfinished)))
    assert verdict.startswith(f"No verdict yet: BCE has no finished run.{said}")
    assert verdict.endswith("." if said else "run.")


def test_without_a_test_set_training_accuracy_ranks():
    made = [
        variant(loss, (float("nan"),) * 3, accuracy=a)
        for loss, a in (("CE", (0.8, 0.81, 0.8)), ("BCE", (0.9, 0.912, 0.9)))
    ]
    ranking = rank(findings(*made))
    assert ranking.quantity.key == "train.accuracy"
    assert describe_ranking(ranking).startswith("BCE wins on train accuracy: ")
    assert rank(findings(variant("CE", (float("nan"),)))) is None
    assert describe_ranking(None).startswith("No accuracy was measured")


@pytest.mark.parametrize(("number", "said"), [(2, "both seeds"), (3, "all 3 seeds")])
def test_equal_differences_need_more_seeds_and_nobody_knows_how_many(number, said):
    """Without a number of samples there is no resolution, and equal differences have no interval."""
    nothing = (float("nan"),) * number
    values = {"CE": (0.5, 0.625, 0.75), "BCE": (0.625, 0.75, 0.875)}
    made = [variant(loss, nothing, accuracy=accuracies) for loss, accuracies in values.items()]
    verdict = describe_ranking(rank(findings(*made)))
    assert verdict.startswith("No loss wins on train accuracy: BCE lies 12 points above CE, which may be chance. ")
    assert verdict.endswith(f" It is the same in {said}, which gives no interval: more seeds would tell.")
    assert "would be needed" not in verdict
