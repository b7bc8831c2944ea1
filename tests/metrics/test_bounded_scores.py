"""The known errors of float32 scores, and the extremes that they leave certain, against float64."""

import numpy as np
import pytest
import torch

import ncollapse as nc
from metrics.test_many_classes import send_to_float32
from ncollapse.metrics import bounded_scores
from ncollapse.metrics.products import Products
from ncollapse.metrics.rows import Rows

CASES = {  # sizes of features and weights, and what all of them have in common
    "ordinary": (1.0, 1.0, 0.0, 0.0),
    "large features": (1e4, 1.0, 0.0, 0.0),
    "small features": (1e-4, 1.0, 0.0, 0.0),
    "large weights": (1.0, 1e5, 0.0, 0.0),
    "features with an offset": (1.0, 1.0, 300.0, 0.0),
    "weights with an offset": (1.0, 1.0, 0.0, 300.0),
    "both with an offset": (1e2, 1.0, 1e4, 30.0),
}


def draw(case, samples=120, classes=15, dim=6):
    size, width, common, shared = CASES[case]
    rng = np.random.default_rng(3)
    labels, sizes = np.arange(samples) % classes, 10.0 ** rng.uniform(-2, 0, size=(samples, 1))
    features = size * sizes * rng.normal(size=(samples, dim)) + common
    return features, labels, width * rng.normal(size=(classes, dim)) + shared


@pytest.mark.parametrize("case", CASES)
def test_no_float32_score_is_off_by_more_than_its_bound(case, monkeypatch):
    """Of every score that the extremes are sought among; and the bound is of the size of float32 rounding."""
    send_to_float32(monkeypatch)
    features, labels, weight = draw(case)
    seen, scales, add, negatives = [], [], bounded_scores._Extreme.add, bounded_scores.BoundedScores._add_negatives

    def watch(extreme, scores, bound, x):
        seen.append((scores.double().numpy().copy(), bound.numpy().copy()))
        add(extreme, scores, bound, x)

    def note(self, *arguments):
        scales.append(self.negatives.scale)
        negatives(self, *arguments)

    monkeypatch.setattr(bounded_scores._Extreme, "add", watch)
    monkeypatch.setattr(bounded_scores.BoundedScores, "_add_negatives", note)
    m = nc.measure(features, labels, weight, None)
    exact, own = features @ weight.T, np.eye(len(weight), dtype=bool)[labels]
    assert len(seen) == 2
    for scores, bound in seen:
        off = np.abs(scores - scales[0] * exact)[~own].reshape(len(exact), -1).max(axis=1)
        assert (off <= bound).all()
        assert (off > 0).any()
        most = np.linalg.norm(features, axis=1) * np.linalg.norm(weight, axis=1).max()
        mean = np.abs(features.mean(axis=0)) @ np.abs(weight).max(axis=0)
        assert (bound <= 100 * 2**-24 * scales[0] * (3 * most + 3 * mean)).all()
    rounding = 1e-14 * np.abs(features).max() * np.abs(weight).max() * 6
    assert m.negative_score.max == pytest.approx(exact[~own].max(), rel=1e-12, abs=rounding)
    assert m.negative_score.min == pytest.approx(exact[~own].min(), rel=1e-12, abs=rounding)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("tile", [1, 1 << 21])
def test_extremes_are_those_of_float64_where_float32_cannot_tell(sign, tile, monkeypatch):
    """Hundreds of scores nearer to the largest than float32 rounding, of features that have nothing else in common."""
    send_to_float32(monkeypatch)
    monkeypatch.setattr(bounded_scores, "SCORES", tile)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        weight, labels = 0.01 * rng.normal(size=(20, 16)), np.arange(400) % 20
        weight[0] = sign * rng.normal(size=16)
        along = weight[0] / (weight[0] @ weight[0])
        features = 3 * rng.normal(size=(400, 16))
        features += ((5 + 1e-7 * rng.random(400)) * sign - features @ weight[0])[:, None] * along
        exact, own = features @ weight.T, np.eye(20, dtype=bool)[labels]
        others = sign * exact[~own]
        rounded = sign * (features.astype(np.float32) @ weight.T.astype(np.float32))[~own]
        assert others[rounded.argmax()] < others.max() - 1e-9, "float32 picks another one"
        m = nc.measure(features, labels, weight, None)
        found = m.negative_score.max if sign > 0 else -m.negative_score.min
        assert found == pytest.approx(others.max(), rel=1e-12)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("size", [0.0, 1e-3, 1e-2, 1.0])
def test_the_extreme_is_found_whatever_errors_the_bounds_allow(sign, size):
    """The worst of them: the extreme score is off by its whole bound one way, and all others the other way."""
    g = torch.Generator().manual_seed(0)
    for _ in range(20):
        x, weight = (torch.randn(n, 3, generator=g, dtype=torch.float64) for n in (9, 6))
        exact = x @ weight.T
        bound = size * torch.rand(9, generator=g, dtype=torch.float64)
        off = sign * bound[:, None].expand(9, 6).clone()
        off[sign * exact == (sign * exact).max()] *= -1
        extreme = bounded_scores._Extreme(sign, Products(Rows(weight)), x.device)
        for part in (slice(0, 4), slice(4, 9)):
            extreme.add((exact + off)[part].float(), bound[part] + 1e-6, x[part])
        assert float(sign * extreme.value) == pytest.approx(float((sign * exact).max()), rel=1e-14)


def test_a_score_without_an_error_is_found():
    x, weight = torch.tensor([[1.0, 2.0]], dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    for sign, expected in ((1.0, 2.0), (-1.0, 1.0)):
        extreme = bounded_scores._Extreme(sign, Products(Rows(weight)), x.device)
        extreme.add(x.float(), torch.zeros(1, dtype=torch.float64), x)
        assert float(extreme.value) == expected
