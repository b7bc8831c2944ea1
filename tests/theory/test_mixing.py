"""Targets of mixup and CutMix: their law, the optimum by symmetry, a given feature norm, the comparison with runs."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import ncollapse as nc
from ncollapse.data.augment import Augment
from ncollapse.data.mixing import draw_mix, mix_targets
from ncollapse.theory import Mixing, fix_feature_energy, mixing_law
from ncollapse.train import recipes
from reference.scripts import load_script
from reference.theory import LOSSES, minimise

ROOT = Path(__file__).parents[2]
DA2 = {"mixup": 0.8, "cutmix": 1.0, "label_smoothing": 0.1}
DECAYS = {"weight_decay": 0.02, "feature_decay": 0.02}


def make(loss, k, levels=3, **kwargs):
    return nc.Problem(loss, mixing=mixing_law(k, levels=levels, **DA2), per_class=1, **DECAYS, **kwargs)


@pytest.mark.parametrize("changes", [{}, {"mix_probability": 0.8}, {"mixup": 0.0}, {"cutmix": 0.0}, {"cutmix": 0.4}])
def test_the_law_is_that_of_the_drawn_targets(changes):
    settings = {**DA2, **changes}
    mix = draw_mix(4000, 32, 32, Augment(**settings), torch.Generator().manual_seed(0))
    labels = torch.randint(5, (4000, 10), generator=torch.Generator().manual_seed(1))
    drawn = mix_targets(labels, 5, mix, 0.1).double().flatten(0, 1)[:, :].numpy()
    law = mixing_law(5, levels=64, **settings)
    chances = np.array(law.probabilities)
    tops = np.sort(drawn, axis=1)[:, ::-1]
    for power in (1, 2, 4):
        # the draws of one batch of ten share theirs, so 40,000 rows count as about 4,000
        assert (tops[:, 0] ** power).mean() == pytest.approx(chances @ np.array(law.own) ** power, abs=0.012)
        assert (tops[:, 1] ** power).mean() == pytest.approx(chances @ np.array(law.partner) ** power, abs=0.012)
    pure = (np.abs(tops[:, 0] - 0.92) < 1e-6).mean()
    assert pure == pytest.approx(law.probabilities[0], abs=0.012)


def test_the_law_without_mixing_is_the_plain_one():
    law = mixing_law(4, label_smoothing=0.2)
    assert law.probabilities == (1.0,)
    smooth = nc.predict("bce", 4, per_class=2, label_smoothing=0.2, bias_decay=0.1, **DECAYS)
    mixed = nc.predict("bce", mixing=law, per_class=2, bias_decay=0.1, **DECAYS)
    for name in ("positive_score", "negative_score", "bias", "weight_energy", "feature_energy", "objective"):
        assert getattr(mixed, name) == pytest.approx(getattr(smooth, name), abs=1e-6), name


@pytest.mark.parametrize(
    ("features", "tau", "lb", "phase", "rank"),
    [
        ("free", 0.02, 0.0, "centred", 3),
        ("free", 0.1, 0.1, "centred", 3),
        ("free", 0.02, 0.1, "saturated", 4),
        ("free", 0.5, 3.0, "collapsed", 0),
        ("relu", 0.02, 0.0, "orthogonal-frame", 4),
        ("relu", 0.1, 0.1, "orthogonal-frame", 4),
        ("relu", 0.1, 3.0, "saturated", 4),
        ("relu", 0.5, 0.1, "collapsed", 0),
    ],
)
def test_phases_without_mixing_are_those_of_the_closed_form(features, tau, lb, phase, rank):
    options = {"per_class": 2, "bias_decay": lb, "weight_decay": tau, "feature_decay": tau, "features": features}
    smooth = nc.predict("bce", 4, label_smoothing=0.2, **options)
    mixed = nc.predict("bce", mixing=mixing_law(4, label_smoothing=0.2), **options)
    assert (smooth.method, mixed.method) == ("closed", "symmetric")
    assert (smooth.phase, smooth.rank) == (mixed.phase, mixed.rank) == (phase, rank)
    assert mixed.separates == smooth.separates
    for name in ("gap", "mean_component", "bias", "objective"):
        assert getattr(mixed, name) == pytest.approx(getattr(smooth, name), abs=1e-6), name


@pytest.mark.parametrize(
    ("loss", "k", "lb", "features"),
    [
        ("ce", 3, 0.0, "free"),
        ("bce", 3, 0.01, "free"),
        ("bce", 4, 0.0, "free"),
        ("bce", 4, 1.0, "free"),
        ("mse", 4, 0.1, "free"),
        ("ce", 2, 0.0, "free"),
        ("ce", 3, 0.0, "relu"),
        ("bce", 4, 0.3, "relu"),
    ],
)
def test_symmetry_gives_the_minimum_of_the_brute_force(loss, k, lb, features):
    problem = make(loss, k, bias_decay=lb, features=features)
    rows, chances = problem.mixing.enumerate()
    assert chances.sum() == pytest.approx(1)
    brute = minimise(
        loss, chances * k, 0.02, 0.02, lb, relu=features == "relu", targets=rows, most_samples=0, restarts=2
    )["objective"]
    p = nc.predict(problem)
    assert p.method == "symmetric"
    assert p.lower_bound <= brute + 1e-12
    assert p.objective == pytest.approx(brute, abs=1e-9 if features == "free" else 1e-3)
    if features == "free":
        assert p.objective - p.lower_bound < 1e-8


def test_the_bracket_of_relu_features_encloses_the_minimum():
    """Features of other forms than the symmetric ones in K dimensions can be slightly better."""
    problem = make("ce", 3, levels=1, features="relu")
    p, solution = nc.predict(problem), nc.solve(problem, restarts=1)
    assert p.lower_bound <= solution.certificate.lower_bound <= solution.objective
    assert 1e-4 < p.objective - solution.objective < 3e-3


@pytest.mark.parametrize(("loss", "lb"), [("ce", 0.0), ("bce", 0.0), ("bce", 5e-4)])
def test_many_classes_are_certified(loss, lb):
    law = mixing_law(100, **DA2)
    p = nc.predict(loss, mixing=law, batch_size=128, weight_decay=5e-4, feature_decay=1e-5, bias_decay=lb)
    assert 0 <= p.objective - p.lower_bound < 1e-6
    c = p.configuration()
    m = nc.measure(*c)
    assert m.positive_score.mean == pytest.approx(p.positive_score, rel=1e-9)
    assert m.negative_score.mean == pytest.approx(p.negative_score, rel=1e-9)
    assert m.weight_energy == pytest.approx(p.weight_energy, rel=1e-9)
    assert m.feature_energy == pytest.approx(p.feature_energy, rel=1e-9)


def test_the_derivatives_of_the_objective_are_right():
    problem = make("bce", 4, bias_decay=0.05)
    slopes = nc.predict(problem).sensitivity()["objective"]
    for name, slope in slopes.items():
        decay = getattr(problem, name)
        up, down = (nc.predict(problem.replace(**{name: decay * (1 + e)})).objective for e in (1e-4, -1e-4))
        assert slope == pytest.approx((up - down) / (2e-4 * decay), rel=1e-5), name


def test_samples_that_share_a_feature_have_the_loss_of_their_mean_target():
    law = mixing_law(4, levels=5, **DA2)
    merged = law.merge(0.3)
    assert sum(merged.probabilities) == pytest.approx(1)
    assert len(merged.own) < len(law.own)
    z = np.array([[1.7, -0.4, -0.4, -0.4]])  # one that does not tell the partner
    share = 1 - (np.array(law.own) - 0.025) / 0.9
    rows, chances = law.rows[share < 0.3], np.array(law.probabilities)[share < 0.3]
    for loss in ("ce", "bce"):
        each = np.array([LOSSES[loss](z, row[None])[0][0] for row in rows])
        whole = LOSSES[loss](z, merged.rows[:1])[0][0]
        assert chances @ each / chances.sum() == pytest.approx(whole, rel=1e-12)
    assert law.merge(0.0) == law


@pytest.mark.parametrize(("loss", "mixed"), [("ce", False), ("bce", False), ("bce", True)])
def test_a_given_feature_norm_is_a_constraint(loss, mixed):
    k, energy = 3, 2.5
    problem = nc.Problem(loss, k, per_class=2, weight_decay=0.03, feature_decay=1.0, bias_decay=0.02)
    if mixed:
        law = Mixing.of_shares(k, [1.0, 0.7], [0.5, 0.5], 0.1)
        problem = problem.replace(num_classes=None, per_class=2, mixing=law)
        rows, chances = law.enumerate()
    else:
        rows, chances = np.eye(k), np.full(k, 1 / k)
    fixed = fix_feature_energy(problem, energy)
    p = nc.predict(fixed)
    assert p.feature_energy == pytest.approx(energy, rel=1e-9)
    assert fixed.replace(feature_decay=1.0) == problem
    mean_energy = p._detail.mean_energy if mixed else energy

    def objective(x):  # features scaled to the norm: a brute force of the constrained problem
        w, h, b = x[: k * k].reshape(k, k), x[k * k : -k].reshape(-1, k), x[-k:]
        h = h * np.sqrt(mean_energy / (chances @ (h**2).sum(axis=1)))
        value, _ = LOSSES[loss](h @ w.T - b, rows)
        return chances @ value + 0.03 / 2 * (w**2).sum() + 0.02 / 2 * (b**2).sum()

    best = np.inf
    for seed in range(2):
        start = np.random.default_rng(seed).standard_normal(k * k + len(rows) * k + k)
        options = {"maxiter": 2000, "maxfun": 10**6, "ftol": 1e-15, "gtol": 1e-9}
        best = min(best, minimize(objective, start, method="L-BFGS-B", options=options).fun)
    samples = 2 * k
    value = p.objective - fixed.feature_decay / 2 * samples * mean_energy
    assert value == pytest.approx(best, abs=1e-7)


def test_recipes_of_settings_5_and_6():
    five = recipes.get("bce-vs-ce/setting-5", loss="bce", data="cifar10", model="resnet18")
    assert five.problem() is None  # nothing limits the features
    problem = five.problem(feature_energy=70.0, samples=50_000, features="free")
    assert problem.weight_decay == problem.bias_decay == 5e-4
    assert problem.mixing.own[0] == pytest.approx(0.91)
    p = nc.predict(problem)
    assert p.feature_energy == pytest.approx(70.0, rel=1e-6)
    # the decay of AdamW is no part of the objective
    assert recipes.get("bce-vs-ce/setting-6", loss="bce").problem(feature_energy=70.0) is None
    # with decays in the loss, mixed targets need no norm
    two = recipes.get("bce-vs-ce/setting-2", loss="bce", data="cifar10", model="resnet18")
    mixed = two.override(augment__mixup=0.8, augment__label_smoothing=0.1).problem(features="free")
    assert nc.predict(mixed).objective - nc.predict(mixed).lower_bound < 1e-7
    assert two.problem(feature_energy=70.0) is None  # a decay and a norm


def test_wrong_arguments_are_named():
    law = mixing_law(3, **DA2)
    with pytest.raises(ValueError, match="mixing: expected a law of 4 classes, got one of 3"):
        nc.Problem("ce", 4, mixing=law, per_class=1, **DECAYS)
    with pytest.raises(ValueError, match="mixing: expected neither class_counts"):
        nc.Problem("ce", mixing=law, class_counts=[1, 2, 3], **DECAYS)
    with pytest.raises(ValueError, match="labels: expected soft targets"):
        nc.certify(
            torch.eye(3), torch.arange(3), torch.eye(3), None, nc.Problem("ce", mixing=law, per_class=1, **DECAYS)
        )
    with pytest.raises(ValueError, match="shares: expected numbers in"):
        Mixing.of_shares(3, [0.5], [1.0])
    with pytest.raises(ValueError, match="probabilities: expected a sum of 1"):
        Mixing.of_shares(3, [1.0, 0.5], [1.0, 1.0])
    good = asdict(Mixing.of_shares(3, [1.0, 0.5], [0.5, 0.5]))
    assert Mixing(**good) == Mixing.of_shares(3, [1.0, 0.5], [0.5, 0.5])
    for name in ("own", "partner", "other", "probabilities"):
        for bad in (-0.1, math.nan, math.inf):
            with pytest.raises(ValueError, match="expected finite numbers that are not negative"):
                Mixing(**{**good, name: (good[name][0], bad)})
    with pytest.raises(ValueError, match="too many target rows"):
        _ = nc.Problem("ce", mixing=mixing_law(100, **DA2), per_class=1, **DECAYS).groups
    with pytest.raises(ValueError, match="feature_energy: expected a positive number"):
        fix_feature_energy(nc.Problem("ce", 3, per_class=1, **DECAYS), -1.0)


def test_a_problem_with_a_law_is_written_as_plain_values():
    problem = make("ce", 3)
    written = json.loads(json.dumps(problem.to_dict()))
    assert Mixing(**written.pop("mixing")) == problem.mixing
    assert nc.Problem("ce", mixing=problem.mixing, per_class=1, **DECAYS) == problem != make("ce", 3, levels=4)


def test_the_comparison_with_runs():
    """What section 8 of the page says of settings 5 and 6."""
    script = load_script("mixed_targets")
    record = json.loads((ROOT / "results" / "theory" / "mixed-targets.json").read_text())
    printed = list(script.read_printed())
    recorded = {row["source"] for row in script.read_records(ROOT / "results" / "runs")}
    assert recorded <= {row["source"] for row in record["rows"]}, "mixed_targets.py must be run again"
    assert script.fit_share(printed) == pytest.approx(record["unseen_share"], abs=1e-3)
    assert 0.2 < record["unseen_share"] < 0.3
    old = {(r["source"], r["data"], r["model"], r["loss"], r["optimizer"]): r for r in record["rows"]}
    for row in printed:
        known = old[row["source"], row["data"], row["model"], row["loss"], row["optimizer"]]
        assert row["measured"] == pytest.approx(known["measured"])
    for loss in ("ce", "bce"):
        law = script.law_of({"data": "cifar10", "mix_probability": 1.0})
        found = next(r for r in record["rows"] if r["loss"] == loss and r["source"] == "table 12")
        assert script.predict_weak(loss, law)[0] == pytest.approx(found["free"], abs=1e-6)
        assert script.predict_weak(loss, law.merge(record["unseen_share"]))[0] == pytest.approx(
            found["unseen_partner"], abs=1e-6
        )
    errors = record["errors"]
    assert all(line["unseen_partner"] < line["free"] for line in errors)
    assert 0.45 < min(line["free"] for line in errors) < max(line["free"] for line in errors) < 2.05
    for row in record["rows"]:  # too confident in every row
        assert all(abs(row["free"][name]) > abs(value) for name, value in row["measured"].items())
    adamw = [line for line in errors if line["data"] == "cifar10" and line["optimizer"] == "adamw"]
    assert max(line["unseen_partner"] for line in adamw) < 0.25
    assert min(line["free"] for line in adamw) > 0.7
    # the loss on mixed images lies above that of both models: the network does not know the mix
    runs = [row for row in record["rows"] if "training_loss" in row]
    assert all(row["training_loss"] > row["least_loss_unseen"] > row["least_loss"] for row in runs)
    quoted = {"8bdb5eca2878": (2.5, 12.5, 1.105, 0.796), "b898dbcd7b18": (13.5, 22.6, 1.683, 1.318)}
    for run, (predicted, measured, loss, least) in quoted.items():
        row = next(row for row in runs if row["source"] == run)
        for name in row["measured"]:  # the decays of the run leave the logits at their limit
            assert row["given_norm"][name] == pytest.approx(row["free"][name], abs=0.02)
        assert row["given_norm"]["weight_energy"] == pytest.approx(predicted, abs=0.05)
        assert row["weight_energy"] == pytest.approx(measured, abs=0.05)
        assert row["training_loss"] == pytest.approx(loss, abs=5e-4)
        assert row["least_loss"] == pytest.approx(least, abs=5e-4)
    assert next(row for row in runs if row["source"] == "b898dbcd7b18")["given_norm"]["bias"] == pytest.approx(
        0.14, abs=5e-3
    )
    page = (ROOT / "docs" / "theory.md").read_text()
    assert f"r = {record['unseen_share']:.3f}" in page
    for data, low, high in (("cifar10", 0.91, 0.99), ("cifar100", 0.67, 0.895)):
        rates = [
            r["accuracy"] for r in record["rows"] if (r["data"], r["optimizer"], r["loss"]) == (data, "sgd", "bce")
        ]
        assert low < min(rates) <= max(rates) < high + 0.005
