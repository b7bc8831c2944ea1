"""Bad input is an error that says what is wrong, or NaN with one warning; never a wrong number."""

import math
import warnings

import numpy as np
import pytest
import torch

import ncollapse as nc
from ncollapse.metrics import collect
from ncollapse.metrics.files import read_arrays

H = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 4
W = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))


class Changing:
    """Batches that differ from pass to pass, as augmentation makes them."""

    def __init__(self, change_labels):
        self.change_labels, self.passes = change_labels, 0

    def __iter__(self):
        self.passes += 1
        noise = torch.randn(12, 3, generator=torch.Generator().manual_seed(self.passes))
        yield (H, (Y + self.passes) % 3 + 0 * Y) if self.change_labels else (H + 0.1 * noise, Y)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((H, Y + 1, W), ["labels", "0..3", "4"]),
        ((H, torch.where(Y == 0, -1, Y), W), ["labels", "-1", "row 0"]),
        ((H, Y.float(), W), ["labels", "float32", "long"]),
        ((H, torch.nn.functional.one_hot(Y), W), ["labels", "argmax"]),
        ((H, Y[:, None], W), ["labels", "(12, 1)", "pass labels.squeeze(1)"]),
        ((H, Y[:, None].numpy(), W), ["labels", "(12, 1)", "pass labels.squeeze(1)"]),
        ((H, Y > 1, W), ["labels", "bool"]),
        ((H, ["cat"] * 12, W), ["labels", "<U3", "numpy.unique", "numbers the classes"]),
        ((H, np.array([None] * 12), W), ["labels", "object"]),
        ((H, Y[:-1], W), ["labels", "11", "12"]),
        ((H, None, W), ["labels", "missing"]),
        ((H[0], Y, W), ["features", "[N, d]", "(3,)"]),
        ((H[:, :0], Y, W), ["features", "d >= 1"]),
        ((H.to(torch.complex64), Y, W), ["features", "complex64"]),
        ((np.array([["a"] * 3] * 12), Y, W), ["features", "real"]),
        ((H[:0], Y[:0], W), ["features", "N = 0"]),
        ((H, Y, W[:, :2]), ["weight", "[K, 3]", "(4, 2)"]),
        ((H, Y, W[0]), ["weight", "(3,)"]),
        ((H, Y, W, torch.zeros(3)), ["bias", "[4]", "(3,)"]),
        ((H, Y, None, torch.zeros(4)), ["bias", "without weight"]),
        ((H, Y, W * math.nan), ["weight", "NaN"]),
        ((H, Y, W, torch.full((4,), math.inf)), ["bias", "Inf"]),
        ((H, Y, W, None, 5), ["num_classes", "5", "4"]),
        ((H, Y, None, None, 2), ["labels", "0..1", "3"]),
        ((H, Y % 2, W[:1]), ["labels", "one class", "got 1", "two outputs", "single logit w h - b"]),
        ((H, Y, None, None, 0), ["num_classes", "0"]),
        ((H, Y, W, None, "4"), ["num_classes", "a whole number", "'4'"]),
        (([], None, W), ["features", "N = 0"]),
        (([(H[:0], Y[:0])], None, W), ["features", "N = 0"]),
        (([H], None, W), ["features", "pair"]),
        (([(H, Y), (H[:, :2], Y)], None, W), ["features", "2 columns", "3"]),
        (([(H, Y + 1)], None, W), ["labels", "0..3", "4"]),
        (([(H, -Y)], None, W), ["labels", "-1"]),
        (([([1.0], Y)], None, W), ["features", "list"]),
        (([(H, Y)], Y, W), ["features", "left out"]),
        ((H.tolist(), Y, W), ["features", "list", "numpy.asarray(features)"]),
        ((H.numpy(), Y.numpy() > 1, W), ["labels", "got bool", "labels.astype(int) of an array"]),
        ((Changing(False), None, W), ["features", "second pass", "augmentation"]),
    ],
)
def test_errors_name_the_argument_and_the_rule(arguments, words):
    with pytest.raises(ValueError) as error:
        nc.measure(*arguments)
    assert str(error.value).startswith(words[0])
    for word in words:
        assert word in str(error.value)


def test_a_model_a_classifier_or_a_file_in_the_place_of_arrays_is_named():
    linear = torch.nn.Linear(3, 4)
    with pytest.raises(TypeError, match=r"^weight: expected an array \[K, d\], got Linear; .* head=$"):
        nc.measure(H, Y, linear)
    with pytest.raises(TypeError, match=r"^features: .*, got Linear; ncollapse.features.extract\(model, batches\)"):
        nc.measure(linear, [(H, Y)])
    with pytest.raises(TypeError, match=r"^features: .*, got 'features.npz'; ncollapse measure reads files"):
        nc.measure("features.npz")


@pytest.mark.parametrize("power", [-300, -170, -100, 80, 155, 170, 300])
def test_magnitudes_beyond_float64_are_refused_and_named(power):
    """Between 1e78 and 1e150 only a fourth power overflows, and `nc2_means` alone was wrong."""
    big = H.double() * 10.0**power
    size = float(big.abs().max())
    with pytest.raises(ValueError, match=r"^features: expected magnitudes of 1e-70 to 1e\+70, got ") as error:
        nc.measure(big, Y, W)
    assert f"got {size:.2g};" in str(error.value)
    for statistics in (nc.ClassStatistics(4, 3).update(big, Y), nc.ClassStatistics(4, 3).update(-big, Y)):
        with pytest.raises(ValueError, match="features: expected magnitudes"):
            nc.measure(statistics)
    flipped = big * torch.where(torch.arange(12) < 6, 1.0, -1.0)[:, None]  # some means stay, the largest may cancel
    with pytest.raises(ValueError, match="features: expected magnitudes"):
        nc.measure([(flipped[:6], Y[:6]), (flipped[6:], Y[6:])])
    with pytest.raises(ValueError, match="weight: expected magnitudes"):
        nc.measure(H, Y, W.double() * 10.0**power)


@pytest.mark.parametrize("power", [-66, -30, 30, 66])
def test_magnitudes_within_the_limit_change_no_ratio(power):
    plain, far = nc.measure(H.double(), Y, W), nc.measure(H.double() * 10.0**power, Y, W.double() * 10.0**-power)
    for name in ("nc1", "nc1_balanced", "cdnv", "nc2", "nc2_means", "nc3", "nc2_relu", "compactness", "accuracy"):
        assert getattr(far, name) == pytest.approx(getattr(plain, name), rel=1e-10), name
    assert far.means_rank == plain.means_rank
    with pytest.warns(UserWarning, match="all class means coincide"):
        assert math.isnan(nc.measure(0 * H, Y).nc1)  # zeros are no matter of scale


def test_statistics_refuse_what_is_no_matrix_by_name():
    for wrong in (H.tolist(), None):
        with pytest.raises(TypeError, match=r"^features: expected a tensor or array \[N, d\], got "):
            nc.ClassStatistics(4, 3).update(wrong, Y)
    assert nc.ClassStatistics(4, 3).update(H.numpy(), Y.tolist()).counts.tolist() == [3, 3, 3, 3]


def test_other_kinds_of_tensors_problems_and_statistics_are_refused_by_name():
    with pytest.raises(ValueError, match=r"^features: expected a dense tensor, got a sparse one"):
        nc.measure(H.to_sparse(), Y)
    with pytest.raises(TypeError, match=r"^problem: expected a Problem, .* got 'bce'"):
        nc.measure(H, Y, problem="bce")
    with pytest.raises(TypeError, match=r"^other: expected ClassStatistics, got int"):
        nc.ClassStatistics(4, 3).merge(3)
    for sizes in ((0, 3), (4, 0)):
        for kind in (nc.ClassStatistics, nc.NeuralCollapse):
            with pytest.raises(ValueError, match=r"^(num_classes|dim): expected a whole number of at least 1, got 0"):
                kind(*sizes)


def test_labels_that_change_between_passes_are_noticed():
    with pytest.raises(ValueError, match="second pass"):
        nc.measure(Changing(True), num_classes=3)


def test_one_shot_iterators_are_refused_by_name():
    with pytest.raises(TypeError, match="generator"):
        nc.measure(pair for pair in [(H, Y)])
    with pytest.raises(TypeError, match="zip"):
        nc.measure(zip([H], [Y]))
    with pytest.raises(TypeError, match="int"):
        nc.measure(3)


def test_a_head_and_a_weight_are_too_much():
    with pytest.raises(ValueError, match=r"^head"):
        nc.measure(H, Y, W, head=torch.nn.Linear(3, 4))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("batched", [False, True])
def test_rows_with_nan_or_inf_are_named(bad, batched):
    features = H.clone()
    features[3, 1] = bad
    features[9, 2] = bad
    with pytest.raises(ValueError, match="rows 3, 9"):
        nc.measure([(features[:5], Y[:5]), (features[5:], Y[5:])]) if batched else nc.measure(features, Y)


def test_problem_about_other_classes():
    with pytest.raises(ValueError, match=r"^problem"):
        nc.measure(H, Y, W, problem=nc.Problem("bce", 5, per_class=1, weight_decay=1e-3, feature_decay=1e-3))


def test_no_classifier_is_nan_without_a_warning():
    m = nc.measure(H, Y)
    for name in ("nc2", "nc3", "nc4", "accuracy", "uniform_accuracy", "weight_energy", "nc2_relu"):
        assert math.isnan(getattr(m, name))
    assert m.scores_concentrated is None
    assert math.isnan(m.positive_score.mean)
    assert m.nc1 > 0


def once(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    assert len(caught) == 1
    return result, str(caught[0].message), caught[0].filename


MEANS = ("nc1", "nc1_balanced", "nc1_quotient", "cdnv", "nc2_means", "nc3", "nc3_distance", "nc4", "nc2_relu")
SIMILARITIES = ("compactness", "compactness_uncentred", "distinctiveness", "distinctiveness_centred")


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("strict", [False, True])
def test_an_empty_class_is_left_out_or_nan_with_one_warning(batched, strict):
    labels = torch.where(Y == 2, 1, Y)
    source = {"features": [(H, labels)]} if batched else {"features": H, "labels": labels}
    m, message, filename = once(lambda: nc.measure(**source, weight=W, missing_classes="strict" if strict else "skip"))
    assert "no sample of class 2; " in message
    assert ("are NaN" if strict else "of the 3 classes present") in message
    assert filename == __file__
    for name in (*MEANS, *SIMILARITIES, "equinorm_means", "mean_orthogonality"):
        assert math.isnan(getattr(m, name)) is strict, name
    assert m.empty_classes == (2,)
    assert m.present_classes == 3
    assert m.counts == (3, 6, 0, 3)
    assert math.isnan(m.class_accuracy[2])
    assert math.isnan(m.mean_norms[2])
    assert m.accuracy == pytest.approx(((H @ W.T).argmax(1) == labels).double().mean().item())
    assert m.nc2 == nc.measure(H, Y, W).nc2
    assert m.negative_score.count == 36
    assert m.feature_energy == pytest.approx((H.double() ** 2).sum(1).mean().item())


def test_classes_without_samples_count_as_if_they_were_not_there():
    """What compares class means is the measurement of the other classes alone."""
    labels = torch.where(Y == 2, 1, Y)
    places = torch.tensor([0, 1, 0, 2])
    with pytest.warns(UserWarning, match="no sample of class 2"):
        found = nc.measure(H, labels, W, numerical_rank=True)
    alone = nc.measure(H, places[labels], W[[0, 1, 3]], numerical_rank=True)
    for name in (*MEANS, *SIMILARITIES, "nc3_centred", "equinorm_means", "equiangle_means", "numerical_rank"):
        if name != "nc4":
            assert getattr(found, name) == pytest.approx(getattr(alone, name), rel=1e-12), name
    nearest = torch.cdist(H, torch.stack([H[labels == k].mean(0) for k in (0, 1, 3)])).argmin(1)
    decisions = (H @ W.T).argmax(1)
    assert found.nc4 == (decisions == torch.tensor([0, 1, 3])[nearest]).double().mean()
    assert found.nearest_mean_accuracy == alone.nearest_mean_accuracy


def test_a_single_class_is_nan_with_one_warning():
    m, message, _ = once(lambda: nc.measure(H, Y * 0, W[:1]))
    assert "single class" in message
    for name in ("nc1", "nc2", "nc2_rank", "nc3", "cdnv", "uniform_accuracy", "compactness", "equiangle_weights"):
        assert math.isnan(getattr(m, name)), name
    assert m.negative_score.count == 0
    assert m.accuracy == 1.0


def test_an_empty_class_in_numerical_rank_is_nan():
    labels = torch.where(Y == 2, 1, Y)
    m, _, _ = once(lambda: nc.measure(H, labels, num_classes=4, numerical_rank=True, missing_classes="strict"))
    assert math.isnan(m.numerical_rank)


def test_exactly_merged_means_give_nan_or_a_smaller_rank():
    with pytest.warns(UserWarning, match="all class means coincide"):
        same = nc.measure(torch.ones(6, 3), torch.arange(6) % 2, W[:2])
    assert same.means_rank == 0
    assert math.isnan(same.nc1)
    assert math.isnan(same.cdnv)
    rows = torch.tensor([[1.0, 0, 0], [1.0, 0, 0.5], [0, 1.0, 0], [0, 1.0, 0.5], [1.0, 0, 0], [1.0, 0, 0.5]])
    merged = nc.measure(rows, torch.tensor([0, 0, 1, 1, 2, 2]))
    assert merged.means_rank == 1
    assert merged.nc1 == pytest.approx(0.0, abs=1e-30)
    assert math.isnan(merged.cdnv)  # a variance over a distance of 0


def test_zero_features_have_no_direction():
    features = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    m = nc.measure(features, torch.tensor([0, 0, 1, 1]), torch.eye(2))
    assert m.distinctiveness == pytest.approx(0.5)
    assert all(math.isfinite(value) for value in (m.compactness, m.distinctiveness_centred, m.cosine_margin.mean))


def test_class_statistics_refuse_bad_batches():
    statistics = nc.ClassStatistics(4, 3)
    for features, labels, words in (
        (H, Y + 1, "0..3"),
        (H, -Y, "-1"),
        (H, Y.float(), "float"),
        (torch.where(Y[:, None] == 1, math.nan, H), Y, "NaN or Inf in rows 1, 5, 9 of the batch"),
        (H[:, :2], Y, r"\[B, 3\]"),
    ):
        with pytest.raises(ValueError, match=words):
            statistics.update(features, labels)
    assert statistics.counts.sum() == 0
    with pytest.raises(ValueError, match="N = 0"):
        nc.measure(statistics)
    with pytest.raises(ValueError, match="4 classes"):
        statistics.merge(nc.ClassStatistics(5, 3))
    for sizes, name in (((0, 3), "num_classes"), (("4", 3), "num_classes"), ((4, 2.5), "dim"), ((4, None), "dim")):
        for kind in (nc.ClassStatistics, nc.NeuralCollapse):
            with pytest.raises(ValueError, match=f"^{name}: expected a whole number of at least 1"):
                kind(*sizes)
    assert nc.ClassStatistics(torch.tensor(4), np.int64(3)).update(H, Y).means.shape == (4, 3)


@pytest.mark.parametrize("count", [0, 1.5, "4", True, math.nan, [4]])
def test_counts_are_whole_numbers(count):
    for name in ("num_classes", "min_count"):
        with pytest.raises(ValueError, match=f"^{name}: expected a whole number of at least 1, got "):
            nc.measure(H, Y, **{name: count})
    assert nc.measure(H, Y, num_classes=Y.max() + 1).num_classes == 4


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ((H * math.nan, Y), "features: NaN or Inf"),
        ((H, -Y), "labels: expected integers"),
        (H, "labels: missing"),
        ("train.npz", "features: expected a tensor"),
    ],
)
def test_what_is_wrong_with_a_reference_is_said_of_the_reference(other, words):
    with pytest.raises((TypeError, ValueError), match=f"^reference: {words}"):
        nc.measure(H, Y, W, reference=other)


def test_class_statistics_of_an_empty_class():
    statistics = nc.ClassStatistics(4, 3).update(H, torch.where(Y == 2, 1, Y)).update(H[:0], Y[:0])
    assert torch.isnan(statistics.means[2]).all()
    m, message, _ = once(lambda: nc.measure(statistics, weight=W, missing_classes="strict"))
    assert "class 2" in message
    assert math.isnan(m.nc1)
    assert math.isfinite(m.positive_score.mean)
    skipped, _, _ = once(lambda: nc.measure(statistics, weight=W))
    both, _, _ = once(lambda: nc.measure(H, torch.where(Y == 2, 1, Y), weight=W))
    for name in ("nc1", "nc1_balanced", "cdnv", "nc3", "nc2_means", "nc2_relu"):
        assert getattr(skipped, name) == pytest.approx(getattr(both, name), rel=1e-12), name


def test_a_file_that_is_not_statistics(tmp_path):
    from safetensors.torch import save_file

    save_file({"means": torch.zeros(2, 2)}, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="not class statistics"):
        nc.ClassStatistics.load(tmp_path / "x.safetensors")
    (tmp_path / "x.safetensors").write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"x.safetensors: not a readable \.safetensors file"):
        nc.ClassStatistics.load(tmp_path / "x.safetensors")
    with pytest.raises(FileNotFoundError):
        nc.ClassStatistics.load(tmp_path / "absent.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(ValueError, match=r"folder.safetensors: not a readable \.safetensors file"):
        nc.ClassStatistics.load(tmp_path / "folder.safetensors")
    with pytest.raises(ValueError, match=r"folder.safetensors: not a readable \.safetensors file"):
        read_arrays(tmp_path / "folder.safetensors")
    for place in (tmp_path / "folder.safetensors", tmp_path / "absent" / "x.safetensors"):
        with pytest.raises(OSError, match=rf"{place.name}: cannot be written"):
            nc.ClassStatistics(4, 3).save(place)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("labels", {"labels": Y}), ("numerical_rank", {"numerical_rank": True}), ("num_classes", {"num_classes": 5})],
)
def test_arguments_that_statistics_have_no_use_for(name, arguments):
    statistics = nc.ClassStatistics(4, 3).update(H, Y)
    assert nc.measure(statistics, num_classes=4).num_classes == 4
    with pytest.raises(ValueError, match=f"^{name}: "):
        nc.measure(statistics, **arguments)


def test_collect_without_a_classifier():
    snapshot = collect(H, Y)
    assert snapshot.weight is None
    assert snapshot.positive_score is None
    assert set(snapshot.tensors()) == {"class_means", "counts", "features", "labels"}
