"""The targets of mixup, CutMix and label smoothing, as a law that treats all classes alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ncollapse.losses.special import betainc

Array = NDArray[np.float64]
FINE = 4096  # cells into which the continuous law of mixup is divided before it is summarised by levels


@dataclass(frozen=True)
class Mixing:
    """A distribution of target rows that is symmetric under permutations of K classes.

    Level l has three target values: `own` of a class i, `partner` of a second class j, and `other` of the K - 2
    remaining classes. It has the probability `probabilities[l]`, spread evenly over the ordered pairs (i, j). The first
    level is that of an unmixed image: partner and other are equal.

    >>> Mixing.of_shares(10, [1.0, 0.7], [0.5, 0.5], label_smoothing=0.1).own
    (0.91, 0.64)
    """

    num_classes: int
    own: tuple[float, ...]
    partner: tuple[float, ...]
    other: tuple[float, ...]
    probabilities: tuple[float, ...]

    def __post_init__(self) -> None:
        columns = [np.asarray(values, dtype=np.float64) for values in (self.own, self.partner, self.other)]
        chances = np.asarray(self.probabilities, dtype=np.float64)
        if self.num_classes < 2:
            raise ValueError(f"num_classes: expected at least 2, got {self.num_classes}")
        if len({len(chances), *map(len, columns)}) != 1 or len(chances) == 0:
            raise ValueError("own, partner, other and probabilities: expected as many numbers in each, at least one")
        if not all(np.isfinite(part).all() and (part >= 0).all() for part in (*columns, chances)):
            raise ValueError("own, partner, other and probabilities: expected finite numbers that are not negative")
        if not math.isclose(chances.sum(), 1.0, rel_tol=1e-9):
            raise ValueError(f"probabilities: expected a sum of 1, got {chances.sum():g}")
        if columns[1][0] != columns[2][0]:
            raise ValueError("partner[0]: expected the value of other[0], as the first level is unmixed")
        for name, part in zip(("own", "partner", "other", "probabilities"), (*columns, chances)):
            object.__setattr__(self, name, tuple(part.tolist()))

    @classmethod
    def of_shares(
        cls, num_classes: int, shares: Sequence[float], probabilities: Sequence[float], label_smoothing: float = 0.0
    ) -> Mixing:
        """The law in which the own class has the share s and the partner 1 - s, smoothed; the first share must be 1."""
        s = np.asarray(shares, dtype=np.float64)
        if len(s) == 0 or s[0] != 1.0 or not ((s >= 0) & (s <= 1)).all():
            raise ValueError(f"shares: expected numbers in [0, 1] that begin with 1, got {list(shares)}")
        rest = label_smoothing / num_classes
        own, partner, other = (
            tuple(((1 - label_smoothing) * part + rest).tolist()) for part in (s, 1 - s, np.zeros_like(s))
        )
        return cls(num_classes, own, partner, other, tuple(float(p) for p in probabilities))

    @property
    def rows(self) -> Array:
        """One target row for each level [L, K], with class 0 as the own class and class 1 as the partner."""
        table = np.repeat(np.array(self.other)[:, None], self.num_classes, axis=1)
        table[:, 0], table[:, 1] = self.own, self.partner
        return table

    def enumerate(self) -> tuple[Array, Array]:
        """All target rows [G, K] and their probabilities [G], for small K."""
        k = self.num_classes
        targets, chances = [], []
        for row, chance in zip(self.rows, self.probabilities):
            plain = row[1] == row[-1]  # always for K = 2, where every class has one partner
            pairs = [(i, (i + 1) % k) for i in range(k)] if plain else [(i, j) for i in range(k) for j in range(k)]
            pairs = [(i, j) for i, j in pairs if i != j]
            for i, j in pairs:
                target = np.full(k, row[-1])
                target[i], target[j] = row[0], row[1]
                targets.append(target)
                chances.append(chance / len(pairs))
        return np.array(targets), np.array(chances)

    def merge(self, partner_share: float) -> Mixing:
        """The law for a network to which mixes look unmixed if the partner has less than this share.

        Samples that share a feature have the loss of their mean target, up to a constant, for every loss that is affine
        in the target (CE, BCE). So the levels whose partner has less than `partner_share` of the target join the first
        one, with the mean of their rows over the partners.
        """
        if not 0 <= partner_share <= 1:
            raise ValueError(f"partner_share: expected a number in [0, 1], got {partner_share}")
        own, partner, other, chances = (
            np.array(part) for part in (self.own, self.partner, self.other, self.probabilities)
        )
        spread = own + partner - 2 * other  # what the two classes have beyond the smoothing
        share = np.where(spread > 0, (partner - other) / np.where(spread > 0, spread, 1.0), 0.0)
        joined = share < partner_share
        joined[0] = True
        if joined.sum() == 1:
            return self
        weight = chances[joined]
        total = float(weight.sum())
        mean_own = float(weight @ own[joined]) / total
        rest = partner[joined] + (self.num_classes - 2) * other[joined]
        mean_rest = float(weight @ rest) / total / (self.num_classes - 1)
        parts = [
            np.concatenate([[first], part[~joined]])
            for first, part in zip((mean_own, mean_rest, mean_rest, total), (own, partner, other, chances))
        ]
        return Mixing(self.num_classes, *(tuple(part.tolist()) for part in parts))


def mixing_law(
    num_classes: int,
    *,
    mixup: float = 0.0,
    cutmix: float = 0.0,
    mix_probability: float = 1.0,
    switch_probability: float = 0.5,
    label_smoothing: float = 0.0,
    image_size: int = 32,
    levels: int = 24,
) -> Mixing:
    """The law of the targets under mixup and CutMix with balanced classes, as `data.Augment` draws them.

    mixup, cutmix: the alpha of Beta(alpha, alpha), 0 for none. A partner is of the same class with probability 1/K, and
    such a mix counts as unmixed. The continuous law of the share is summarised by `levels` classes of equal
    probability, each with its mean share. CutMix's box is that of an image of `image_size` pixels, clipped at the
    border.

    >>> law = mixing_law(10, mixup=0.8, cutmix=1.0, label_smoothing=0.1, levels=3)
    >>> [round(value, 3) for value in law.own], [round(p, 3) for p in law.probabilities]
    ([0.91, 0.536, 0.685, 0.839], [0.102, 0.299, 0.299, 0.299])
    """
    mixes = mix_probability if mixup > 0 or cutmix > 0 else 0.0
    switch = 1.0 if mixup <= 0 else 0.0 if cutmix <= 0 else switch_probability
    shares, chances = [np.ones(0)], [np.ones(0)]
    if mixes and switch < 1:
        edges = np.linspace(0.0, 1.0, FINE + 1)
        shares.append((edges[1:] + edges[:-1]) / 2)
        chances.append((1 - switch) * np.diff(betainc(mixup, mixup, edges)))
    if mixes and switch > 0:
        found = _cutmix_shares(cutmix, image_size)
        shares.append(found[0])
        chances.append(switch * found[1])
    share, chance = np.concatenate(shares), mixes * np.concatenate(chances)
    share = np.maximum(share, 1 - share)  # (i, j, s) and (j, i, 1 - s) are the same target
    whole = share == 1.0
    apart = 1 - 1 / num_classes
    pure = 1 - mixes + float(chance.sum()) / num_classes + float(chance[whole].sum()) * apart
    share, chance = share[~whole], chance[~whole] * apart
    order = np.argsort(share, kind="stable")
    share, chance = share[order], chance[order]
    if not chance.sum() > 0:
        return Mixing.of_shares(num_classes, [1.0], [1.0], label_smoothing)
    cell = np.minimum((np.cumsum(chance) - chance / 2) / chance.sum() * levels, levels - 1).astype(int)
    weight = np.bincount(cell, chance, levels)
    kept = weight > 0
    means = np.bincount(cell, chance * share, levels)[kept] / weight[kept]
    weights = np.concatenate([[pure], weight[kept]])
    return Mixing.of_shares(num_classes, [1.0, *means], list(weights / weights.sum()), label_smoothing)


def _cutmix_shares(alpha: float, size: int) -> tuple[Array, Array]:
    """The shares of the image outside the box, and their probabilities.

    The box has half sides of h = floor(sqrt(1 - lambda) size) // 2 pixels, lambda ~ Beta(alpha, alpha), and a centre
    that is uniform in each direction; it is clipped at the border.
    """
    half = np.arange(size // 2 + 1)
    edges = np.minimum(2.0 * np.arange(size // 2 + 2) / size, 1.0) ** 2
    chance = np.diff(betainc(alpha, alpha, edges))
    chance[-1] += 1.0 - chance.sum()
    centre = np.arange(size)
    shares, chances = [], []
    for h, p in zip(half, chance):
        side, times = np.unique(np.minimum(centre + h, size) - np.maximum(centre - h, 0), return_counts=True)
        shares.append(1.0 - np.outer(side, side).ravel() / size**2)
        chances.append(p * np.outer(times, times).ravel() / size**2)
    return np.concatenate(shares), np.concatenate(chances)
