"""Uniform accuracy, quantiles of scores, snapshots and comparisons."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ncollapse as nc
from ncollapse.metrics import collect, uniform_accuracy, uniform_accuracy_grid
from ncollapse.metrics.distribution import Distribution, count_between, even_edges
from ncollapse.metrics.scores import spread_of
from reference import metrics as reference
from reference.pretend_gpu import PretendGpu

scores = st.one_of(st.integers(-3, 3).map(float), st.floats(-5, 5))
samples = st.lists(st.tuples(scores, scores), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(samples)
def test_uniform_accuracy_is_brute_force_and_never_below_the_grid(pairs):
    positive, negative = (np.array(column) for column in zip(*pairs))
    found, threshold = uniform_accuracy(torch.from_numpy(positive), torch.from_numpy(negative))
    assert found == reference.uniform_accuracy(positive, negative)
    grid = uniform_accuracy_grid(torch.from_numpy(positive), torch.from_numpy(negative))
    assert grid == reference.uniform_accuracy_grid(positive, negative)
    assert found >= grid
    if found:
        assert np.mean((negative <= threshold) & (threshold < positive)) == found
    else:
        assert math.isnan(threshold)


def test_ties_in_integer_scores_are_exact():
    """Whole-number features and weights give scores that tie exactly; measuring must not break the ties."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        features, weight = rng.integers(-2, 3, (30, 4)), rng.integers(-2, 3, (3, 4))
        bias, labels = rng.integers(-1, 2, 3), np.arange(30) % 3
        m = nc.measure(features.astype(np.float32), labels, weight, bias)
        logits = features @ weight.T - bias
        own = logits[np.arange(30), labels]
        logits[np.arange(30), labels] = -1000
        assert m.uniform_accuracy == reference.uniform_accuracy(own, logits.max(1))
        assert m.uniform_accuracy_grid == reference.uniform_accuracy_grid(own, logits.max(1))


def test_equal_scores_are_no_success():
    """Where the least positive score equals the largest negative one, no threshold decides all samples."""
    assert uniform_accuracy(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0]))[0] == 0.5
    assert uniform_accuracy_grid(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0])) == 0.5
    assert uniform_accuracy_grid(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.5])) == 1.0


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_spread_quantiles_are_numpys(values):
    found = spread_of(torch.tensor(values, dtype=torch.float64))
    expected = np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95])
    assert [found.q05, found.q25, found.median, found.q75, found.q95] == pytest.approx(expected, rel=1e-12, abs=1e-9)
    assert found.min <= found.mean <= found.max


@pytest.mark.parametrize("shift", [0.0, 7.0, -1e-3])
def test_binned_quantiles_are_close_and_the_rest_exact(monkeypatch, shift):
    g = torch.Generator().manual_seed(0)
    features, labels = torch.randn(400, 8, generator=g), torch.arange(400) % 5
    weight = torch.randn(5, 8, generator=g)
    features = features + shift * torch.linalg.pinv(weight).sum(1)
    exact = nc.measure(features, labels, weight).negative_score
    kept = collect(features, labels, weight, bins=16)
    monkeypatch.setattr("ncollapse.metrics.distribution.EXACT", 0)
    binned = nc.measure(features, labels, weight).negative_score
    for name in ("mean", "std", "min", "max", "count"):
        assert getattr(binned, name) == getattr(exact, name)
    for name in ("q05", "q25", "median", "q75", "q95"):
        assert getattr(binned, name) == pytest.approx(getattr(exact, name), rel=2**-11, abs=1e-9)
    rebinned = collect(features, labels, weight, bins=16).negative_score
    assert rebinned.counts.sum() == kept.negative_score.counts.sum() == 1600
    assert np.array_equal(rebinned.edges, kept.negative_score.edges)
    assert np.abs(rebinned.counts - kept.negative_score.counts).sum() <= 8


def test_binned_quantiles_do_not_depend_on_the_copies(monkeypatch):
    """The way of a GPU, which keeps several copies of the counts, on the CPU."""
    g = torch.Generator().manual_seed(0)
    block, own = torch.randn(50, 6, generator=g, dtype=torch.float64), torch.arange(50)[:, None] % 6
    monkeypatch.setattr("ncollapse.metrics.distribution.EXACT", 0)
    one, many = (Distribution(250, 0.0, torch.device("cpu"), parked=50) for _ in range(2))
    many._copies = 16
    many._counts = torch.zeros(len(one._counts) * 16, dtype=torch.int64)
    one.add_other_scores(block.clone(), own)
    many.add_other_scores(block.clone(), own)
    assert one.spread() == many.spread()


@pytest.mark.parametrize("power", [-66, -60, -30, 0, 30, 60])
def test_binned_quantiles_at_any_magnitude(monkeypatch, power):
    """Scores are scaled before they become float32, which ends at 1e-45 and 3e38."""
    g = torch.Generator().manual_seed(1)
    features, labels = torch.randn(300, 8, generator=g).double() * 10.0**power, torch.arange(300) % 5
    weight = torch.randn(5, 8, generator=g)
    exact = nc.measure(features, labels, weight).negative_score
    monkeypatch.setattr("ncollapse.metrics.distribution.EXACT", 0)
    binned = nc.measure(features, labels, weight).negative_score
    for name in ("q05", "q25", "median", "q75", "q95"):
        assert getattr(binned, name) == pytest.approx(getattr(exact, name), rel=2**-10, abs=1e-3 * exact.std), name


def test_snapshot_holds_what_the_figures_need():
    g = torch.Generator().manual_seed(0)
    features, labels = torch.randn(90, 4, generator=g), torch.randint(3, (90,), generator=g)
    weight, bias = torch.randn(3, 4, generator=g), torch.randn(3, generator=g)
    snapshot = collect(features, labels, weight, bias, bins=10, keep=7, seed=3)
    own = (features.double() @ weight.double().T).gather(1, labels[:, None]).flatten().numpy()
    edges = snapshot.positive_score.edges  # the outer ones are the extreme scores, up to rounding
    assert np.array_equal(snapshot.positive_score.counts, np.histogram(own.clip(edges[0], edges[-1]), edges)[0])
    assert snapshot.negative_score.counts.sum() == 180
    assert snapshot.margin.counts.sum() == 90
    assert snapshot.measurement == nc.measure(features, labels, weight, bias)
    assert snapshot.labels.tolist() == [0] * 7 + [1] * 7 + [2] * 7
    for row, label in zip(snapshot.features, snapshot.labels):
        assert (torch.from_numpy(row) == features[labels == label]).all(1).any()
    batches = [(features[i : i + 8], labels[i : i + 8]) for i in range(0, 90, 8)]
    again = collect(batches, weight=weight, bias=bias, bins=10, keep=7, seed=3)
    assert np.array_equal(again.features, snapshot.features)
    other = collect(features, labels, weight, bias, keep=7, seed=4)
    assert not np.array_equal(other.features, snapshot.features)
    assert len(collect(features, labels, keep=1000).labels) == 90
    tensors = snapshot.tensors()
    assert tensors["margin.edges"].shape == (11,)
    assert tensors["class_means"].shape == (3, 4)
    assert tensors["features"].dtype == torch.float32


def test_measurement_and_prediction_compare_field_by_field():
    m = nc.measure(torch.eye(3), torch.arange(3), torch.eye(3) * 2)
    comparison = m.compare({"positive_score": 1.0, "weight_energy": 12.0, "phase": "centred", "bias": 0.0, "nc1": None})
    assert list(comparison) == ["positive_score", "bias", "weight_energy"]
    assert comparison["positive_score"] == (2.0, 1.0, 1.0, 1.0)
    assert comparison["bias"].deviation == 0.0
    assert math.isnan(comparison["bias"].relative)
    assert comparison.to_dict()["weight_energy"]["deviation"] == 0.0


def test_a_comparison_of_classes_shows_the_one_that_deviates_most():
    m = nc.measure(torch.eye(3), torch.arange(3), torch.eye(3) * 2)
    comparison = m.compare({"weight_norms": [2.0, 2.5, 2.25], "mean_norms": (1.0, 1.0), "counts": (9, 9, 9)})
    assert comparison == {"weight_norms": (2.0, 2.5, -0.5, -0.2)}


def test_a_predicted_zero_that_is_rounded_has_no_relative_deviation():
    found = nc.Measurement(nc1=0.1).compare({"nc1": 3e-32})["nc1"]
    assert found.deviation == pytest.approx(0.1)
    assert math.isnan(found.relative)


def test_imbalanced_predictions_compare_their_norms():
    p = nc.predict("ce", class_counts=[50, 30, 10], weight_decay=1e-3, feature_decay=1e-3, bias=False, features="relu")
    comparison = nc.measure(*p.configuration(dim=6)).compare(p)
    for name in ("weight_norms", "mean_norms", "positive_score", "weight_energy"):
        assert abs(comparison[name].relative) < 1e-12, name


def test_a_measurement_survives_json():
    m = nc.measure(torch.eye(3).repeat(2, 1), torch.arange(3).repeat(2), torch.eye(3) * 2)
    text = m.to_json()
    assert "NaN" not in text
    back = nc.Measurement.from_dict(json.loads(text))
    assert back.to_json() == text
    assert back.counts == (2, 2, 2)
    assert math.isnan(back.numerical_rank)
    with pytest.raises(ValueError, match="no field nc9"):
        nc.Measurement.from_dict({"nc9": 1.0})


@pytest.mark.parametrize(("own", "other", "verdict"), [(0.49, 0.49, True), (0.51, 0.1, False), (0.1, 0.51, False)])
def test_the_verdict_is_about_both_deviations(own, other, verdict):
    features = torch.tensor([[5 + own, other], [5 - own, -other], [other, 5 + own], [-other, 5 - own]])
    m = nc.measure(features, torch.tensor([0, 0, 1, 1]), torch.eye(2))
    assert (m.positive_score.std, m.negative_score.std) == pytest.approx((own, other), rel=1e-6)
    assert m.scores_concentrated is verdict


def test_full_collapse_takes_the_values_the_table_names():
    """A simplex ETF, self-dual, collapsed: what the column `at full collapse` says."""
    classes = 5
    frame = torch.eye(classes, dtype=torch.float64) - 1 / classes
    m = nc.measure(frame.repeat(3, 1), torch.arange(classes).repeat(3), frame * 2, torch.full((classes,), 0.5))
    zero = (
        "nc1 nc1_balanced nc1_quotient cdnv nc2 nc2_uncentred nc2_means nc2_rank equinorm_means equinorm_weights "
        "equiangle_means equiangle_weights nc3 nc3_centred nc3_distance nc2_relu"
    )
    for name in zero.split():
        assert getattr(m, name) == pytest.approx(0.0, abs=1e-12), name
    for name in ("nc4", "accuracy", "uniform_accuracy", "uniform_accuracy_grid", "compactness"):
        assert getattr(m, name) == pytest.approx(1.0, abs=1e-12), name
    assert m.cosine_margin.mean == pytest.approx(classes / (classes - 1))
    assert m.distinctiveness == pytest.approx(classes / (2 * (classes - 1)))
    assert m.distinctiveness_centred == pytest.approx(classes / (2 * (classes - 1)))
    assert m.weight_cosines.mean == pytest.approx(-1 / (classes - 1))
    assert m.means_rank == classes - 1
    assert m.scores_concentrated is True
    assert m.positive_score.std == pytest.approx(0.0, abs=1e-12)
    orthogonal = nc.measure(torch.eye(classes), torch.arange(classes))
    assert orthogonal.distinctiveness == pytest.approx(0.5)
    assert orthogonal.mean_orthogonality == 0.0
    dead = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    assert nc.measure(dead, torch.arange(3)).mean_orthogonality == pytest.approx(0.5**0.5), "of the two that are left"
    assert math.isnan(nc.measure(dead * torch.tensor([[1.0], [0.0], [0.0]]), torch.arange(3)).mean_orthogonality)
    with pytest.warns(UserWarning, match="all class means coincide"):
        assert nc.measure(torch.ones(8, 3), torch.arange(8) % 2).distinctiveness == 0.0


@pytest.mark.parametrize("width", [1.0, 1e-15, 0.0])
def test_counts_between_edges_are_those_of_numpy(width):
    """At a width of 1e-15 some edges are equal, because there are fewer float64 numbers than bins between the ends."""
    values = 1.0 + width * torch.rand(500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    edges = even_edges(float(values.min()), float(values.max()), 40)
    values[7] = torch.inf  # stands for no number
    finite = values[values < torch.inf].numpy()
    assert count_between(values, edges).tolist() == np.histogram(finite, edges)[0].tolist()
    with PretendGpu() as gpu:
        assert count_between(gpu.move(values), edges).tolist() == np.histogram(finite, edges)[0].tolist()
