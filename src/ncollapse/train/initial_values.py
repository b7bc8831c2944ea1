"""How much of its initial values a run keeps, where the loss does not see them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from ncollapse.train.schedule import rate_at

if TYPE_CHECKING:
    from ncollapse.train.recipe import Recipe

BLIND_TO_SHIFTS = ("ce", "focal", "ls")
"""Losses that do not change if one number is added to all scores."""


def share_left(recipe: Recipe, part: Literal["weight", "bias"], samples: int | None = None) -> float | None:
    """The share that is left of the mean over the classes of the initial weights or biases, at the end of training.

    None where that depends on the data: for losses that see the mean of the scores, and optimisers other than SGD.

    Args:
        recipe: what is trained.
        part: the rows of W, or b.
        samples: how many there are in training; what the data set has, if it is known by name.

    >>> from ncollapse.train import recipes
    >>> setting = recipes.get("bce-vs-ce/setting-1", loss="ce", data="mnist")
    >>> round(share_left(setting, "bias"), 4)
    0.4107
    """
    return share_unseen(recipe, part, samples) if recipe.loss.name in BLIND_TO_SHIFTS else None


def share_unseen(recipe: Recipe, part: Literal["weight", "bias"], samples: int | None = None) -> float | None:
    """The share that SGD leaves of what no loss sees, such as the part of W orthogonal to all features.

    None for optimisers other than SGD, where clipped gradients hold a decay of the loss, and where it is not known how
    many samples there are.
    """
    from ncollapse.theory import decay_alone
    from ncollapse.train.theory import count_samples

    samples = samples or count_samples(recipe.data)
    in_the_loss = getattr(recipe.decays, part)
    if recipe.optim.name != "sgd" or samples is None or (recipe.optim.clip_norm is not None and in_the_loss > 0):
        return None
    steps = math.ceil(samples / recipe.optim.batch_size)
    epochs = range(1, recipe.optim.epochs + 1)
    rates = [rate_at(recipe, epoch) for epoch in epochs]
    decays = [recipe.optim.weight_decay + getattr(recipe.decays.at(epoch), part) for epoch in epochs]
    return decay_alone(rates, decays, recipe.optim.momentum, steps=steps)
