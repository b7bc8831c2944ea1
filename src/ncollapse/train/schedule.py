"""The learning rate of each epoch."""

from __future__ import annotations

import math

from ncollapse.train.recipe import Recipe


def rate_at(recipe: Recipe, epoch: int) -> float:
    """The rate during epoch `epoch`, counted from 1.

    step: rate * factor^(milestones passed); cosine and restarts: min + (rate - min) (1 + cos(pi t / T)) / 2, where t
    epochs of the T are done. With a lag they count from so many epochs later.

    >>> from ncollapse.train import recipes
    >>> setting = recipes.get("bce-vs-ce/setting-1")
    >>> [rate_at(setting, epoch) for epoch in (31, 32, 62)]
    [0.01, 0.002, 0.0004]
    """
    rate, spec = recipe.optim.rate, recipe.schedule
    done = max(epoch - 1 - spec.lag, 0)
    if spec.name == "step":
        if spec.milestones:
            passed = sum(done >= milestone for milestone in milestones(recipe))
        else:
            passed = done // (spec.period or recipe.optim.epochs)
        return float(f"{rate * spec.factor**passed:.12g}")
    if spec.name in ("cosine", "restarts"):
        period = spec.period if spec.name == "restarts" and spec.period else recipe.optim.epochs
        return spec.min_lr + (rate - spec.min_lr) * (1 + math.cos(math.pi * (done % period) / period)) / 2
    return rate


def milestones(recipe: Recipe) -> tuple[int, ...]:
    """The milestones in epochs: those below 1 are shares of all epochs, rounded down."""
    return tuple(int(m * recipe.optim.epochs + 1e-9) if m < 1 else int(m) for m in recipe.schedule.milestones)
