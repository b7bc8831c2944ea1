"""What `certify` reads: the objective from its definition, of soft targets, with an offset, and decays of batches."""

import math

import numpy as np
import pytest
from scipy.special import logsumexp

import ncollapse as nc

DECAYS = {"weight_decay": 5e-3, "feature_decay": 2e-2, "bias_decay": 0.3}


def draw(seed=0, samples=12, classes=3, dim=5):
    rng = np.random.default_rng(seed)
    h, w, b = rng.normal(size=(samples, dim)), rng.normal(size=(classes, dim)), rng.normal(size=classes)
    y = np.arange(samples) % classes
    targets = 0.7 * np.eye(classes)[y] + 0.3 * np.eye(classes)[(y + 1) % classes]
    return h, y, targets, w, b


def lose(loss, z, t):
    """The loss of each sample from its definition."""
    if loss == "ce":
        return t.sum(axis=1) * logsumexp(z, axis=1) - (t * z).sum(axis=1)
    if loss == "bce":
        return (t * np.logaddexp(0, -z) + (1 - t) * np.logaddexp(0, z)).sum(axis=1)
    return ((z - t) ** 2).sum(axis=1) / 2


def cost(h, w, b, share):
    """The decays, the feature decay as that of `share` batches of all samples."""
    squares = [np.sum(part**2) for part in (w, h, b)]
    return 0.5 * (5e-3 * squares[0] + 2e-2 * share * squares[1] + 0.3 * squares[2])


@pytest.mark.parametrize("loss", ["ce", "bce", "mse"])
@pytest.mark.parametrize("offset", [None, (0.5, -1.0, 2.0)])
def test_the_objective_of_soft_targets_is_that_of_the_definition(loss, offset):
    h, _, targets, w, b = draw()
    c = nc.certify(h, targets, w, b, nc.Problem(loss, 3, batch_size=12, logit_offset=offset, **DECAYS))
    z = h @ w.T - b + (0 if offset is None else np.array(offset))
    assert c.objective == pytest.approx(lose(loss, z, targets).mean() + cost(h, w, b, 1), rel=1e-12)
    assert 0 < c.lower_bound < c.objective


@pytest.mark.parametrize("loss", ["ce", "bce", "mse"])
@pytest.mark.parametrize("batch", [12, 6, 3])
def test_a_decay_of_batches_is_spread_over_all_samples(loss, batch):
    """One batch of all samples pays for each of them; of smaller ones the decay of a sample counts as much less."""
    h, _, _, w, b = draw(samples=36)
    y = np.repeat(np.arange(3), (18, 12, 6))  # no two classes are alike, so that nothing is averaged over them
    problem = nc.Problem(loss, 3, batch_size=batch, **DECAYS)
    c, soft = nc.certify(h, y, w, b, problem), nc.certify(h, np.eye(3)[y], w, b, problem)
    expected = lose(loss, h @ w.T - b, np.eye(3)[y]).mean() + cost(h, w, b, batch / 36)
    assert c.objective == pytest.approx(expected, rel=1e-12)
    assert soft.objective == pytest.approx(expected, rel=1e-12)
    assert soft.lower_bound == pytest.approx(c.lower_bound, rel=1e-9), "class labels as targets"


def test_without_a_size_the_samples_given_are_one_batch():
    h, y, targets, w, b = draw()
    for labels, t in ((y, np.eye(3)[y]), (targets, targets)):
        c = nc.certify(h, labels, w, b, loss="bce", **DECAYS)
        expected = lose("bce", h @ w.T - b, t).mean() + cost(h, w, b, 1)
        assert c.objective == pytest.approx(expected, rel=1e-12)


def test_soft_targets_have_a_row_for_each_sample():
    h, _, targets, w, b = draw()
    problem = nc.Problem("ce", 3, batch_size=12, **DECAYS)
    for wrong in (targets[:-1], targets[:, :2]):
        with pytest.raises(ValueError, match=r"labels: expected soft targets \[12, 3\], got \[1[12], [23]\]"):
            nc.certify(h, wrong, w, b, problem)
    targets[0, 0] = math.nan
    with pytest.raises(ValueError, match="features and labels: expected finite values"):
        nc.certify(h, targets, w, b, problem)
