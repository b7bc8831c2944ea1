"""The fields that class means, within-class scatter and classifier determine: nothing here looks at single samples."""

from __future__ import annotations

import math
from typing import Any

from .classifier import Classifier
from .collapse import (
    Moments,
    decompose_means,
    distance_to_rank,
    distance_to_simplex,
    measure_duality,
    measure_within,
    vary_norms,
)
from .decay_fields import Decays, measure_bias_residual, measure_relu_logits
from .pairs import average_pairs, measure_cosines
from .presence import Presence
from .rows import differ
from .scores import spread_of
from .selection import Selection
from .small_frames import compare_both, compare_means, compare_weights, is_few

SPECTRAL = ("nc1", "nc1_balanced", "nc1_quotient", "means_rank", "means_smallest_singular_value")
NEEDS_RANK = ("nc2_means", "equinorm_means", "nc3", "nc3_centred", "nc3_distance", "equiangle_means", "cdnv")


def count_samples(presence: Presence, dim: int) -> dict[str, Any]:
    """The fields that the counts give."""
    counts = tuple(int(count) for count in presence.counts.tolist())
    return {
        "num_samples": sum(counts),
        "num_classes": len(counts),
        "present_classes": presence.present,
        "dim": dim,
        "counts": counts,
        "empty_classes": presence.empty(),
    }


def measure_means(moments: Moments, presence: Presence, wanted: Selection) -> dict[str, Any]:
    """The fields about the class means alone."""
    values: dict[str, Any] = {}
    if wanted.any("mean_norms"):
        values["mean_norms"] = tuple(presence.fill(moments.means().norms()).tolist())
    if not presence.comparable:
        return values
    centred = moments.centred()
    if wanted.any(*SPECTRAL):
        spectrum = decompose_means(moments)
        values["means_rank"] = spectrum.rank
        values["means_smallest_singular_value"] = float(spectrum.singular_values[-1])
        if wanted.any("nc1", "nc1_balanced", "nc1_quotient"):
            values |= measure_within(moments, spectrum)
    if is_few(centred):
        return values | compare_means(moments, wanted)
    if wanted.any("nc2_means"):
        values["nc2_means"] = distance_to_simplex(centred, centred)
    if wanted.any("equinorm_means"):
        values["equinorm_means"] = vary_norms(centred)
    if wanted.any("equiangle_means", "cdnv"):
        values |= average_pairs(centred, moments.variances if wanted.any("cdnv") else None)
    if wanted.any("mean_cosines", "mean_orthogonality"):
        values["mean_cosines"], _, values["mean_orthogonality"] = measure_cosines(moments.means())
    return values


def measure_classifier(classifier: Classifier, problem: Decays | None, wanted: Selection) -> dict[str, Any]:
    """The fields about the classifier alone."""
    rows, bias = classifier.rows(), classifier.bias
    classes = len(rows)
    energy = float(rows.energy())
    values: dict[str, Any] = {"weight_energy": energy, "bias": spread_of(bias)}
    if wanted.any("weight_norms"):
        values["weight_norms"] = tuple(rows.norms().tolist())
    if problem is not None and wanted.any("bias_residual", "bias_residual_printed"):
        values |= measure_bias_residual(problem, energy, float(bias.mean()), classes)
    if classes < 2:
        return values
    if is_few(rows):
        return values | compare_weights(rows, wanted)
    if wanted.any("nc2"):
        centred = rows.centre()
        values["nc2"] = distance_to_simplex(centred, centred) if differ(rows) else math.nan
    if wanted.any("nc2_uncentred"):
        values["nc2_uncentred"] = distance_to_simplex(rows, rows)
    if wanted.any("nc2_rank"):
        values["nc2_rank"] = distance_to_rank(rows)
    if wanted.any("equinorm_weights"):
        values["equinorm_weights"] = vary_norms(rows)
    if wanted.any("equiangle_weights", "weight_cosines"):
        values["weight_cosines"], values["equiangle_weights"], _ = measure_cosines(rows)
    return values


def measure_both(
    classifier: Classifier, moments: Moments, presence: Presence, problem: Decays | None, wanted: Selection
) -> dict[str, Any]:
    """The fields that set the classifier against the class means, over the classes present."""
    values: dict[str, Any] = {}
    if not presence.comparable:
        return values
    if wanted.any("nc3", "nc3_centred", "nc3_distance", "nc2_relu"):
        rows = classifier.rows(presence.classes)
        values |= compare_both(rows, moments) if is_few(rows) else measure_duality(rows, moments)
    if problem is not None and wanted.any("nc3_relu") and presence.classes is None:
        values["nc3_relu"] = measure_relu_logits(problem, classifier.rows(), moments)
    return values


def leave_undefined(values: dict[str, Any]) -> dict[str, Any]:
    """NaN for every field that divides by the spread of class means that coincide."""
    return {name: math.nan if name in NEEDS_RANK else value for name, value in values.items()}
