"""From a recipe to the theory's problem: which optimum this run heads for, where theory knows one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ncollapse.theory import Problem
    from ncollapse.train.recipe import Recipe

BALANCED_UP_TO = 1.5
"""Class counts within this ratio count as balanced: MNIST's differ by 1.24, which moves the optimal |W|^2 by 0.05 %."""


def pose(
    recipe: Recipe,
    num_classes: int | None,
    class_counts: tuple[int, ...] | None,
    features: Literal["free", "relu"] | None,
) -> Problem | None:
    """See `Recipe.problem`."""
    from ncollapse.theory import Problem

    decays, model = recipe.decays, recipe.model
    if not (decays.weight > 0 and decays.feature > 0) or recipe.optim.weight_decay > 0:
        return None
    if model.head != "linear" or recipe.augment.soft_targets:
        return None
    counts = class_counts or recipe.data.per_class_counts
    classes = num_classes or (len(counts) if counts else count_classes(recipe.data.name))
    if classes is None or (counts and min(counts) == 0):
        return None
    imbalanced = counts is not None and max(counts) > BALANCED_UP_TO * min(counts)
    return Problem(
        recipe.loss.make(),
        classes,
        weight_decay=decays.weight,
        feature_decay=decays.feature,
        bias_decay=decays.bias,
        batch_size=recipe.optim.batch_size,
        class_counts=counts if imbalanced else None,
        dim=model.feature_dim_linear or model.feature_dim,
        bias=model.bias,
        features=features or guess_features(recipe),
    )


def count_classes(name: str) -> int | None:
    """How many classes a data set known by name has."""
    from ncollapse.data import INFO

    return INFO[name].num_classes if name in INFO else None


def guess_features(recipe: Recipe) -> Literal["free", "relu"]:
    """Non-negative where the network ends in ReLU and pooling; free behind a linear projection or a transformer."""
    linear = recipe.model.feature_dim_linear is not None or "vit" in recipe.model.name
    return "free" if linear else "relu"
