"""On a GPU `measure` and `certify` give the numbers of a CPU, whose code the other tests compare with loops."""

import pytest
import torch

import ncollapse as nc
from metrics.test_invariance import PER_CLASS, assert_same

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def draw(classes, dim, samples, spread, dtype=torch.float32, offset=0.0):
    g = torch.Generator().manual_seed(classes + dim)
    labels = torch.cat([torch.arange(classes), torch.randint(classes, (samples - classes,), generator=g)])
    means = torch.randn(classes, dim, generator=g)
    features = (means[labels] + spread * torch.randn(samples, dim, generator=g) + offset).to(dtype)
    return features, labels, torch.randn(classes, dim, generator=g), torch.randn(classes, generator=g)


CASES = {
    "few classes": draw(10, 64, 3000, 0.5),
    "collapsed": draw(10, 64, 3000, 1e-6, torch.float64),
    "far from zero": draw(10, 32, 2000, 0.1, torch.float64, offset=1e4),
    "bfloat16": draw(10, 128, 3000, 0.5, torch.bfloat16),
    "more classes than dimensions": draw(100, 16, 4000, 0.5),
    "many classes": draw(3000, 64, 20_000, 0.3),
}


@pytest.mark.parametrize("case", CASES)
def test_a_gpu_measures_what_a_cpu_does(case):
    there = [tensor.cuda() for tensor in CASES[case]]
    options = {"tolerance": 1e-9}
    if len(CASES[case][2]) > 1000:  # quantiles of millions of scores are read off a histogram
        options = {"tolerance": 1e-7, "skip": PER_CLASS}
    assert_same(nc.measure(*there), nc.measure(*CASES[case]), **options)


@pytest.mark.parametrize("place", [0, 7, -1])
def test_one_sample_far_away_is_the_same_anywhere(place):
    features, labels, weight, bias = (tensor.clone() for tensor in CASES["few classes"])
    features = features.double()
    features[place] *= 1e7
    on_cpu = nc.measure(features, labels, weight, bias)
    assert_same(nc.measure(*(t.cuda() for t in (features, labels, weight, bias))), on_cpu, tolerance=1e-7)


def test_batches_and_samples_that_are_zero():
    features, labels, weight, bias = CASES["few classes"]
    features = torch.where(torch.arange(len(features))[:, None] % 50 == 3, 0.0, features.relu())
    whole = nc.measure(features, labels, weight, bias)
    batches = list(zip(features.cuda().split(700), labels.cuda().split(700)))
    assert_same(nc.measure(batches, weight=weight.cuda(), bias=bias.cuda()), whole, tolerance=1e-9)
    assert whole.accuracy > 0


def test_a_certificate_is_that_of_a_cpu():
    problem = nc.Problem(loss="bce", num_classes=10, per_class=12.8, weight_decay=5e-4, feature_decay=5e-4)
    arrays = CASES["few classes"]
    there, here = (nc.certify(*part, problem=problem) for part in ([t.cuda() for t in arrays], arrays))
    assert there.objective == pytest.approx(here.objective, rel=1e-9)
    assert there.lower_bound == pytest.approx(here.lower_bound, rel=1e-9)
    assert there.gap > 0
