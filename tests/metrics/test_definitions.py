"""`measure` against plain loops over the definitions, in every regime where faster ways go wrong."""

import math

import numpy as np
import pytest
import torch

import ncollapse as nc
from reference import metrics as reference


def make(seed, counts, dim, spread=0.4, offset=0.0, merge=None):
    """Float32 features around random means; `merge` puts the second mean that close to the first."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(len(counts), dim))
    if merge is not None:
        away = rng.normal(size=dim)
        means[1] = means[0] + merge * away / np.linalg.norm(away) * np.linalg.norm(means[0] - means[2])
    labels = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    noise = rng.normal(size=(len(labels), dim))
    features = means[labels] + spread * np.linalg.norm(means, axis=1).mean() / math.sqrt(dim) * noise
    if offset:
        features = np.abs(features) + offset
    weight, bias = rng.normal(size=(len(counts), dim)), rng.normal(size=len(counts))
    as32 = [torch.tensor(array, dtype=torch.float32) for array in (features, weight, bias)]
    return as32[0], torch.tensor(labels), as32[1], as32[2]


REGIMES = {
    "ordinary": lambda: make(0, [12, 12, 12, 12], 7),
    "collapsed": lambda: make(1, [12, 12, 12, 12], 7, spread=1e-6),
    "two means nearly merged": lambda: make(2, [12, 12, 12, 12], 7, spread=1e-3, merge=1e-4),
    "imbalance 100": lambda: make(3, [100, 10, 4, 1], 6),
    "d < K": lambda: make(4, [7] * 7, 3),
    "d = 1": lambda: make(5, [8, 9, 7], 1),
    "K = 2": lambda: make(6, [20, 16], 6),
    "non-negative, offset 10": lambda: make(7, [12, 12, 12, 12], 7, offset=10.0),
    "collapsed and offset 10": lambda: make(8, [12, 12, 12], 6, spread=1e-4, offset=10.0),
}


def agree(found, expected, where, relative=1e-9, absolute=1e-12):
    if isinstance(expected, dict):
        assert set(found) == set(expected)
        for name, value in expected.items():
            agree(found[name], value, f"{where}.{name}", relative, absolute)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for index, value in enumerate(expected):
            agree(found[index], value, f"{where}[{index}]", relative, absolute)
    else:
        if math.isnan(expected):
            assert math.isnan(found), where
            return
        assert abs(float(found) - float(expected)) <= max(relative * abs(float(expected)), absolute), (
            f"{where}: measured {found!r}, by definition {float(expected)!r}"
        )


@pytest.mark.parametrize("regime", REGIMES)
def test_every_field_equals_its_definition(regime):
    features, labels, weight, bias = REGIMES[regime]()
    found = nc.measure(features, labels, weight, bias, numerical_rank=True).to_dict()
    expected = reference.measure(features.numpy(), labels.numpy(), weight.numpy(), bias.numpy())
    for name, value in expected.items():
        agree(found[name], value, name)
    untested = set(found) - set(expected)
    assert untested == {
        "uniform_threshold", "bias_residual", "bias_residual_printed", "nc3_relu",
        "num_samples", "num_classes", "present_classes", "dim", "empty_classes", "means_rank",
    }  # fmt: skip
    assert (found["num_samples"], found["num_classes"], found["dim"]) == (len(labels), len(weight), features.shape[1])
    assert found["means_rank"] == min(len(weight) - 1, features.shape[1])
    assert found["empty_classes"] == []
    assert found["uniform_accuracy"] >= found["uniform_accuracy_grid"]


@pytest.mark.parametrize("regime", REGIMES)
def test_class_statistics_give_the_same(regime):
    features, labels, weight, bias = REGIMES[regime]()
    statistics = nc.ClassStatistics(len(weight), features.shape[1])
    for start in range(0, len(labels), 5):
        statistics.update(features[start : start + 5], labels[start : start + 5])
    found = nc.measure(statistics, weight=weight, bias=bias).to_dict()
    expected = nc.measure(features, labels, weight, bias).to_dict()
    for name in (
        "nc1", "nc1_balanced", "nc1_quotient", "cdnv", "nc2", "nc2_means", "nc2_rank", "equinorm_means",
        "equiangle_means", "nc3", "nc3_centred", "nc3_distance", "nc2_relu", "feature_energy", "mean_norms",
        "mean_orthogonality", "means_smallest_singular_value", "weight_energy", "counts",
    ):  # fmt: skip
        agree(found[name], expected[name], name)
    agree(found["positive_score"]["mean"], expected["positive_score"]["mean"], "positive_score.mean")
    agree(found["negative_score"]["mean"], expected["negative_score"]["mean"], "negative_score.mean")
    assert math.isnan(found["positive_score"]["std"])
    assert math.isnan(found["accuracy"])
    assert math.isnan(found["compactness"])


def test_bias_residual_reproduces_the_printed_tables():
    """bce-vs-ce Tables 6, 8 and 11: the printed column leaves out the term of the bias decay."""
    rows = [  # rho, b, n, printed alpha
        (407.1362, 2.2170, 10, 12.8, -0.0268),
        (357.9696, 3.5134, 10, 12.8, -0.0086),
        (1019.6438, 3.3303, 10, 204.8, -0.0122),
    ]
    for energy, bias, classes, per_class, printed in rows:
        weight = torch.zeros(classes, classes, dtype=torch.float64)
        weight[0, 0] = energy**0.5
        problem = nc.Problem(
            "bce", classes, per_class=per_class, weight_decay=5e-4, feature_decay=5e-4, bias_decay=5e-4
        )
        features = torch.eye(classes)
        m = nc.measure(features, torch.arange(classes), weight, torch.full((classes,), bias), problem=problem)
        assert m.bias_residual_printed == pytest.approx(printed, abs=6e-5)  # rho and b are printed rounded
        expected = reference.bias_residual(energy, bias, classes, per_class, 5e-4, 5e-4, 5e-4)
        agree(m.bias_residual, expected, "bias_residual", relative=1e-6)
        agree(m.bias_residual - m.bias_residual_printed, 5e-4 * bias, "the term left out", relative=1e-6)


@pytest.mark.parametrize("offset", [1e6, 1e7])
def test_collapsed_features_far_from_the_origin(offset):
    """Rounding of large class means is not mistaken for samples that changed between the passes."""
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(7, (2000,), generator=g)
    means = offset + torch.randn(7, 64, generator=g, dtype=torch.float64)
    m = nc.measure(means[labels], labels)
    assert m.means_rank == 6
    assert m.nc1_quotient < 1e-12


@pytest.mark.parametrize("gap", [1e-6, 1e-10])
def test_the_direction_of_nearly_merged_classes_is_kept(gap):
    """Between the two means NC1 is spread^2/gap^2, which any tolerance above rounding would drop."""
    means = torch.eye(3, dtype=torch.float64)
    means[1] = means[0] + gap * means[1]
    labels = torch.arange(6) // 2
    sign = torch.tensor([1.0, -1.0] * 3, dtype=torch.float64)[:, None]
    m = nc.measure(means[labels] + 0.1 * gap * sign * torch.eye(3, dtype=torch.float64)[1], labels)
    assert m.means_rank == 2
    expected = 0.01 * gap**2 / (gap**2 / 2)  # scatter along the gap over its squared singular value, N/N
    assert m.nc1 == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("decay", [1e-4, 3e-3, 0.05])  # at the last the two smallest classes collapse
def test_relu_logits_equal_their_definition(decay):
    counts = [20, 10, 4, 2]
    features, labels, weight, _ = make(9, counts, 6, offset=0.5)
    problem = nc.Problem("ce", class_counts=counts, weight_decay=decay, feature_decay=decay, bias=False)
    found = nc.measure(features, labels, weight, problem=problem)
    means = [features[labels == k].double().mean(0).numpy() for k in range(4)]
    expected = reference.relu_logits(weight.double().numpy(), means, counts, decay, decay)
    agree(found.nc3_relu, expected, "nc3_relu")
    by_batch = nc.Problem("ce", 4, batch_size=sum(counts), weight_decay=decay, feature_decay=decay, bias=False)
    agree(nc.measure(features, labels, weight, problem=by_batch).nc3_relu, expected, "nc3_relu from measured shares")


def test_relu_logits_vanish_at_the_optimum():
    """The minimiser of imbalanced-relu Thm. 1, built from its own formulas."""
    counts, decay = torch.tensor([20.0, 10.0, 4.0], dtype=torch.float64), 5e-3
    total, classes = counts.sum(), 3
    heights = torch.log((classes - 1) * (counts.sqrt() / (total * math.sqrt((classes - 1) / classes) * decay) - 1))
    means = torch.diag(((classes - 1) / classes / counts).pow(0.25) * heights.sqrt())
    scaled = counts.sqrt()[:, None] * means
    weight = (classes * scaled - scaled.sum(0)) / math.sqrt(classes * (classes - 1))
    labels = torch.repeat_interleave(torch.arange(3), counts.long())
    problem = nc.Problem("ce", class_counts=counts.tolist(), weight_decay=decay, feature_decay=decay, bias=False)
    m = nc.measure(means[labels], labels, weight, problem=problem)
    assert m.nc3_relu < 1e-12
    assert m.nc2_relu < 1e-12
    assert m.mean_orthogonality == 0.0
    assert m.nc1 < 1e-24


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("classes", [4, 300])
def test_a_class_of_zero_features_has_no_direction(classes, streamed):
    rng = np.random.default_rng(3)
    labels = rng.permutation(np.repeat(np.arange(classes), 13))
    features = np.abs(rng.normal(size=(len(labels), 3)))
    features[labels < 2] = 0.0  # float64 numbers whose sums relative to the first sample round
    given = (features, labels)
    if streamed:
        statistics = nc.ClassStatistics(classes, 3)
        for start in range(0, len(labels), 50):
            statistics.update(features[start : start + 50], labels[start : start + 50])
        given = (statistics,)
    m = nc.measure(*given)
    means = np.stack([features[labels == k].mean(axis=0) for k in range(classes)])
    norms = np.linalg.norm(means, axis=1)
    unit = means / np.where(norms > 0, norms, 1.0)[:, None]
    cosines = (unit @ unit.T)[np.triu_indices(classes, 1)]
    assert m.mean_norms[:2] == (0.0, 0.0)
    assert m.mean_cosines.mean == pytest.approx(cosines.mean(), rel=1e-12)
    assert m.mean_cosines.min == 0.0
    kept = (unit[2:] @ unit[2:].T)[np.triu_indices(classes - 2, 1)]
    assert m.mean_orthogonality == pytest.approx(kept.mean(), rel=1e-12)


@pytest.mark.parametrize(("classes", "dim"), [(3, 4), (7, 20), (300, 4)])
def test_equal_rows_of_the_classifier_have_no_frame(classes, dim):
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(3 * classes, dim)), np.arange(3 * classes) % classes
    equal = np.tile(rng.normal(size=(1, dim)), (classes, 1))  # their mean is not them, by rounding
    m = nc.measure(features, labels, equal)
    assert math.isnan(m.nc2)
    assert math.isnan(m.nc3_centred)
    assert m.nc2_uncentred == pytest.approx(math.sqrt(2))
    apart = nc.measure(features, labels, equal + 1e-9 * rng.normal(size=equal.shape))
    assert 0 < apart.nc2 < 1.5
    assert 0 < apart.nc3_centred < 2


def test_relu_logits_are_compared_at_the_counts_of_the_problem():
    """A measured part may hold the classes in other shares than the training set."""
    counts, decay = [40, 6, 12, 3], 3e-3
    features, labels, weight, _ = make(10, [9, 9, 9, 9], 6, offset=0.5)
    problem = nc.Problem("ce", class_counts=counts, weight_decay=decay, feature_decay=decay, bias=False)
    means = [features[labels == k].double().mean(0).numpy() for k in range(4)]
    expected = reference.relu_logits(weight.double().numpy(), means, counts, decay, decay)
    found = nc.measure(features, labels, weight, problem=problem).nc3_relu
    agree(found, expected, "nc3_relu")
    other = reference.relu_logits(weight.double().numpy(), means, [61 / 4] * 4, decay, decay)
    assert abs(found - float(other)) > 1e-3


def test_relu_logits_of_nothing_are_undefined():
    """Where every class is predicted to collapse, or W is 0, one of the tables has no norm."""
    features, labels, weight, _ = make(11, [9, 5, 4], 6, offset=0.5)
    for scale, decay in ((1.0, 3.0), (0.0, 1e-3)):
        problem = nc.Problem("ce", class_counts=[9, 5, 4], weight_decay=decay, feature_decay=decay, bias=False)
        assert math.isnan(nc.measure(features, labels, scale * weight, problem=problem).nc3_relu)


@pytest.mark.parametrize(("classes", "dim"), [(22, 20), (300, 297), (40, 5), (12, 11)])
def test_the_frame_of_fewer_dimensions_that_is_nearest_to_the_simplex(classes, dim):
    """P of rank d with P 1 = 0 has the cosine sqrt(d / (K - 1)) with the simplex, and no matrix of its rank more."""
    columns = np.random.default_rng(0).normal(size=(classes, dim))
    weight = torch.from_numpy(np.linalg.qr(columns - columns.mean(0)).Q)
    m = nc.measure(weight, torch.arange(classes), weight)
    wanted = math.sqrt(2 - 2 * math.sqrt(dim / (classes - 1)))
    for name in ("nc2", "nc2_means", "nc3"):
        assert getattr(m, name) == pytest.approx(wanted, abs=1e-7), name
    assert m.nc2_rank == pytest.approx(0, abs=1e-7)
