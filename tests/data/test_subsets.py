"""Subsets have the counts they promise, are seeded, and say how they were drawn."""

import pytest
import torch

from ncollapse.data import (
    load,
    long_tail,
    per_class_counts,
    random_labels,
    samples_per_class,
    step_imbalance,
    validation_split,
)
from ncollapse.data.subsets import long_tail_counts, step_counts


@pytest.fixture(scope="module")
def digits():
    return load("digits")


def keys(dataset):
    return {tuple(image.flatten().tolist()) for image in dataset.images}


def test_counts_are_met_and_samples_are_the_old_ones(digits):
    counts = (100, 100, 20, 20, 30, 30, 40, 40, 50, 0)
    subset = per_class_counts(digits, counts, seed=3)
    assert subset.counts() == counts
    assert keys(subset) <= keys(digits)
    assert len(keys(subset)) == sum(counts)
    assert subset.record[-1] == {"draw": "per_class_counts", "counts": list(counts), "seed": 3}
    again, other = per_class_counts(digits, counts, seed=3), per_class_counts(digits, counts, seed=4)
    assert torch.equal(subset.images, again.images)
    assert not torch.equal(subset.images, other.images)


@pytest.mark.parametrize(
    ("classes", "most", "factor", "total"),
    [(100, 500, 100, 10847), (100, 500, 50, 12608), (100, 500, 10, 19573), (10, 5000, 100, 12406)],
)
def test_long_tails_have_the_published_sizes(classes, most, factor, total):
    counts = long_tail_counts(classes, most, factor)
    assert sum(counts) == total
    assert counts[0] == most
    assert counts[-1] == most // factor


def test_long_tail_and_step_of_real_data(digits):
    least = min(digits.counts())
    assert long_tail(digits, 10).counts() == long_tail_counts(10, least, 10)
    assert step_imbalance(digits, 10, 0.3).counts() == (least,) * 7 + (least // 10,) * 3
    assert step_counts(10, 5000, 100, 0.5) == (5000,) * 5 + (50,) * 5
    assert samples_per_class(digits, 12).counts() == (12,) * 10


def test_without_a_seed_the_first_samples_of_each_class_are_kept(digits):
    kept = long_tail(digits, 10, seed=None)
    assert kept.counts() == long_tail(digits, 10, seed=0).counts()
    seen = dict.fromkeys(range(10), 0)
    wanted = []
    for place, label in enumerate(digits.labels.tolist()):
        seen[label] += 1
        if seen[label] <= kept.counts()[label]:
            wanted.append(place)
    assert torch.equal(kept.images, digits.images[wanted])
    assert torch.equal(kept.labels, digits.labels[wanted])
    assert not torch.equal(long_tail(digits, 10, seed=0).images, kept.images)
    assert kept.record[-1]["seed"] is None


def test_validation_is_stratified_and_disjoint(digits):
    rest, held = validation_split(digits, 0.1, seed=1)
    assert held.split == "validation"
    assert held.counts() == tuple(round(0.1 * count) for count in digits.counts())
    assert len(rest) + len(held) == len(digits)
    assert not keys(rest) & keys(held)
    assert rest.record[-1]["part"] == "rest"


def test_random_labels_keep_counts_and_lose_meaning(digits):
    shuffled = random_labels(digits, seed=2)
    assert shuffled.counts() == digits.counts()
    assert torch.equal(shuffled.images, digits.images)
    assert float((shuffled.labels == digits.labels).float().mean()) < 0.15
    assert shuffled.record[-1] == {"draw": "random_labels", "seed": 2}


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda data: per_class_counts(data, [1, 2]), "counts: expected 10 numbers"),
        (lambda data: per_class_counts(data, [1000] + [1] * 9), r"counts\[0\]: expected a value in 0..142"),
        (lambda data: per_class_counts(data, [2, 1.5] + [1] * 8), r"counts\[1\]: expected a whole number, got 1.5"),
        (lambda data: per_class_counts(data, "1234567890"), r"counts\[0\]: expected a whole number, got '1'"),
        (lambda data: per_class_counts(data, [0] * 10), "counts: no sample is kept"),
        (lambda data: samples_per_class(data, 2.5), "count: expected a whole number, got 2.5"),
        (lambda data: samples_per_class(data, 0), "count: expected at least 1, got 0"),
        (lambda data: long_tail(data, 0.5), "factor"),
        (lambda data: step_imbalance(data, float("nan")), "ratio"),
        (lambda data: validation_split(data, 1.0), "fraction"),
        (lambda data: validation_split(data, 0.001), "fraction: 0.001 of each class, rounded, leaves one part without"),
    ],
)
def test_impossible_subsets_are_refused(digits, call, match):
    with pytest.raises(ValueError, match=match):
        call(digits)


def test_what_is_not_said_is_seed_zero_and_half_of_the_classes(digits):
    least = min(digits.counts())
    assert step_imbalance(digits, 10).counts() == (least,) * 5 + (least // 10,) * 5
    for made, same in (
        (step_imbalance(digits, 10), step_imbalance(digits, 10, 0.5, seed=0)),
        (long_tail(digits, 10), long_tail(digits, 10, seed=0)),
        (samples_per_class(digits, 9), samples_per_class(digits, 9, seed=0)),
        (random_labels(digits), random_labels(digits, seed=0)),
        (validation_split(digits)[1], validation_split(digits, 0.1, seed=0)[1]),
    ):
        assert torch.equal(made.images, same.images)
        assert torch.equal(made.labels, same.labels)


def test_long_tails_by_hand():
    assert long_tail_counts(1, 7, 10) == (7,)
    assert long_tail_counts(3, 400, 16) == (400, 100, 25)
    assert step_counts(5, 100, 8, 0.4) == (100, 100, 100, 12, 12)


@pytest.mark.parametrize("fraction", [0.001, 0.999])
def test_no_part_of_a_split_is_empty(digits, fraction):
    few = samples_per_class(digits, 4)
    message = f"fraction: {fraction} of each class, rounded, leaves one part without samples"
    with pytest.raises(ValueError, match=message):
        validation_split(few, fraction)
    rest, held = validation_split(few, 0.25)
    assert (rest.counts(), held.counts()) == ((3,) * 10, (1,) * 10)
