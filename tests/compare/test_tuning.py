"""A learning rate for each loss: which runs are tried, and which candidate wins."""

import math
import re

import pytest

from ncollapse.compare import compare_records
from ncollapse.compare.plan import plan
from ncollapse.compare.tuning import TuningError, choose, parse_grid, plan_tuning
from ncollapse.compare.variants import group_runs
from ncollapse.runs.record import RunRecord, read_runs
from reference.runs import write_run

CANDIDATES = [{"optim.lr": 0.01}, {"optim.lr": 0.1}, {"optim.lr": 1.0}]
RECIPE = plan(losses=("ce",), seeds=1)[0]


def record(accuracy=None, uniform=0.0, status="finished"):
    summary = {"validation_by_class": {"balanced_accuracy": accuracy}, "validation": {"uniform_accuracy": uniform}}
    return RunRecord(None, "run", {}, summary=summary | {"reason": "Diverged: the loss became nan"}, status=status)


def test_grids_are_read_by_short_and_dotted_names():
    assert parse_grid([]) == {}
    assert parse_grid(["lr=0.1,0.1,0.2"]) == {"optim.lr": (0.1, 0.2)}
    assert parse_grid(["weight-decay=0,1e-4", "decays.bias=0.1"]) == {
        "optim.weight_decay": (0.0, 1e-4),
        "decays.bias": (0.1,),
    }


@pytest.mark.parametrize("word", ["lr", "lr=", "lr=a", "lr=0.1,nan", "lr=inf"])
def test_a_grid_that_cannot_be_read_is_named(word):
    with pytest.raises(ValueError, match="tune: expected"):
        parse_grid([word])


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("lrr=0.1", "tune: expected a setting of the recipe, got 'lrr'; did you mean lr?"),
        (
            "decays.wieght=0.1",
            "tune: expected a setting of the recipe, got 'decays.wieght'; did you mean decays.weight?",
        ),
        ("batch-size=32,64.5", "tune: expected whole numbers of batch-size, got 'batch-size=32,64.5'"),
    ],
)
def test_a_setting_that_is_misspelt_or_no_whole_number_is_named(word, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parse_grid([word])


def test_epochs_can_be_tuned():
    ((_, runs),) = plan_tuning([RECIPE], parse_grid(["epochs=10,20"]))
    assert [run.optim.epochs for run in runs] == [10, 20]


def test_weak_decays_can_be_tuned():
    ((_, runs),) = plan_tuning([RECIPE], parse_grid(["decays.weak-epochs=0,20"]))
    assert [run.decays.weak_epochs for run in runs] == [0, 20]


def test_every_loss_and_optimiser_is_tuned_once_on_held_out_data():
    recipes = plan(losses=("ce", "bce"), optimisers=("sgd", "adam"), seeds=3)
    tried = plan_tuning(recipes, {"optim.lr": (0.01, 0.1), "optim.batch_size": (32.0, 64.0)})
    assert [(recipe.loss.name, recipe.optim.name, recipe.seed) for recipe, _ in tried] == [
        (loss, name, 0) for loss in ("ce", "bce") for name in ("sgd", "adam")
    ]
    runs = tried[0][1]
    assert [(run.optim.lr, run.optim.batch_size) for run in runs] == [(0.01, 32), (0.01, 64), (0.1, 32), (0.1, 64)]
    assert {run.data.validation for run in runs} == {0.1}
    assert {run.seed for run in runs} == {0}


def test_a_recipe_s_own_validation_share_is_kept():
    recipe = plan("cifar10", ("ce",), seeds=1, recipe="all-losses")[0]
    ((_, (run,)),) = plan_tuning([recipe], {"optim.lr": (0.1,)})
    assert run.data.validation == recipe.data.validation == 0.1
    assert run.select == "last"


def test_the_best_balanced_accuracy_wins():
    choice = choose(RECIPE, CANDIDATES, [record(0.5), record(0.9), record(0.7)])
    assert choice.values == {"optim.lr": 0.1}
    assert choice.describe() == "ce sgd: lr 0.1 (90.00 %; lr 0.01: 50.00 %, lr 1: 70.00 %)"


def test_the_end_of_the_list_is_mentioned():
    assert "at the end of the list" in choose(RECIPE, CANDIDATES, [record(0.5), record(0.6), record(0.7)]).describe()
    tied = choose(RECIPE, CANDIDATES, [record(0.7), record(0.7), record(0.7)])
    assert tied.chosen == 0
    assert "end of the list" not in tied.describe()


def test_ties_go_to_the_uniform_accuracy():
    assert choose(RECIPE, CANDIDATES, [record(0.9, 0.1), record(0.9, 0.3), record(0.9, 0.2)]).chosen == 1


def test_a_candidate_that_diverged_loses_and_unfinished_ones_stop():
    choice = choose(RECIPE, CANDIDATES, [record(0.2), record(status="failed"), record(0.1)])
    assert choice.chosen == 0
    assert math.isnan(choice.scores[1])
    assert "lr 0.1: failed" in choice.describe()
    with pytest.raises(TuningError, match="1 of 3 runs are unfinished"):
        choose(RECIPE, CANDIDATES, [record(0.2), record(0.1), record(status="interrupted")])
    with pytest.raises(TuningError, match=r"every candidate of ce failed .Diverged"):
        choose(RECIPE, CANDIDATES, [record(status="failed")] * 3)


def test_losses_with_a_rate_each_are_compared(tmp_path):
    for loss, rate in (("ce", 0.1), ("bce", 0.01)):
        for seed in (0, 1):
            write_run(tmp_path, {"loss.name": loss, "seed": seed, "optim.lr": rate})
    ce, bce = group_runs(read_runs(tmp_path))
    assert ce.context == bce.context
    write_run(tmp_path, {"loss.name": "ce", "seed": 0, "optim.lr": 0.01})
    contexts = [variant.context for variant in group_runs(read_runs(tmp_path))]
    assert len(set(contexts)) == 2, "a loss with two rates is compared rate by rate"


@pytest.mark.parametrize(
    "content", [None, "[]", "{", '[{"candidates": 3}]', '[{"candidates": [{"optim.batch_size": 32}]}]']
)
def test_losses_are_compared_at_the_values_that_were_chosen_for_each(tmp_path, content):
    for loss, batch in (("ce", 32), ("bce", 64)):
        for seed in range(2):
            write_run(tmp_path, {"loss.name": loss, "seed": seed, "optim.batch_size": batch}, snapshot=False)
    if content is not None:
        (tmp_path / "tuning.json").write_text(content)
    found = compare_records(read_runs(tmp_path))
    tuned = "batch_size" in str(content)
    assert len(found.rankings) == (1 if tuned else 2)
    assert ("nothing is compared" in found.verdict) is not tuned
