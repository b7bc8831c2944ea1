"""What a prediction says in words of its limits, with the numbers in it."""

import re

import pytest

import ncollapse as nc

DECAYS = {"weight_decay": 1e-3, "feature_decay": 1e-3}


@pytest.mark.parametrize("features", ["free", "relu"])
def test_a_saturated_bias_is_noted_with_the_critical_decay(features):
    """The decay in the note is the one at which the mean of W leaves that of an ETF."""
    problem = nc.Problem("bce", 10, per_class=1, bias_decay=0.5, features=features, **DECAYS)
    (note,) = nc.predict(problem).notes
    said = float(re.search(r"critical value (\S+):", note).group(1))
    before, after = (nc.predict(problem.replace(bias_decay=factor * said)) for factor in (1 - 1e-5, 1 + 1e-5))
    assert (before.phase != "saturated", after.phase) == (True, "saturated")
    assert (before.notes, after.notes) == ((), (note,))


@pytest.mark.parametrize(("dim", "bias", "words"), [(2, True, ["d = 2"]), (3, True, ["d = 3"]), (4, True, [])])
def test_few_dimensions_leave_a_choice_of_directions(dim, bias, words):
    """d = K - 1 holds every direction of the ETF; fewer hold any d of them."""
    notes = nc.predict("mse", 5, per_class=1, dim=dim, bias=bias, **DECAYS).notes
    assert [note[: len(word)] for note, word in zip(notes, words, strict=True)] == words


def test_the_mean_is_not_unique_in_few_dimensions_without_a_bias():
    thin = nc.Problem("mse", 5, per_class=1, dim=4, bias=False, **DECAYS)
    (note,) = nc.predict(thin).notes
    assert "mean of W is not unique" in note
    gone = nc.predict(thin.replace(weight_decay=1.0, feature_decay=1.0))
    assert (gone.phase, gone.notes) == ("collapsed", ())


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([100, 100, 2, 1], "2 of 4 classes collapse"),
        ([100, 100, 1, 0], "1 of 4 classes collapse"),
        ([100, 100, 90, 0], None),
        ([1, 1, 1, 0.9], None),  # all of them: the phase says so
    ],
)
def test_collapsed_classes_are_counted_without_the_empty_ones(counts, said):
    tau = 0.5 if max(counts) == 1 else 0.02
    p = nc.predict("ce", class_counts=counts, bias=False, features="relu", weight_decay=tau, feature_decay=tau)
    assert (p.phase == "collapsed") == (max(counts) == 1)
    assert [note.split(":")[0] for note in p.notes if "collapse" in note] == ([said] if said else [])
    assert sum("no samples" in note for note in p.notes) == (0 in counts)


@pytest.mark.parametrize("loss", ["ce", "ls"])
def test_the_collapse_ratio_leaves_out_an_empty_class(loss):
    """Thinned out to that ratio, and not just before, the smallest class with samples collapses."""
    problem = nc.Problem(loss, class_counts=[100, 50, 10, 0], bias=False, features="relu", **DECAYS)
    ratio = nc.predict(problem).collapse_ratio
    for factor, collapsed in ((0.999, True), (1.001, False)):
        thinned = problem.replace(class_counts=[100, 50, 100 / ratio * factor, 0])
        assert (nc.predict(thinned).class_gaps[2] == 0) == collapsed


@pytest.mark.parametrize("k", [2, 4, 7])
def test_mse_behind_a_relu_without_a_bias_has_orthogonal_features(k):
    """Z = t I minimises (t - 1)^2 / 2 + K mu t, as t I costs K t: its gap and its mean component are 1 - K mu."""
    p = nc.predict("mse", k, per_class=1, bias=False, features="relu", **DECAYS)
    assert (p.gap, p.mean_component) == pytest.approx((1 - 1e-3 * k, 1 - 1e-3 * k), rel=1e-12)
    assert (p.phase, p.rank) == ("orthogonal-frame", k)
    features = p.configuration().features
    gram = features @ features.T
    assert gram.numpy() == pytest.approx((gram.trace() / k * gram.new_ones(k).diag()).numpy(), abs=1e-12)
