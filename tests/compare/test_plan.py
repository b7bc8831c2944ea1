"""Comparisons of runs: how they are planned, grouped, paired and put into words."""

import json
import math
import shutil

import numpy as np
import pytest

from ncollapse.compare import compare_runs, to_dict
from ncollapse.compare.plan import choose_recipe, plan
from ncollapse.compare.variants import gather_copies, group_runs, measured
from ncollapse.runs.record import read_runs
from reference.runs import write_comparison, write_grid, write_run


def test_plan_crosses_losses_optimisers_and_seeds():
    recipes = plan(losses=("ce", "bce", "ce"), optimisers=("sgd", "adamw"), seeds=2, epochs=5)
    seen = [(r.loss.name, r.optim.name, r.seed) for r in recipes]
    assert seen == [(a, b, s) for a in ("ce", "bce") for b in ("sgd", "adamw") for s in (0, 1)]
    assert len({r.run_id for r in recipes}) == 8
    assert {r.optim.epochs for r in recipes} == {5}
    own = choose_recipe("digits", "ce", None).optim
    rates = {"sgd": 0.01, "adamw": 0.001} | {own.name: own.lr}
    assert {(r.optim.name, r.optim.lr) for r in recipes} == set(rates.items())


@pytest.mark.parametrize("data", ["digits", "gaussian", "gaussian:num_classes=4,dim=8", "npz:mine.npz"])
def test_vectors_get_the_small_network(data):
    assert plan(data, seeds=1)[0].model.name == "mlp-small"


def test_a_start_of_the_bias_that_goes_with_the_loss_keeps_losses_comparable(tmp_path):
    for recipe in plan("cifar10", ("ce", "bce"), seeds=2, recipe="bce-vs-ce/setting-3"):
        path = write_run(tmp_path, {"loss.name": recipe.loss.name, "seed": recipe.seed}, folder=recipe.run_id)
        (path / "config.json").write_text(recipe.to_json())
    found = compare_runs(read_runs(tmp_path))
    assert [f.variant.label for f in found] == ["CE · b₀ 0", "BCE · b₀ 6"]
    assert found[1].differences["test.accuracy"].n == 2
    other = write_run(tmp_path, {"loss.name": "bce", "seed": 5}, folder="other")
    (other / "config.json").write_text(recipe.override(model__bias_init=1.0, seed=0).to_json())
    assert [f.reference for f in compare_runs(read_runs(tmp_path))] == [None, None, None]


def test_changes_reach_every_run_and_leave_the_rest_alone():
    options = {"model": "mlp-300", "batch_size": 32, "lr": 0.2, "weight_decay": 5e-4, "precision": "bf16"}
    planned = plan(seeds=2, augment=["standard", "rotation=10"], normalise="0.5/0.25", measure_every=3, **options)
    assert len(planned) == 4
    for recipe in planned:
        assert (recipe.model.name, recipe.optim.batch_size, recipe.optim.lr) == ("mlp-300", 32, 0.2)
        assert (recipe.optim.weight_decay, recipe.precision, recipe.measure_every) == (5e-4, "bf16", 3)
        assert (recipe.augment.crop, recipe.augment.flip, recipe.augment.rotation) == (4, True, 10.0)
        assert recipe.data.normalise == "0.5/0.25"
        plain = choose_recipe("digits", recipe.loss.name, None)
        assert (recipe.schedule, recipe.decays, recipe.optim.epochs) == (plain.schedule, plain.decays, 60)


def test_a_rate_that_is_given_holds_for_every_optimiser():
    assert {r.optim.lr for r in plan(optimisers=("sgd", "adam"), seeds=1, lr=0.5)} == {0.5}
    stretched = plan("cifar10", recipe="bce-vs-ce/setting-1", epochs=50, seeds=1)[0]
    assert stretched.schedule.milestones == (15, 30, 40)


def test_plan_takes_a_recipe_for_images_and_from_a_file(tmp_path):
    assert plan("mnist", seeds=1)[0].model.name == "resnet18"
    assert plan("cifar10", seeds=1, recipe="all-losses")[0].model.name == "wide-resnet50-2"
    file = tmp_path / "mine.json"
    file.write_text(choose_recipe("digits", "focal", None).override(loss__gamma=2.0).to_json())
    planned = plan("digits", ("focal", "ce"), seeds=1, recipe=str(file))
    assert [r.loss.gamma for r in planned] == [2.0, None]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"seeds": 0}, "seeds"),
        ({"losses": ()}, "losses"),
        ({"optimisers": ("sgdd",)}, "sgdd"),
        ({"losses": ("cee",)}, "losses: expected some of ce, bce.* got 'cee'"),
        ({"losses": ("ce,bce",)}, "losses: expected some of ce, bce.*, separated by spaces, got 'ce,bce'"),
        ({"data": "nix"}, "data: expected one of digits.* got 'nix'"),
        ({"model": "resnet19"}, "model.name: expected one of resnet18.* got 'resnet19'"),
        ({"batch_size": 0}, "optim.batch_size: expected > 0, got 0"),
        ({"lr": -1.0}, "optim.lr: expected > 0, got -1.0"),
        ({"augment": ["sharpen"]}, "augment: expected none, standard, strong, or some of crop.* got 'sharpen'"),
        ({"augment": ["crop"]}, "augment: expected a number as in crop=4, got crop=nothing"),
        ({"augment": ["flip=3"]}, "augment: expected flip, flip=true or flip=false"),
        ({"normalise": "model"}, "data.normalise: expected auto"),
        ({"normalise": "half"}, "data.normalise: expected auto"),
    ],
)
def test_plan_names_what_is_wrong(changes, word):
    with pytest.raises(ValueError, match=word):
        plan(**changes)


def test_findings_agree_with_the_records(tmp_path):
    write_comparison(tmp_path, ("bce", "ce"), seeds=3)
    records = read_runs(tmp_path)
    ce, bce = compare_runs(records)
    assert (ce.variant.label, bce.variant.label) == ("CE", "BCE")
    assert ce.reference is None
    assert bce.reference is not None
    by_seed = {(r.loss, r.seed): r.summary["test"]["accuracy"] for r in records}
    differences = [by_seed["bce", s] - by_seed["ce", s] for s in range(3)]
    assert bce.differences["test.accuracy"].mean == pytest.approx(np.mean(differences))
    assert bce.estimates["test.accuracy"].n == 3
    biases = [r.summary["train"]["bias"]["mean"] for r in records if r.loss == "bce"]
    assert bce.estimates["train.bias"].mean == pytest.approx(np.mean(biases))
    assert bce.predictions["bias"] == 3.1
    assert ce.speeds["nc1_epoch"].mean > bce.speeds["nc1_epoch"].mean
    data = to_dict([ce, bce])
    assert data[1]["reference"] == "CE"
    assert data[1]["seeds"] == [0, 1, 2]


def test_sentence_claims_no_more_than_the_interval(tmp_path):
    write_comparison(tmp_path, seeds=3)
    _, bce = compare_runs(read_runs(tmp_path))
    clear = {key: d.clear for key, d in bce.differences.items()}
    accuracy, uniform = bce.sentence.split("Against CE: ")[1].split("; ")[:2]
    assert ("not distinguishable" in accuracy) == (not clear["test.accuracy"])
    assert ("not distinguishable" in uniform) == (not clear["test.uniform_accuracy"])


def test_what_is_said_of_the_first_epochs_follows_the_intervals(tmp_path):
    values = {"nc1": (0.01, 0.05, 0.5), "nc2": (0.049, 0.05, 0.051), "nc3": (0.19, 0.2, 0.21)}
    for loss in ("ce", "bce"):
        for seed in range(3):
            path = write_run(tmp_path, {"loss.name": loss, "seed": seed})
            rows = [json.loads(line) for line in (path / "history.jsonl").read_text().splitlines()]
            for row in rows:
                row["train"] |= {nc: 0.1 if loss == "ce" else by_seed[seed] for nc, by_seed in values.items()}
            (path / "history.jsonl").write_text("\n".join(map(json.dumps, rows)))
    _, bce = compare_runs(read_runs(tmp_path))
    assert bce.speed_differences["log_nc1"].mean == pytest.approx(np.mean(np.log10(values["nc1"])) + 1)
    assert "over epochs 1 to 20, NC2 lower, NC3 higher, NC1 not distinguishable." in bce.sentence


def test_one_seed_says_so(tmp_path):
    write_comparison(tmp_path, seeds=1)
    ce, bce = compare_runs(read_runs(tmp_path))
    assert "one seed" in ce.sentence
    assert "one shared seed gives no interval" in bce.sentence
    assert "%" not in bce.sentence.split("Against CE")[1]


def test_seeds_are_paired_and_losses_compared_within_their_context(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path, {"loss.name": "ce", "seed": seed})
    for seed in (1, 2):
        write_run(tmp_path, {"loss.name": "bce", "seed": seed})
    write_run(tmp_path, {"loss.name": "bce", "optim.name": "sgd"})
    found = {f.variant.label: f for f in compare_runs(read_runs(tmp_path))}
    assert found["BCE · AdamW"].differences["test.accuracy"].n == 1
    assert found["BCE · SGD"].reference is None


def test_unfinished_and_failed_runs_do_not_count_beside_finished_ones(tmp_path):
    write_run(tmp_path, {"seed": 0})
    write_run(tmp_path, {"seed": 1}, status="failed", epochs_done=2)
    write_run(tmp_path, {"loss.name": "bce"}, status="interrupted", epochs_done=4)
    ce, bce = compare_runs(read_runs(tmp_path))
    assert len(ce.variant.counted) == 1
    assert bce.variant.provisional
    assert "unfinished" in bce.sentence
    record = bce.variant.counted[0]
    assert measured(record, "train.nc1") == record.history[-1]["train"]["nc1"]
    assert math.isnan(measured(record, "train.nothing"))


def test_grid_of_sixty_is_told_apart_by_what_varies(tmp_path):
    write_grid(tmp_path, epochs=2)
    variants = group_runs(read_runs(tmp_path))
    assert len(variants) == 60
    assert len({v.label for v in variants}) == 60
    assert "BCE · SGD · λb 0.05 · b₀ 10" in {v.label for v in variants}


def test_theory_is_there_before_the_run_has_ended(tmp_path):
    recipe = plan(losses=("bce",), seeds=1)[0]
    path = write_run(tmp_path, {}, status="interrupted", epochs_done=2, folder=recipe.run_id)
    (path / "config.json").write_text(recipe.to_json())
    (found,) = compare_runs(read_runs(tmp_path))
    import ncollapse as nc

    right = nc.predict(recipe.problem(samples=1438))
    assert found.phase == right.phase
    assert found.predictions["bias"] == pytest.approx(right.bias)


def test_a_recipe_s_losses_bring_their_parameters():
    spec = plan(data="cifar10", losses=("mse",), seeds=1, recipe="all-losses")[0].loss
    assert (spec.name, spec.kappa, spec.beta) == ("mse", 1.0, 15.0)


def test_copies_of_a_run_are_no_further_seeds(tmp_path):
    write_comparison(tmp_path / "a", seeds=2)
    alone = compare_runs(read_runs(tmp_path))[1]
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    one = next((tmp_path / "a").iterdir())
    shutil.copytree(one, tmp_path / "another name")
    records = read_runs(tmp_path)
    assert len(records) == 9
    ce, bce = compare_runs(records)
    assert [r.seed for r in ce.variant.counted] == [r.seed for r in bce.variant.counted] == [0, 1]
    assert bce.estimates == alone.estimates
    assert bce.differences["train.nc1"] == alone.differences["train.nc1"]
    assert bce.differences["train.nc1"].n == 2
    assert "2 seeds" in bce.sentence


def test_of_several_records_of_a_run_the_finished_and_the_longest_counts(tmp_path):
    write_run(tmp_path, {"name": "first"}, status="interrupted", epochs_done=9, folder="a")
    write_run(tmp_path, {"name": "second"}, status="failed", epochs_done=12, folder="b")
    (best,) = gather_copies(read_runs(tmp_path))
    assert [r.run_id for r in best] == ["b", "a"]
    write_run(tmp_path, {"optim.epochs": 30}, epochs_done=3, folder="c")
    write_run(tmp_path, {"seed": 1}, folder="d")
    assert [[r.run_id for r in same] for same in gather_copies(read_runs(tmp_path))] == [["c", "b", "a"], ["d"]]


def thin_out(path, every):
    """Leave the epochs in a history that a run measured every so often would have."""
    rows = [json.loads(line) for line in (path / "history.jsonl").read_text().splitlines()]
    kept = [row for row in rows if row["epoch"] % every == 0]
    (path / "history.jsonl").write_text("\n".join(map(json.dumps, kept)))
    return {row["epoch"]: row["train"]["nc1"] for row in kept}


def test_how_often_a_run_is_measured_keeps_losses_comparable(tmp_path):
    values = {}
    for loss, every in (("ce", 5), ("bce", 1)):
        for seed in (0, 1):
            path = write_run(tmp_path, {"loss.name": loss, "seed": seed, "measure_every": every})
            values[loss, seed] = thin_out(path, every)
    ce, bce = compare_runs(read_runs(tmp_path))
    assert (ce.variant.label, bce.variant.label, bce.reference) == ("CE", "BCE", ce.variant)
    # by hand: only the epochs 5, 10, 15 and 20 that both have
    logs = {key: np.mean([np.log10(found[e]) for e in (5, 10, 15, 20)]) for key, found in values.items()}
    wanted = np.mean([logs["bce", seed] - logs["ce", seed] for seed in (0, 1)])
    assert bce.speed_differences["log_nc1"].mean == pytest.approx(wanted)
    first = {key: min(e for e in range(5, 31, 5) if found[e] < 0.1) for key, found in values.items()}
    wanted = np.mean([first["bce", seed] - first["ce", seed] for seed in (0, 1)])
    assert bce.speed_differences["nc1_epoch"].mean == wanted
    assert bce.speeds["nc1_epoch"].mean % 5


def test_how_often_a_run_is_measured_matters_where_its_best_epoch_counts(tmp_path):
    for every in (1, 5):
        write_run(tmp_path, {"select": "best-test", "measure_every": every})
    assert [v.label for v in group_runs(read_runs(tmp_path))] == ["CE · measure every 1", "CE · measure every 5"]


@pytest.mark.parametrize("history", ["", '{"epoch": 1, "train": {"accuracy": 0.5}}\n{"epoch": 2, "loss": 1.0}\n'])
def test_a_history_without_numbers_is_not_one_without_collapse(tmp_path, history):
    path = write_run(tmp_path, {"seed": 0})
    (path / "history.jsonl").write_text(history)
    (found,) = compare_runs(read_runs(tmp_path))
    assert "NC1 over the epochs not recorded" in found.sentence
    assert "never" not in found.sentence
    assert to_dict([found])[0]["speed"]["nc1_epoch"]["recorded"] == 0
    write_run(tmp_path, {"seed": 1}, epochs_done=2)
    (found,) = compare_runs(read_runs(tmp_path))
    assert "NC1 below 0.1 in 0 of 1 runs and not recorded in 1" in found.sentence


def test_the_first_epochs_are_those_there_are_and_lists_read_well(tmp_path):
    write_comparison(tmp_path, seeds=2, **{"optim.epochs": 3})
    for path in tmp_path.iterdir():
        rows = [json.loads(line) for line in (path / "history.jsonl").read_text().splitlines()]
        for row in rows:
            row["train"] |= {"nc1": 0.5, "nc2": 0.5, "nc3": 0.5}
        (path / "history.jsonl").write_text("\n".join(map(json.dumps, rows)))
    _, bce = compare_runs(read_runs(tmp_path))
    assert "on average over epochs 1 to 3, NC1, NC2 and NC3 not distinguishable." in bce.sentence


def test_momentum_is_named_where_the_optimiser_has_it(tmp_path):
    for name, momentum in (("sgd", 0.0), ("sgd", 0.9), ("adam", 0.0)):
        write_run(tmp_path, {"optim.name": name, "optim.momentum": momentum})
    labels = [variant.label for variant in group_runs(read_runs(tmp_path))]
    assert labels == ["CE · Adam", "CE · SGD · momentum 0", "CE · SGD · momentum 0.9"]


def test_weak_decays_at_first_are_named_where_a_run_has_them(tmp_path):
    weak = {"decays.weak_epochs": 20}
    for changes in ({}, weak, weak | {"decays.weak_share": 0.05}, {"decays.weak_epochs": 0, "seed": 1}):
        write_run(tmp_path, changes)
    variants = group_runs(read_runs(tmp_path))
    first = "CE · weak decays in epochs 1 to 20"
    assert [variant.label for variant in variants] == [f"{first} · share of weak decays 0.05", first, "CE"]
    assert len(variants[-1].records) == 2
    assert len({variant.context for variant in variants}) == 3
