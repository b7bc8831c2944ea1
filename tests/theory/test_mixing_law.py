"""The law of mixed targets against exact moments: pixels counted for CutMix, Beta's own moments for mixup."""

import math

import numpy as np
import pytest

from ncollapse.theory import Mixing, mixing_law

K = 5


def count_boxes(size):
    """Mean and mean square of max(s, 1 - s), and the chance that it is 1, s the share outside a box of CutMix.

    lambda is uniform (alpha = 1) on a fine grid, every centre is as likely, and pixels are counted one by one.
    """
    grid = 20_000
    sizes = [int(math.sqrt(1 - (i + 0.5) / grid) * size) // 2 for i in range(grid)]
    first = second = whole = 0.0
    for half in set(sizes):
        chance = sizes.count(half) / grid
        for row in range(size):
            for column in range(size):
                covered = sum(
                    row - half <= i < row + half and column - half <= j < column + half
                    for i in range(size)
                    for j in range(size)
                )
                share = 1 - covered / size**2
                share = max(share, 1 - share)
                first += chance * share / size**2
                second += chance * share**2 / size**2
                whole += chance * (share == 1) / size**2
    return first, second, whole


# Beta(1, 1) is uniform, Beta(1/2, 1/2) the arcsine law: |2s - 1| has the means 1/2 and 2/pi, its square 1/3 and 1/2
BLENDS = {1.0: (3 / 4, 7 / 12, 0.0), 0.5: (0.5 + 1 / math.pi, (1.5 + 4 / math.pi) / 4, 0.0)}


def check(law, mixed, moments):
    """`mixed`: the chance of a mix. A partner of the same class, one time in K, leaves the target unmixed."""
    first, second, whole = moments
    chances, own = np.array(law.probabilities), np.array(law.own)
    apart = mixed * (1 - 1 / K)
    assert chances.sum() == pytest.approx(1, abs=1e-12)
    assert chances[0] == pytest.approx(1 - apart + apart * whole, abs=2e-4)
    assert chances @ own == pytest.approx(1 - apart + apart * first, abs=2e-4)
    assert chances @ own**2 == pytest.approx(1 - apart + apart * second, abs=2e-4)
    assert np.array(law.partner[1:]) == pytest.approx(1 - own[1:], abs=1e-12)
    assert (law.own[0], law.partner[0], set(law.other)) == (1.0, 0.0, {0.0})


@pytest.mark.parametrize("size", [6, 7])
def test_cutmix_is_the_law_of_its_boxes(size):
    check(mixing_law(K, cutmix=1.0, image_size=size, mix_probability=0.8, levels=4000), 0.8, count_boxes(size))


@pytest.mark.parametrize("alpha", BLENDS)
def test_mixup_has_the_moments_of_beta(alpha):
    check(mixing_law(K, mixup=alpha, mix_probability=0.6, levels=4000), 0.6, BLENDS[alpha])


def test_both_are_drawn_with_the_switch_probability():
    law = mixing_law(K, mixup=0.5, cutmix=1.0, image_size=6, switch_probability=0.3, levels=4000)
    boxes = count_boxes(6)
    check(law, 1.0, [0.3 * box + 0.7 * blend for box, blend in zip(boxes, BLENDS[0.5])])


def test_levels_are_of_equal_chance_and_keep_the_mean():
    fine, coarse = (mixing_law(K, mixup=1.0, levels=levels) for levels in (4000, 4))
    assert coarse.probabilities[1:] == pytest.approx([0.8 / 4] * 4, abs=1e-4)
    assert coarse.own[1:] == pytest.approx([0.5625, 0.6875, 0.8125, 0.9375], abs=3e-4)  # quarters of [1/2, 1]
    means = [np.dot(law.own, law.probabilities) for law in (fine, coarse)]
    assert means[0] == pytest.approx(means[1], rel=1e-12)


@pytest.mark.parametrize("k", [2, 3, 4])
def test_all_rows_are_the_ordered_pairs_of_classes(k):
    law = Mixing.of_shares(k, [1.0, 0.7], [0.4, 0.6], label_smoothing=0.1)
    wanted = {}
    for i in range(k):
        for j in range(k):
            if i != j:
                for share, chance in ((1.0, 0.4), (0.7, 0.6)):
                    row = [0.1 / k] * k
                    row[i] += 0.9 * share
                    row[j] += 0.9 * (1 - share)
                    row = tuple(round(value, 12) for value in row)
                    wanted[row] = wanted.get(row, 0.0) + chance / (k * (k - 1))
    found = {}
    for row, chance in zip(*law.enumerate()):
        row = tuple(round(value, 12) for value in row.tolist())
        found[row] = found.get(row, 0.0) + chance
    assert found == pytest.approx(wanted, abs=1e-12)
