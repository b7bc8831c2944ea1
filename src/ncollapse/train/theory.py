"""From a recipe to the theory's problem: which optimum this run heads for, where theory knows one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from ncollapse.theory import Mixing, Problem
    from ncollapse.train.recipe import DataSpec, Recipe

BALANCED_UP_TO = 1.5
"""Class counts within this ratio count as balanced: MNIST's differ by 1.24, which moves the optimal |W|^2 by 0.05 %."""


class Decays(NamedTuple):
    """The decays of the last layer's problem."""

    weight: float
    feature: float
    bias: float


def pose(
    recipe: Recipe,
    num_classes: int | None,
    class_counts: tuple[int, ...] | None,
    features: Literal["free", "relu"] | None,
    samples: int | None = None,
    dim: int | None = None,
    feature_energy: float | None = None,
) -> Problem | None:
    """See `Recipe.problem`."""
    from ncollapse.theory import Problem, fix_feature_energy

    decays, model = read_decays(recipe, feature_energy is not None), recipe.model
    if decays is None or model.head != "linear":
        return None
    counts = class_counts or recipe.data.per_class_counts
    classes = num_classes or (len(counts) if counts else count_classes(recipe.data.name))
    if classes is None or (counts and sum(count > 0 for count in counts) < 2):
        return None
    samples = samples or (sum(class_counts) if class_counts else None)
    imbalanced = counts is not None and max(counts) > BALANCED_UP_TO * min(counts)
    if recipe.augment.soft_targets and imbalanced:  # the law of mixed targets is that of balanced classes
        return None
    problem = Problem(
        recipe.loss.make(),
        classes,
        weight_decay=decays.weight,
        feature_decay=decays.feature,
        bias_decay=decays.bias,
        batch_size=recipe.optim.batch_size if samples is None else mean_batch(samples, recipe.optim.batch_size),
        class_counts=counts if imbalanced else None,
        dim=dim or model.feature_dim_linear or model.feature_dim,
        bias=model.bias,
        features=features or guess_features(recipe),
        mixing=find_mixing(recipe, classes) if recipe.augment.soft_targets else None,
    )
    return problem if feature_energy is None else fix_feature_energy(problem, feature_energy)


def read_decays(recipe: Recipe, norm_given: bool) -> Decays | None:
    """The decays of the last layer's problem, None where there is no such problem.

    A decay of all parameters is one of W and b if it is part of the gradient, which AdamW's is not. The features need a
    decay of their own, or a given norm.
    """
    decays, everywhere = recipe.decays, recipe.optim.weight_decay
    if not norm_given:
        if not (decays.weight > 0 and decays.feature > 0) or everywhere > 0:
            return None
        return Decays(decays.weight, decays.feature, decays.bias)
    if decays.feature > 0 or (everywhere > 0 and recipe.optim.name == "adamw") or decays.weight + everywhere == 0:
        return None
    # the feature decay is replaced by the one that gives the norm
    return Decays(decays.weight + everywhere, 1.0, decays.bias + everywhere)


def find_mixing(recipe: Recipe, num_classes: int, levels: int = 24) -> Mixing:
    """The law of the targets of a recipe with mixup, CutMix or smoothed targets, for balanced classes."""
    from ncollapse.data import INFO
    from ncollapse.theory import mixing_law

    augment, data = recipe.augment, recipe.data
    shape = INFO[data.name].shape if data.name in INFO else None
    return mixing_law(
        num_classes,
        mixup=augment.mixup,
        cutmix=augment.cutmix,
        mix_probability=augment.mix_probability,
        switch_probability=augment.switch_probability,
        label_smoothing=augment.label_smoothing,
        image_size=data.image_size or (32 if shape is None else shape[-1]),
        levels=levels,
    )


def mean_batch(samples: int, batch_size: int) -> float:
    """The size of batch for which an epoch stands: samples / steps, the last batch being shorter.

    The loss of a step is a mean over its batch, the feature decay a sum. Over an epoch of S steps a sample's loss has
    the weight S/N on average, since it falls into the short batch now and then, and its decay the weight 1.

    >>> mean_batch(60_000, 100), round(mean_batch(60_000, 512), 2), mean_batch(1438, 2000)
    (100.0, 508.47, 1438.0)
    """
    return samples / math.ceil(samples / batch_size)


def count_samples(spec: DataSpec) -> int | None:
    """How many training samples a data set known by name leaves after its subset, every class having its share."""
    counts = count_per_class(spec)
    if counts is not None:
        return sum(counts)
    whole = _count_all(spec)
    if whole is None:
        return None
    classes, samples = whole
    return samples if spec.samples_per_class is None else spec.samples_per_class * classes


def count_per_class(spec: DataSpec) -> tuple[int, ...] | None:
    """The training samples of each class where a subset gives the classes unlike shares; None where it does not."""
    from ncollapse.data.subsets import long_tail_counts, step_counts

    if spec.per_class_counts is not None:
        return tuple(spec.per_class_counts)
    whole = _count_all(spec)
    if whole is None:
        return None
    classes, samples = whole
    if spec.step_imbalance is not None:
        return tuple(step_counts(classes, samples // classes, spec.step_imbalance))
    if spec.long_tail is not None:
        return tuple(long_tail_counts(classes, samples // classes, spec.long_tail))
    return None


def _count_all(spec: DataSpec) -> tuple[int, int] | None:
    """Classes and training samples of a data set known by name."""
    from ncollapse.data import INFO

    if spec.name not in INFO:
        return None
    return INFO[spec.name].num_classes, round(INFO[spec.name].train * (1 - spec.validation))


def count_classes(name: str) -> int | None:
    """How many classes a data set known by name has."""
    from ncollapse.data import INFO

    return INFO[name].num_classes if name in INFO else None


def guess_features(recipe: Recipe) -> Literal["free", "relu"]:
    """Non-negative where the network ends in ReLU and pooling; free behind a linear projection or a transformer."""
    linear = recipe.model.feature_dim_linear is not None or "vit" in recipe.model.name
    return "free" if linear else "relu"
