"""What mse-landscape says in words, checked on runs made by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest

from ncollapse.frames import simplex_etf
from ncollapse.papers import mse_landscape_claims as claims
from ncollapse.papers.catalogue import get_experiment
from reference.paper_runs import curve, run


def at(loss, dim, accuracy, epochs=10, **more):
    return {"loss": loss, "dim": dim}, run(epochs=epochs, test__accuracy=accuracy, train__accuracy=accuracy, **more)


def margins(*quantiles):
    return dict(zip(("mean", *claims.QUANTILES), (0.0, *quantiles)))


@pytest.mark.parametrize(("low", "holds"), [(0.6, True), (0.96, False)])
def test_mse_needs_dimensions(low, holds):
    runs = [at("mse", 2, low), at("mse", 9, 0.95), at("mse", 512, 0.951), at("ce", 2, 0.99)]
    for field in ("train.accuracy", "test.accuracy"):
        assert claims.needs_dimensions(runs, field, "x").holds is holds
        assert claims.needs_dimensions(runs[1:], field, "x").holds is None


def test_dimensions_are_compared_in_runs_of_one_length():
    """A narrow network that trained for less may be worse for that reason alone."""
    runs = [at("mse", 3, 0.4, epochs=50), at("mse", 9, 0.95, epochs=200), at("mse", 512, 0.95, epochs=200)]
    assert claims.needs_dimensions(runs, "test.accuracy", "x").holds is None


@pytest.mark.parametrize(("low", "holds"), [(0.94, True), (0.9, False)])
def test_ce_does_not_need_dimensions(low, holds):
    runs = [at("ce", 2, low), at("ce", 512, 0.951), at("mse", 2, 0.3)]
    assert claims.does_not_need_dimensions(runs).holds is holds
    assert claims.does_not_need_dimensions(runs[1:]).holds is None


@pytest.mark.parametrize(("ce", "holds"), [(0.90, True), (0.85, False)])
def test_ce_loses_a_tenth_of_what_mse_loses(ce, holds):
    runs = [at("ce", 3, ce), at("ce", 512, 0.95), at("mse", 3, 0.35), at("mse", 512, 0.95)]
    assert claims.loses_less_than_mse(runs).holds is holds
    assert claims.loses_less_than_mse(runs[1:]).holds is None


def test_the_share_on_the_boundary_is_read_off_the_quantiles():
    spread = run()
    record = replace(spread, summary={"train": {"cosine_margin": margins(-1.0, -0.5, -0.1, 0.0, 0.1, 0.5, 1.0)}})
    assert claims.share_on_boundary(record) == pytest.approx(0.5)
    apart = replace(spread, summary={"train": {"cosine_margin": margins(0.2, 0.5, 0.8, 0.9, 1.0, 1.05, 1.1)}})
    assert claims.share_on_boundary(apart) == 0.0
    assert np.isnan(claims.share_on_boundary(run()))


@pytest.mark.parametrize(("turned", "holds"), [(False, True), (True, False)])
def test_more_samples_lie_on_the_boundary_as_d_falls(turned, holds):
    near, far = margins(-1.0, -0.1, -0.05, 0.0, 0.05, 0.1, 1.0), margins(0.0, 0.5, 0.8, 0.9, 1.0, 1.05, 1.1)
    low, high = (far, near) if turned else (near, far)
    runs = [
        ({"loss": "mse", "dim": dim}, replace(run(), summary={"train": {"cosine_margin": values}}))
        for dim, values in ((3, low), (10, high))
    ]
    assert claims.more_on_the_boundary(runs).holds is holds
    assert claims.more_on_the_boundary(runs[1:]).holds is None


def head(name, dim, accuracy, epochs=10):
    return {"head": name, "dim": dim}, run(epochs=epochs, test__accuracy=accuracy, history=curve(1.0, 0.01))


@pytest.mark.parametrize(("fixed", "holds"), [(0.945, True), (0.93, False)])
def test_a_fixed_classifier_is_enough(fixed, holds):
    runs = [head("linear", 512, 0.95), head("etf", 512, 0.96), head("etf", 10, fixed), head("linear", 10, 0.95)]
    found = claims.fixed_is_enough(runs)
    assert [claim.holds for claim in found] == [holds], "the paper says no more of NC1 there"
    assert f"{100 * (0.95 - fixed):+.2f} points (fixed, d = 10)" in found[0].detail
    assert claims.fixed_is_enough(runs[1:])[0].holds is None, "the learned one with d = 512 is the measure"
    other = [head("linear", 512, 0.95, epochs=20), *runs[1:]]
    assert claims.fixed_is_enough(other)[0].holds is None, "of another length"


def gram_run(tmp_path, name, means, **final):
    """A run whose record keeps the cosines and norms of its class means."""
    norms = np.linalg.norm(means, axis=1)
    cosines = (means / norms[:, None]) @ (means / norms[:, None]).T
    (tmp_path / name).mkdir()
    (tmp_path / name / "gram.json").write_text(json.dumps({"cosines": cosines.tolist(), "norms": norms.tolist()}))
    return replace(run(**final), path=tmp_path / name)


def test_the_smallest_angle_is_that_of_the_centred_means(tmp_path):
    """Of a simplex ETF of ten vectors, moved: arccos(-1/9)."""
    means = simplex_etf(10, 12).numpy() + 3.0
    angle = claims.find_smallest_angle(gram_run(tmp_path, "a", means))
    assert angle == pytest.approx(np.degrees(np.arccos(-1 / 9)), abs=0.01)
    means[1] = means[0] + 1e-6
    assert claims.find_smallest_angle(gram_run(tmp_path, "b", means)) < 0.1
    assert np.isnan(claims.find_smallest_angle(run()))


@pytest.mark.parametrize(("accuracies", "holds"), [((0.6, 0.7), True), ((0.7, 0.6), False)])
def test_at_three_dimensions_ce_discriminates_better(accuracies, holds, tmp_path):
    apart = {"ce": 1.0, "mse": 0.2} if holds else {"ce": 0.2, "mse": 1.0}
    runs = []
    for loss, value in zip(("mse", "ce"), accuracies):
        means = np.stack([[1.0, 0.0, 0.0], [1.0, apart[loss], 0.0], [0.0, 0.0, 5.0]])
        record = gram_run(tmp_path, loss, means, test__accuracy=value, train__cosine_margin=value)
        runs.append(({"loss": loss}, record))
    assert [claim.holds for claim in claims.three_dimensions(runs)] == [holds] * 3
    longer = [(runs[0][0], replace(runs[0][1], config={"seed": 0, "optim": {"epochs": 20}})), runs[1]]
    assert [claim.holds for claim in claims.three_dimensions(longer)] == [None] * 3, "8 epochs against 50"


def rescaled(alpha, M, nc1, accuracy, epochs=10):
    values = {"train__accuracy": accuracy, "test__accuracy": accuracy}
    return {"alpha": alpha, "M": M}, run(epochs=epochs, train__nc1=nc1, **values)


def test_rescaling_is_judged_along_each_parameter_by_its_correlation():
    """A correlation may have an exception; that of M is with collapse alone, and two values of alpha are too few."""
    runs = [
        rescaled(1.0, M, nc1, a) for M, nc1, a in ((3.0, 0.5, 0.7), (5.0, 0.2, 0.6), (7.0, 0.3, 0.6), (10.0, 0.1, 0.5))
    ]
    found = claims.rescaling_helps([*runs, rescaled(1.0, 1.0, 1.0, 0.8), rescaled(5.0, 1.0, 0.5, 0.9)])
    assert [claim.holds for claim in found] == [None, None, None, True, False, False]
    assert found[3].detail == "0.90: 1, 0.5, 0.2, 0.3, 0.1 at M = 1, 3, 5, 7, 10"
    assert not any("margin" in claim.text for claim in found), "the paper says that of figure 3"
    alone = claims.rescaling_helps([rescaled(1.0, M, 0.1, 0.7) for M in (1.0, 3.0, 5.0)])
    assert [claim.holds for claim in alone[3:]] == [False] * 3, "equal numbers are not correlated"


def test_random_labels_say_that_the_paper_ran_nothing():
    assert "ran nothing here" in get_experiment("mse-landscape/random-labels").notes[0]


def test_figure_3_says_which_nc2_is_judged():
    assert "the centred one is judged" in " ".join(get_experiment("mse-landscape/figure-3").notes)
    assert claims.METRICS[1] == "train.nc2", "that of the centred W"


@pytest.mark.parametrize(("sgd", "holds"), [(0.71, True), (0.775, False)])
def test_the_optimisers_generalise_differently(sgd, holds):
    runs = [({"optimizer": "sgd"}, run(test__accuracy=sgd)), ({"optimizer": "adam"}, run(test__accuracy=0.78))]
    assert claims.generalise_differently(runs).holds is holds
    assert claims.generalise_differently(runs[:1]).holds is None


def test_figure_3_needs_every_optimiser():
    """That NC comes "regardless of algorithm" is not decided by two of three."""
    runs = [({"optimizer": name}, run(history=curve(1.0, 0.01))) for name in ("sgd", "adam")]
    found = claims.collapse_and_margin(runs)
    assert [claim.holds for claim in found[:3]] == [True, True, None]
    assert not any("orders of magnitude" in claim.text for claim in found), "that NC1 approaches zero says it"


@pytest.mark.parametrize(("fit", "holds"), [(0.999, True), (0.8, False)])
def test_random_labels_must_be_fitted(fit, holds):
    runs = [({"loss": loss}, run(train__accuracy=fit, history=curve(1.0, 0.01))) for loss in ("mse", "ce")]
    assert [claim.holds for claim in claims.random_labels_collapse(runs)] == [holds, holds, True, True]


@pytest.mark.parametrize("left", [-1.2, -1.12, -1.0, -0.6, -0.3, -0.12, -0.05])
def test_the_share_on_the_boundary_of_an_even_spread_is_exact(left):
    """Margins that are uniform on an interval of length 1.2 have a sixth in 0.2 of it."""
    values = margins(*(left + 1.2 * level for level in (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)))
    share = claims.share_on_boundary(replace(run(), summary={"train": {"cosine_margin": values}}))
    inside = max(0.0, min(0.1, left + 1.2) - max(-0.1, left))
    assert share == pytest.approx(inside / 1.2, rel=1e-12)


def test_the_numbers_behind_the_dimensions_are_told():
    runs = [at("mse", 3, 0.61), at("mse", 5, 0.712), at("mse", 9, 0.953), at("mse", 512, 0.95)]
    found = claims.needs_dimensions(runs, "test.accuracy", "x")
    assert (found.holds, found.detail) == (True, "accuracy at best 71.20 % below, at worst 95.00 % from K - 1 on")
    assert claims.needs_dimensions(runs[:2], "test.accuracy", "x").holds is None
    assert claims.does_not_need_dimensions([at("ce", 3, 0.93), at("ce", 9, 0.95)]).detail == "2.00 points over 2 runs"


def test_from_nine_dimensions_on_the_boundary_may_fill_again():
    """Only the steps from fewer than K - 1 dimensions decide."""

    def shares(*by_dim):
        """A share s within 0.1 of 0: the margins are even over an interval of length 0.2 / s."""
        runs = []
        for dim, share in by_dim:
            values = margins(*((level - 0.5) * 0.2 / share for level in (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)))
            runs.append(({"loss": "mse", "dim": dim}, replace(run(), summary={"train": {"cosine_margin": values}})))
        return claims.more_on_the_boundary(runs)

    found = shares((3, 0.8), (5, 0.5), (9, 0.2), (512, 0.3))
    assert (found.holds, found.detail) == (True, "80 % at d = 3, 50 % at d = 5, 20 % at d = 9, 30 % at d = 512")
    assert shares((3, 0.8), (5, 0.2), (8, 0.3), (9, 0.1)).holds is False
    assert shares((8, 0.3), (9, 0.3)).holds is False


def test_optimisers_without_an_accuracy_are_left_out():
    runs = [
        ({"optimizer": name}, run(test__accuracy=a)) for name, a in (("a", 0.7), ("b", float("nan")), ("c", 0.7101))
    ]
    found = claims.generalise_differently(runs)
    assert (found.holds, found.detail) == (True, "1.01 points over 2 runs")
    assert claims.generalise_differently(runs[:2]).holds is None
