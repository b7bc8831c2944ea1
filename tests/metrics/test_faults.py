"""Constant features, wild labels, masked and complex arrays: named or NaN, never rounding noise."""

import math

import numpy as np
import pytest
import torch

import ncollapse as nc
from ncollapse.metrics.rows import ROUNDING

UNEVEN = torch.tensor([0] * 7 + [1] * 2 + [2])
DIVIDE = (
    *("nc1", "nc1_balanced", "nc1_quotient", "cdnv", "nc2_means", "equinorm_means", "equiangle_means", "nc4"),
    *("nc3", "nc3_centred", "nc3_distance", "compactness", "distinctiveness_centred", "nearest_mean_accuracy"),
)
MAGNITUDES = [0.0, 1.0, 0.1, -1 / 3, 1e-20, 1e-38, 1e20, 3e38]


def values_of(dtype):
    info = torch.finfo(dtype)
    return [value for value in MAGNITUDES if abs(value) <= info.max and (value == 0 or abs(value) >= info.tiny)]


CONSTANTS = [
    (value, dtype)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    for value in values_of(dtype)
]


@pytest.mark.parametrize(("value", "dtype"), CONSTANTS)
@pytest.mark.parametrize("way", ["arrays", "batches", "statistics"])
def test_constant_features_have_no_spread(value, dtype, way):
    features, weight = torch.full((10, 4), value, dtype=dtype), torch.eye(3, 4)
    halves = [(features[:3], UNEVEN[:3]), (features[3:], UNEVEN[3:])]
    ways = {
        "arrays": {"features": features, "labels": UNEVEN},
        "batches": {"features": halves},
        "statistics": {"features": nc.ClassStatistics(3, 4).update(*halves[0]).update(*halves[1])},
    }
    with pytest.warns(UserWarning, match="all class means coincide"):
        m = nc.measure(**ways[way], weight=weight)
    for name in DIVIDE:
        assert math.isnan(getattr(m, name)), name
    assert m.means_rank == 0
    assert math.isnan(m.cosine_margin.mean)
    if value and way != "statistics":
        assert m.compactness_uncentred == pytest.approx(1.0, abs=1e-12)
        assert m.distinctiveness == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("samples", [300, 20_000])
@pytest.mark.parametrize("classes", [3, 100])
@pytest.mark.parametrize("value", [0.1, 1e5 / 3])
def test_many_constant_features(samples, classes, value):
    """Sums of thousands of equal numbers are rounded thousands of times."""
    features = torch.full((samples, 1), value, dtype=torch.float64)
    labels = torch.arange(samples) % classes
    labels[::5] = 0  # uneven
    labels[:classes] = torch.arange(classes)
    with pytest.warns(UserWarning, match="all class means coincide"):
        m = nc.measure(features, labels, fields=["nc1", "cdnv"])
    assert math.isnan(m.nc1)
    assert math.isnan(m.cdnv)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_classes_that_are_points_have_no_scatter(scale, dtype):
    """Each class one point, counted unevenly: exactly collapsed, whatever its mean is rounded to."""
    points = (torch.tensor([[0.1, 0.7, -0.3], [1 / 3, 0.2, 0.9], [-0.6, 0.1, 0.1], [0.1, 0.7, -0.3]]) * scale).to(dtype)
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor([700, 200, 1]))
    for m in (nc.measure(points[labels], labels), nc.measure(nc.ClassStatistics(3, 3).update(points[labels], labels))):
        assert m.nc1 == m.nc1_quotient == m.cdnv == 0.0
        assert m.means_rank == 2
    merged = torch.where(labels == 2, 3, labels)  # classes 0 and 3 are the same point
    with pytest.warns(UserWarning, match="no sample of class 2"):
        m = nc.measure(points[merged], merged)
    assert m.means_rank == 1
    assert math.isnan(m.cdnv)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
@pytest.mark.parametrize(("gap", "seen"), [(ROUNDING / 8, False), (ROUNDING * 8, True)])
def test_the_threshold_is_the_stated_one(scale, gap, seen):
    """Two class means closer than the rounding of sums count as one; eight times that is kept."""
    rows = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, gap]], dtype=torch.float64) * scale
    m = nc.measure(rows, torch.arange(3))
    assert m.means_rank == (2 if seen else 1)


@pytest.mark.parametrize("batched", [False, True])
def test_a_wild_label_is_refused_before_memory_is_taken(batched, monkeypatch):
    features, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 10**8])
    monkeypatch.setattr("ncollapse.metrics.class_sums._grow", lambda *_: pytest.fail("took memory"))
    with pytest.raises(
        ValueError, match=r"^labels: expected integers below 1048576 .* got 100000000; pass num_classes"
    ):
        nc.measure([(features, labels)]) if batched else nc.measure(features, labels)


def test_the_bound_on_labels_can_be_raised(monkeypatch):
    monkeypatch.setattr("ncollapse.metrics.batches.INFERRED_CLASSES", 100)
    features, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 200])
    with pytest.raises(ValueError, match=r"^labels: .* got 200; pass num_classes=201"):
        nc.measure(features, labels)
    with pytest.warns(UserWarning, match="no sample of classes 3, 4, 5"):
        assert nc.measure(features, labels, num_classes=201).present_classes == 4


def test_masked_arrays_are_refused_by_name():
    features, labels, weight = np.random.default_rng(0).normal(size=(6, 3)), np.arange(6) % 2, np.ones((2, 3))
    hidden = np.zeros((6, 3), bool)
    hidden[2, 1] = True
    with pytest.raises(ValueError, match=r"^features: expected plain numbers, got a masked array with 1 masked"):
        nc.measure(np.ma.array(features, mask=hidden), labels)
    with pytest.raises(ValueError, match=r"^labels: .* masked array"):
        nc.measure(features, np.ma.array(labels, mask=hidden[:, 1]))
    with pytest.raises(ValueError, match=r"^weight: .* masked array"):
        nc.measure(features, labels, np.ma.array(weight, mask=hidden[1:3]))
    with pytest.raises(ValueError, match=r"^features: .* masked array"):
        nc.ClassStatistics(2, 3).update(np.ma.array(features, mask=hidden), labels)
    nothing_hidden = nc.measure(np.ma.array(features), labels)
    assert nothing_hidden == nc.measure(features, labels)


@pytest.mark.parametrize("kind", [torch.complex64, np.complex128])
def test_complex_classifiers_are_refused_by_name(kind):
    features, labels = torch.randn(6, 3), torch.arange(6) % 2
    as_complex = torch.as_tensor if isinstance(kind, torch.dtype) else np.asarray
    weight, bias = as_complex(np.ones((2, 3)), dtype=kind), as_complex(np.ones(2), dtype=kind)
    with pytest.raises(ValueError, match=r"^weight: expected real numbers, got .*complex"):
        nc.measure(features, labels, weight)
    with pytest.raises(ValueError, match=r"^bias: expected real numbers, got .*complex"):
        nc.measure(features, labels, torch.ones(2, 3), bias)
    with pytest.raises(ValueError, match=r"^weight: expected real numbers, got .*complex"):
        nc.measure(features, labels, head=(weight, None))
