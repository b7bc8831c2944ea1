"""More classes than dimensions, more classes than samples, empty classes: against the plain loops, in any tiling."""

import math
import warnings

import numpy as np
import pytest
import torch

import ncollapse as nc
from metrics.test_definitions import agree
from ncollapse.metrics.batches import open_source
from ncollapse.metrics.class_sums import sum_classes
from ncollapse.metrics.classifier import place_classifier
from ncollapse.metrics.radii import decision_radii, nearest_mean_radii
from ncollapse.metrics.reference import moments_of
from reference import metrics as reference

QUANTILES = {"q05", "q25", "median", "q75", "q95"}
TILES = ("pairs.CPU_TILE", "decay_fields.TILE")
NUMBERS = ("rows.CPU_NUMBERS", "exact_scores.CPU_SCORES", "bounded_scores.SCORES")


def draw(seed, classes, dim, counts, common=0.0, spread=0.5, merged=0.0):
    """Float32 features of the classes with a count, weights with a common component, and a bias."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(classes, dim))
    if merged:
        means[1] = means[0] + merged * rng.normal(size=dim)
    labels = rng.permutation(np.repeat(np.arange(classes), counts))
    features = means[labels] + spread * rng.normal(size=(len(labels), dim)) + common
    weight, bias = rng.normal(size=(classes, dim)) + common, rng.normal(size=classes)
    as32 = [torch.tensor(array, dtype=torch.float32) for array in (features, weight, bias)]
    return as32[0], torch.tensor(labels), as32[1], as32[2]


CASES = {
    "K > d": lambda: draw(0, 9, 3, [4] * 9),
    "K = d + 1": lambda: draw(1, 6, 5, [4] * 6),
    "K = d + 2": lambda: draw(2, 7, 5, [4] * 7),
    "K > N, empty and single": lambda: draw(3, 13, 3, [0, 1, 2, 0, 1] * 2 + [3, 0, 1]),
    "empty, K < d": lambda: draw(4, 6, 9, [0, 1, 5, 0, 2, 3]),
    "single samples only": lambda: draw(5, 9, 3, [1] * 9),
    "common component": lambda: draw(6, 8, 3, [3] * 8, common=30.0),
    "nearly merged means": lambda: draw(7, 8, 3, [3] * 8, spread=1e-4, merged=1e-4),
}


def measure(*arguments, **options):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="measure: no sample")
        return nc.measure(*arguments, **options)


@pytest.fixture
def small_tiles(monkeypatch):
    """Every loop over classes takes several rounds."""
    for name in TILES:
        monkeypatch.setattr(f"ncollapse.metrics.{name}", 3)
    for name in NUMBERS:
        monkeypatch.setattr(f"ncollapse.metrics.{name}", 16)
    monkeypatch.setattr("ncollapse.metrics.rows.ONE_HOT_CLASSES", 2)


def send_to_float32(monkeypatch):
    for name in ("sample_pass.EXACT", "distribution.EXACT", "sample_pass.FEW_SCORES", "nearest_means.FEW_SCORES"):
        monkeypatch.setattr(f"ncollapse.metrics.{name}", 0)


@pytest.fixture
def float32_scores(monkeypatch):
    """The way of very many scores."""
    send_to_float32(monkeypatch)


def compare(found, expected, *, quantiles=True):
    for name, value in expected.items():
        if isinstance(value, dict) and not quantiles:
            agree({k: v for k, v in found[name].items() if k not in QUANTILES},
                  {k: v for k, v in value.items() if k not in QUANTILES}, name)  # fmt: skip
        else:
            agree(found[name], value, name)


@pytest.mark.parametrize("case", CASES)
def test_every_field_equals_its_definition(case, small_tiles):
    features, labels, weight, bias = CASES[case]()
    expected = reference.measure(features.numpy(), labels.numpy(), weight.numpy(), bias.numpy())
    found = measure(features, labels, weight, bias, numerical_rank=True)
    compare(found.to_dict(), expected)
    assert found.present_classes == len(set(labels.tolist()))


@pytest.mark.parametrize("case", CASES)
def test_float32_scores_give_the_same_and_quantiles_close(case, small_tiles, float32_scores):
    features, labels, weight, bias = CASES[case]()
    expected = reference.measure(features.numpy(), labels.numpy(), weight.numpy(), bias.numpy())
    found = measure(features, labels, weight, bias, numerical_rank=True).to_dict()
    compare(found, expected, quantiles=False)
    for name in ("positive_score", "cosine_margin", "bias"):
        agree(found[name], expected[name], name)
    size = float(features.double().norm(dim=1).max() * weight.double().norm(dim=1).max())
    for name in QUANTILES:
        exact = expected["negative_score"][name]
        assert abs(found["negative_score"][name] - exact) <= 2**-11 * abs(exact) + (3 + 8) * 2**-24 * size, name
        exact = expected["mean_cosines"][name]
        assert abs(found["mean_cosines"][name] - exact) <= 2**-11 * abs(exact) + 1e-9, name


def test_doubtful_float32_scores_are_settled_in_float64(float32_scores):
    """Rows of W that differ by less than float32 tells: the decision is still the float64 one, and ties the first."""
    g = torch.Generator().manual_seed(0)
    features = torch.randn(200, 4, generator=g, dtype=torch.float64)
    weight = torch.randn(9, 4, generator=g, dtype=torch.float64).repeat_interleave(3, 0)
    weight += 1e-12 * torch.randn(27, 4, generator=g, dtype=torch.float64)
    weight[26] = weight[25]
    labels = torch.arange(200) % 27
    m = nc.measure(features, labels, weight, fields=["accuracy", "class_accuracy", "uniform_accuracy", "nc4"])
    decisions = (features @ weight.T).argmax(1)
    assert m.accuracy == (decisions == labels).double().mean()
    assert m.class_accuracy[26] == 0.0
    assert len(set(decisions.tolist())) > 9


def test_whole_numbers_tie_exactly_in_float32_tiles(float32_scores):
    rng = np.random.default_rng(0)
    features, weight = rng.integers(-2, 3, (90, 4)), rng.integers(-2, 3, (30, 4))
    bias, labels = rng.integers(-1, 2, 30), np.arange(90) % 30
    m = nc.measure(features.astype(np.float32), labels, weight, bias)
    logits = features @ weight.T - bias
    assert m.accuracy == np.mean(logits.argmax(1) == labels)
    own = logits[np.arange(90), labels]
    logits[np.arange(90), labels] = -1000
    assert m.uniform_accuracy == reference.uniform_accuracy(own, logits.max(1))


@pytest.mark.parametrize("way", ["float64", "float32"])
@pytest.mark.parametrize("threshold", [0.0, 2.5])
@pytest.mark.parametrize("fields", [None, ["accuracy", "class_accuracy"]])
def test_samples_that_are_zero_tie_whatever_their_order(way, threshold, fields, monkeypatch):
    """Dead features under equal thresholds have equal logits: the first class decides, and no threshold is right."""
    if way == "float32":
        send_to_float32(monkeypatch)
    rng = np.random.default_rng(0)
    for _ in range(20):
        features, weight = rng.normal(size=(34, 12)), rng.normal(size=(17, 12))
        labels, bias = rng.permutation(np.arange(34) % 17), np.full(17, threshold)
        features[10:30] = 0.0
        m = nc.measure(features, labels, weight, bias, fields=fields)
        logits = features @ weight.T - bias
        assert m.accuracy == np.mean(logits.argmax(1) == labels)
        if fields is None:
            own = logits[np.arange(34), labels]
            logits[np.arange(34), labels] = -np.inf
            assert m.uniform_accuracy == reference.uniform_accuracy(own, logits.max(1))


@pytest.mark.parametrize("way", ["float64", "float32"])
def test_tile_sizes_change_no_digit(way, monkeypatch):
    features, labels, weight, bias = draw(9, 130, 12, [2, 0, 3, 1, 4] * 26)
    if way == "float32":
        send_to_float32(monkeypatch)
    whole = measure(features, labels, weight, bias).to_dict()
    for tile, numbers in ((1000, 1 << 20), (7, 50), (64, 999)):
        for name in TILES:
            monkeypatch.setattr(f"ncollapse.metrics.{name}", tile)
        for name in NUMBERS:
            monkeypatch.setattr(f"ncollapse.metrics.{name}", numbers)
        compare_exactly(measure(features, labels, weight, bias).to_dict(), whole)


def compare_exactly(found, expected):
    for name, value in expected.items():
        if value is None or isinstance(value, bool):
            assert found[name] == value, name
        else:
            agree(found[name], value, name, relative=1e-12, absolute=1e-12)


@pytest.mark.parametrize("collapsed", [0.0, 1e-9])
def test_negative_scores_that_are_nearly_all_equal(float32_scores, collapsed):
    """Own scores far from the others: the squared deviations are a small difference, found pair by pair instead."""
    g = torch.Generator().manual_seed(0)
    frame = torch.randn(9, 8, generator=g, dtype=torch.float64)
    frame = torch.linalg.qr(frame - frame.mean(0)).Q * 3  # 9 classes in 8 dimensions: a simplex ETF
    labels = torch.arange(36) % 9
    features = frame[labels] + collapsed * torch.randn(36, 8, generator=g, dtype=torch.float64)
    m = nc.measure(features, labels, frame)
    scores = features @ frame.T
    own = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, labels[:, None], True)
    expected = scores[~own].std(correction=0)
    assert m.negative_score.std == pytest.approx(float(expected), rel=1e-5, abs=2e-8 * m.positive_score.std + 1e-14)
    assert m.negative_score.min == pytest.approx(float(scores[~own].min()), rel=1e-12)


def test_fields_by_choice():
    features, labels, weight, bias = draw(10, 9, 6, [5] * 9)
    everything = nc.measure(features, labels, weight, bias, numerical_rank=True).to_dict()
    always = {"num_samples", "num_classes", "present_classes", "dim", "counts", "empty_classes"}
    for name, value in everything.items():
        alone = nc.measure(features, labels, weight, bias, fields=[name]).to_dict()
        compare_exactly({name: alone[name]}, {name: value})
        untouched = nc.Measurement().to_dict()
        for other in set(alone) - always - {name}:
            compare_exactly({other: alone[other]}, {other: untouched[other]})
    some = nc.measure(features, labels, fields="nc1")
    assert (some.nc1, some.cdnv) == (pytest.approx(everything["nc1"], rel=1e-12), pytest.approx(math.nan, nan_ok=True))
    assert nc.measure(features, labels, weight, bias, fields="all") == nc.measure(features, labels, weight, bias)


def test_one_pass_where_one_is_enough():
    passes = []

    class Batches:
        def __iter__(self):
            passes.append(1)
            return iter([draw(0, 4, 3, [5] * 4)[:2]])

    nc.measure(Batches(), fields=["nc2_means", "equinorm_means", "distinctiveness", "mean_norms", "feature_energy"])
    assert len(passes) == 2 + 1  # two looks at the kind of batches, and one pass
    nc.measure(Batches(), fields=["nc1"])
    assert len(passes) == 3 + 2 + 2


@pytest.mark.parametrize("wrong", [["nc9"], "nc9", [], ["nc1", "positive_score.mean"]])
def test_unknown_fields_are_refused_by_name(wrong):
    features, labels, *_ = draw(0, 4, 3, [5] * 4)
    with pytest.raises(ValueError, match=r'^fields: expected "all" or names of fields'):
        nc.measure(features, labels, fields=wrong)


def test_above_many_classes_the_default_says_what_it_leaves_out(monkeypatch):
    monkeypatch.setattr("ncollapse.metrics.selection.ALL_FIELDS_CLASSES", 8)
    features, labels, weight, bias = draw(10, 9, 6, [5] * 9)
    with pytest.warns(UserWarning, match=r"^measure: 9 classes: left out cdnv, .*accuracy, .*fields=\[...\]") as caught:
        some = nc.measure(features, labels, weight, bias)
    assert caught[0].filename == __file__
    assert math.isnan(some.accuracy)
    assert math.isnan(some.cdnv)
    every = nc.measure(features, labels, weight, bias, fields="all")
    assert every.accuracy >= 0
    for name in ("nc1", "nc2", "nc3", "nc2_rank", "compactness", "positive_score", "weight_energy"):
        agree(some.to_dict()[name], every.to_dict()[name], name, relative=1e-14, absolute=0.0)


@pytest.mark.parametrize("noise", [0.1, 0.6, 2.0])
@pytest.mark.parametrize("sizes", [(7, 5), (6, 12)])
def test_samples_within_the_radii_are_decided_as_by_every_score(sizes, noise, float32_scores, monkeypatch):
    """Some samples are within, some beyond; classes 1 and 2 have the same weights, and class 3 no sample."""
    classes, dim = sizes
    counts = [60, 50, 40, 0, *[50] * (classes - 4)]
    features, labels, _, bias = draw(11, classes, dim, counts, spread=noise, common=3.0)
    means = torch.stack([features[labels == k].mean(0) if counts[k] else torch.ones(dim) for k in range(classes)])
    weight = means + 0.3 * torch.randn(classes, dim, generator=torch.Generator().manual_seed(0))
    weight[2], bias[2] = weight[1], bias[1]
    fields = ["nc4", "accuracy", "class_accuracy", "nearest_mean_accuracy"]
    monkeypatch.setattr("ncollapse.metrics.radii.WORTHWHILE", 1)
    found = measure(features, labels, weight, bias, fields=fields).to_dict()
    expected = reference.measure(features.numpy(), labels.numpy(), weight.numpy(), bias.numpy())
    for name in fields:
        agree(found[name], expected[name], name)


def test_radii_are_the_distances_at_which_decisions_change():
    features, labels, *_ = draw(12, 8, 5, [40] * 8, spread=0.05)
    weight = torch.stack([features[labels == k].mean(0) for k in range(8)])
    bias = weight.square().sum(1) / 2  # z_j is largest for the nearest mean
    source = open_source(features, labels)
    moments, presence = moments_of(sum_classes(source, 8))
    classifier = place_classifier((weight, bias), 5, torch.device("cpu"))
    near, decided = nearest_mean_radii(moments), decision_radii(classifier, moments, presence.classes)
    means = moments.means().whole()
    gaps = torch.cdist(means, means) + torch.diag(torch.full((8,), torch.inf))
    torch.testing.assert_close(near, gaps.amin(1).double() / 2, rtol=1e-6, atol=0)
    torch.testing.assert_close(decided, near, rtol=1e-4, atol=0)
    assert bool((near < gaps.amin(1) / 2).all())


def test_most_classes_without_samples_and_more_scores_than_are_held(float32_scores):
    """More classes than dimensions, fewer of them with samples: the negative scores need the whole scatter."""
    features, labels, weight, bias = draw(13, 20, 9, [30, 20, 0, 10] + [0] * 16)
    expected = reference.measure(features.numpy(), labels.numpy(), weight.numpy(), bias.numpy())
    compare(measure(features, labels, weight, bias, numerical_rank=True).to_dict(), expected, quantiles=False)


@pytest.mark.parametrize("way", ["arrays", "batches"])
def test_min_count_leaves_out_classes_with_few_samples(way):
    features, labels, weight, bias = draw(14, 9, 6, [5, 2, 0, 7, 1, 4, 3, 4, 9])
    counts = labels.bincount(minlength=9)
    frequent = counts[labels] >= 4
    expected = measure(features[frequent], labels[frequent], weight, bias)
    data = (features, labels) if way == "arrays" else (list(zip(features.split(5), labels.split(5))),)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # left out on request
        found = nc.measure(*data, weight=weight, bias=bias, min_count=4, numerical_rank=True)
    compare_exactly(found.to_dict() | {"numerical_rank": math.nan}, expected.to_dict())
    assert found.present_classes == 5
    assert found.counts == (5, 0, 0, 7, 0, 4, 0, 4, 9)
    statistics = nc.ClassStatistics(9, 6).update(features, labels)
    summed = nc.measure(statistics, weight=weight, bias=bias, min_count=4)
    for name in ("cdnv", "nc1_quotient", "nc2_means", "nc3", "mean_norms", "feature_energy", "num_samples"):
        agree(summed.to_dict()[name], expected.to_dict()[name], name)
    assert math.isnan(summed.nc1)
    assert measure(statistics, min_count=1).nc1 > 0
    metric = nc.NeuralCollapse(9, 6)
    metric.update(features, labels)
    assert float(metric.compute(min_count=4)["cdnv"]) == pytest.approx(expected.cdnv, rel=1e-9)
    for wrong in (lambda: nc.measure(features, labels, min_count=10), lambda: nc.measure(statistics, min_count=10)):
        with pytest.raises(ValueError, match=r"^min_count: no class has 10 samples; the largest has 9"):
            wrong()
    with pytest.raises(ValueError, match=r"^min_count: expected a whole number of at least 1, got 0"):
        nc.measure(features, labels, min_count=0)


@pytest.mark.parametrize("case", CASES)
def test_fields_that_the_plain_loops_leave_out(case, small_tiles, float32_scores):
    features, labels, weight, bias = CASES[case]()
    classes, dim = weight.shape
    counts = labels.bincount(minlength=classes)
    problem = nc.Problem("bce", classes, per_class=4, weight_decay=2e-7, feature_decay=3e-3, bias_decay=4e-3)
    found = measure(features, labels, weight, bias, problem=problem)
    assert (found.num_samples, found.num_classes, found.dim) == (len(labels), classes, dim)
    assert found.empty_classes == tuple(torch.nonzero(counts == 0).flatten().tolist())
    means = np.array([features[labels == k].double().mean(0).numpy() for k in range(classes) if counts[k]])
    assert found.means_rank == np.linalg.matrix_rank(means - features.double().mean(0).numpy(), tol=1e-9)
    logits = features.double() @ weight.double().T - bias.double()
    own = logits.gather(1, labels[:, None]).squeeze(1)
    other = logits.scatter(1, labels[:, None], -torch.inf).amax(1)
    right = (own > found.uniform_threshold) & (other <= found.uniform_threshold)
    assert float(right.double().mean()) == pytest.approx(found.uniform_accuracy, abs=1e-12)
    energy, mean = float(weight.double().square().sum()), float(bias.double().mean())
    expected = reference.bias_residual(energy, mean, classes, 4, 2e-7, 3e-3, 4e-3)
    agree(found.bias_residual, expected, "bias_residual")
    agree(found.bias_residual_printed, expected - 4e-3 * mean, "bias_residual_printed")
    if bool((counts == 0).any()):
        assert math.isnan(found.nc3_relu)
    else:
        decays = nc.Problem("ce", class_counts=counts.tolist(), weight_decay=1e-3, feature_decay=1e-3, bias=False)
        expected = reference.relu_logits(weight.double().numpy(), means, counts.tolist(), 1e-3, 1e-3)
        agree(measure(features, labels, weight, problem=decays).nc3_relu, expected, "nc3_relu")


@pytest.mark.parametrize("case", ["K < d", "coinciding means", "a zero weight", "an empty class", "two classes"])
def test_tables_of_few_classes_say_what_tiles_say(case, monkeypatch):
    counts = {"an empty class": [9, 0, 7, 5, 8, 6], "two classes": [9, 4]}.get(case, [9, 4, 7, 5, 8, 6])
    features, labels, weight, bias = draw(15, len(counts), 12, counts)
    if case == "coinciding means":
        features[labels == 1] = features[labels == 2][:4]
        features[labels == 2] = features[labels == 2][:1]
        features[labels == 1] = features[labels == 2][0]
    if case == "a zero weight":
        weight[3] = 0
    found = measure(features, labels, weight, bias)
    monkeypatch.setattr("ncollapse.metrics.small_frames.CLASSES", 0)
    expected = measure(features, labels, weight, bias)
    compare_exactly(found.to_dict(), expected.to_dict())
    assert math.isnan(found.cdnv) == (case == "coinciding means")


def test_memory_that_is_kept_between_measurements_is_not_part_of_results():
    first, second = draw(16, 5, 4, [20] * 5), draw(17, 5, 4, [20] * 5, spread=2.0)
    with torch.inference_mode():
        inside = nc.measure(*first)
    alone = nc.measure(*second)
    assert nc.measure(*first) == inside
    found = []

    class Nested:
        """Batches that measure something else while they are read."""

        def __iter__(self):
            for part in (slice(0, 50), slice(50, 100)):
                yield first[0][part], first[1][part]
                found.append(nc.measure(*second))

    agree(nc.measure(Nested(), weight=first[2], bias=first[3]).to_dict(), inside.to_dict(), "nested", relative=1e-12)
    assert found
    assert all(one == alone for one in found)
