"""`measure`: features, labels and classifier in, `Measurement` out."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from torch import Tensor

from .batches import Array, Batches, Labels, Source, leave_out_rare, open_source
from .class_fields import (
    count_samples,
    leave_undefined,
    measure_both,
    measure_classifier,
    measure_means,
)
from .class_sums import LARGEST, refuse_scale, sum_classes
from .classifier import Classifier, HeadLike, check_head, place_classifier, settle_classes
from .collapse import Moments
from .decay_fields import Decays, require_problem
from .measurement import NAN, Measurement
from .numerical_rank import measure_numerical_rank
from .presence import Presence, check_min_count, find_present
from .reference import ReferenceLike, average_sums, open_reference
from .sample_pass import SamplePass
from .sample_scores import SampleScores, sum_scores
from .scores import Spread
from .selection import ALWAYS, Selection, select_fields
from .statistics import ClassStatistics
from .workspace import borrow_workspace

MissingClasses: TypeAlias = Literal["skip", "strict"]


def measure(
    features: Array | Batches | ClassStatistics,
    labels: Labels | None = None,
    weight: Array | None = None,
    bias: Array | None = None,
    num_classes: int | None = None,
    *,
    head: HeadLike | None = None,
    problem: Decays | None = None,
    numerical_rank: bool = False,
    fields: str | Iterable[str] | None = None,
    missing_classes: MissingClasses = "skip",
    reference: ReferenceLike | None = None,
    min_count: int = 1,
) -> Measurement:
    """Every number of the papers about a last layer z = W h - b, exact to float64, in two passes.

    Args:
        features: tensor (any device) or array (memory-mapped too) [N, d] in any real dtype; or, with `labels` left out,
            batches of (features, labels) that can be gone through twice (a list, a DataLoader); or `ClassStatistics`,
            which leave the fields that need single samples NaN. The largest magnitude, here and in `weight`, has to be
            0 or within 1e-70 to 1e70: fourth powers must fit into float64.
        labels: integers [N] in 0..K-1.
        weight: classifier W [K, d]; without it the fields that need it are NaN.
        bias: the threshold b [K] of z = W h - b (a torch.nn.Linear adds its bias: pass that as `head`).
        num_classes: K, where neither the classifier nor the largest label says it. A label of 2^20 or more is refused
            unless K is given this way or by a classifier.
        head: instead of `weight` and `bias`: a Head, LinearHead, ETFHead, torch.nn.Linear or (weight, threshold).
        problem: a `Problem` (its decays and samples a class), for `bias_residual`, `bias_residual_printed`, `nc3_relu`.
        numerical_rank: also measure `numerical_rank`, which takes a QR of every class's features.
        fields: names of the fields to measure, with no more work than they need; the others stay NaN. "all" means
            all but `numerical_rank`, and so does the default up to 10,000 classes; above, fields that need every score
            (N K d operations) or every pair of classes (K^2 d) are left out, and a warning names them.
        missing_classes: "skip" measures the fields that compare class means over the classes that have samples
            (`present_classes` of them), with one warning; "strict" makes these fields NaN if a class has no sample.
        reference: other samples, such as the training set, whose class means `nc4` and `nearest_mean_accuracy` use:
            `ClassStatistics`, a pair (features, labels), or batches of such pairs.
        min_count: classes with fewer samples are left out, as if they had none: for vocabularies with many rare tokens.
            Decisions are still among all classes. Of `ClassStatistics`, whose scatter is that of all classes together,
            `nc1` and `nc1_balanced` are then NaN.

    Returns:
        A `Measurement`: one attribute for each field, as listed in docs/metrics.md; `print` shows a table.

    >>> import torch
    >>> m = measure(torch.eye(3).repeat(4, 1), torch.arange(3).repeat(4), weight=torch.eye(3))
    >>> m.nc1, m.accuracy, m.uniform_accuracy, m.positive_score.mean
    (0.0, 1.0, 1.0, 1.0)
    """
    if missing_classes not in ("skip", "strict"):
        raise ValueError(f'missing_classes: expected "skip" or "strict", got {missing_classes!r}')
    require_problem(problem)
    given = check_head(weight, bias, head)
    strict, least = missing_classes == "strict", check_min_count(min_count)
    if isinstance(features, ClassStatistics):
        refuse_beside_statistics(features, labels, num_classes, numerical_rank, reference)
        found = measure_statistics(features, *given, problem=problem, fields=fields, strict=strict, min_count=least)
    else:
        found = measure_source(
            open_source(features, labels),
            given,
            num_classes,
            problem=problem,
            numerical_rank=numerical_rank,
            fields=fields,
            strict=strict,
            reference=reference,
            min_count=least,
        )
    for note in found.notes:
        warnings.warn(f"measure: {note}", stacklevel=2)
    return found.measurement


@dataclass
class Measured:
    """A measurement, what was found on the way to it, and what its reader should be warned of."""

    measurement: Measurement
    moments: Moments
    presence: Presence
    scores: SampleScores | None = None
    classifier: Classifier | None = None
    notes: list[str] = field(default_factory=list)


def measure_source(
    source: Source,
    head: tuple[Tensor | None, Tensor | None],
    num_classes: int | None,
    *,
    problem: Decays | None = None,
    numerical_rank: bool = False,
    fields: str | Iterable[str] | None = None,
    strict: bool = False,
    reference: ReferenceLike | None = None,
    min_count: int = 1,
) -> Measured:
    """`measure` on an open source, with what the passes found."""
    classifier = place_classifier(head, source.dim, source.device)
    classes = settle_classes(num_classes, source.num_classes, classifier)
    other = None if reference is None else open_reference(reference, source.dim)
    chosen = None if fields is None else select_fields(fields, 0, numerical_rank=numerical_rank)[0]
    source = source if min_count == 1 else leave_out_rare(source, min_count)
    uncentred = chosen is None or chosen.any("compactness_uncentred", "distinctiveness")
    with borrow_workspace(source.device) as room:
        first = sum_classes(source, classes, directions=uncentred, room=room)
        wanted, notes = select_fields(fields, len(first.counts), numerical_rank=numerical_rank)
        presence = find_present(first.counts, strict=strict, min_count=min_count)
        values: dict[str, Any] = {"feature_energy": first.feature_energy}
        if first.directions is not None and presence.comparable:
            found = first.directions.measure(first.counts) if first.feature_energy > 0 else (NAN, NAN)
            values |= dict(zip(("compactness_uncentred", "distinctiveness"), found))
        first.directions = None
        moments = average_sums(first, presence)
        second = SamplePass(moments, presence, classifier, wanted, first.feature_energy, other, source.device)
        moments = second.run(source, first, room)
    values |= second.measure()
    values |= measure_class_fields(moments, presence, classifier, problem, wanted, notes)
    if wanted.any("numerical_rank"):
        values["numerical_rank"] = measure_numerical_rank(source, presence)
    return Measured(finish(values, wanted), moments, presence, second.scores, classifier, notes)


def measure_statistics(
    statistics: ClassStatistics,
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    problem: Decays | None = None,
    fields: str | Iterable[str] | None = None,
    strict: bool = False,
    min_count: int = 1,
) -> Measured:
    """The fields that class means and the within-class scatter determine."""
    statistics = statistics.at_site()
    moments, presence = statistics.moments(strict=strict, min_count=min_count)
    classifier = place_classifier((weight, bias), statistics.dim, moments.offsets.device)
    rows, held = None if classifier is None else len(classifier.weight), statistics.num_classes
    if rows not in (None, held):
        raise ValueError(f"weight: {rows} rows, but the statistics are of {held} classes")
    total = float(moments.counts.sum())
    norms = moments.means().norms()
    energy = float((moments.counts * (moments.variances_or_zero() + norms.square())).sum()) / total
    size = max(float(block.abs().max()) for block in moments.means().blocks())
    refuse_scale("features", size if size > LARGEST else max(size, math.sqrt(energy)))
    wanted, notes = select_fields(fields, held)
    values: dict[str, Any] = {"feature_energy": energy}
    values |= measure_class_fields(moments, presence, classifier, problem, wanted, notes)
    if classifier is not None:
        own, others = sum_scores(classifier, moments, presence.classes)
        pairs = int(total) * (held - 1)
        values["positive_score"] = Spread(mean=own / total, count=int(total))
        if pairs:
            values["negative_score"] = Spread(mean=others / pairs, count=pairs)
    return Measured(finish(values, wanted), moments, presence, notes=notes)


def measure_class_fields(
    moments: Moments,
    presence: Presence,
    classifier: Classifier | None,
    problem: Decays | None,
    wanted: Selection,
    notes: list[str],
) -> dict[str, Any]:
    """All fields that do not look at single samples; `notes` gets what a reader has to know about them."""
    reason = presence.explain()
    if reason is not None:
        notes.append(reason)
    values = count_samples(presence, moments.offsets.shape[1])
    values |= measure_means(moments, presence, wanted)
    if classifier is not None:
        values |= measure_classifier(classifier, problem, wanted)
        values |= measure_both(classifier, moments, presence, problem, wanted)
    if presence.comparable and not moments.means_differ:
        notes.append("all class means coincide; nc1 and the other fields that divide by their spread are NaN")
        values = leave_undefined(values)
    return values


def refuse_beside_statistics(
    statistics: ClassStatistics, labels: Any, num_classes: int | None, numerical_rank: bool, reference: object
) -> None:
    """Raise for arguments that class statistics leave no use for."""
    given = {"labels": labels is not None, "numerical_rank": numerical_rank, "reference": reference is not None}
    for name, useless in given.items():
        if useless:
            raise ValueError(f"{name}: class statistics hold no single samples; leave it out, or pass the features")
    if num_classes not in (None, statistics.num_classes):
        raise ValueError(f"num_classes: {num_classes}, but the statistics are of {statistics.num_classes} classes")


def finish(values: dict[str, Any], wanted: Selection) -> Measurement:
    """A `Measurement` of the wanted fields, with infinities (a quotient by an exact zero) turned into NaN."""
    finite: dict[str, Any] = {
        name: NAN if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
        if name in wanted or name in ALWAYS
    }
    return Measurement(**finite)
