"""`measure` for classes that are spread over processes: no process ever holds all class means or all of the weight."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from .batches import Batches, Source, open_source
from .class_fields import count_samples, leave_undefined, measure_classifier, measure_means
from .class_sums import LARGEST, refuse_scale
from .classifier import Classifier, HeadLike, check_head
from .collapse import Moments, finish_moments, measure_duality, take_moments
from .measurement import Measurement
from .measuring import finish
from .presence import Presence, find_present, refuse_few
from .rows import square_norms
from .sample_scores import sum_scores
from .scores import Spread
from .selection import select_fields
from .sharded_scores import ShardedPass
from .shards import Shards
from .statistics import ClassStatistics

DUALITY = ("nc3", "nc3_centred", "nc3_distance", "nc2_relu")


def measure_shards(
    statistics: ClassStatistics,
    shards: Shards,
    head: HeadLike | None = None,
    fields: str | Iterable[str] | None = None,
    min_count: int = 1,
    batches: Batches | None = None,
) -> tuple[Measurement, list[str]]:
    """The fields of all classes, from the statistics of this process's classes; the same in every process.

    `head` is this process's part of the classifier: rows [stop - start, d] of the weight and as many biases, as
    tensors, as a layer, or as a layer whose weight is a DTensor sharded by rows. All processes must call this together.
    Sums over classes and d x d matrices are added up, triangular factors are stacked, and pairs of classes are compared
    a block of rows at a time. `batches` are this process's samples again, for the fields that look at single samples.
    """
    source = None if batches is None else open_everywhere(batches, shards)
    moments, own = gather_moments(statistics, shards, min_count)
    presence = find_present(shards.gather(statistics.state["counts"]), min_count=min_count)
    classifier = place_shard(head, shards, moments)
    wanted, notes = select_fields(fields, shards.num_classes)
    norms = torch.cat([moments.anchor[:0], *(torch.linalg.vector_norm(b, dim=1) for b in moments.means().blocks())])
    energy = float(shards.add((moments.counts * (moments.variances_or_zero() + norms.square())).sum()))
    energy /= moments.num_samples
    refuse_scale("features", math.sqrt(energy) if energy <= LARGEST**2 else math.inf)
    values: dict[str, Any] = {"feature_energy": energy, **count_samples(presence, statistics.dim)}
    values |= measure_means(moments, presence, wanted)
    reason = presence.explain()
    notes += [] if reason is None else [reason]
    if classifier is not None:
        values |= measure_classifier(replace_bias(classifier, shards), None, wanted)
        rows = classifier.rows(own.classes)
        if presence.comparable and wanted.any(*DUALITY):
            values |= measure_duality(rows, moments)
        positive, negative = sum_scores(classifier, moments, own.classes)
        samples = int(moments.num_samples)
        pairs = samples * (shards.num_classes - 1)
        values["positive_score"] = Spread(mean=positive / samples, count=samples)
        if pairs:
            values["negative_score"] = Spread(mean=negative / pairs, count=pairs)
    if source is not None:
        second = ShardedPass(moments, own, presence, classifier, energy)
        second.run(source)
        values |= second.measure()
    if presence.comparable and not moments.means_differ:
        notes.append("all class means coincide; nc1 and the other fields that divide by their spread are NaN")
        values = leave_undefined(values)
    return finish(values, wanted), notes


def open_everywhere(batches: Batches, shards: Shards) -> Source:
    """Batches to read; what is wrong with those of one process is an error in all, none of which waits for it."""
    source, error = None, None
    try:
        source = open_source(batches, None)
    except (TypeError, ValueError) as found:
        error = found
    device = torch.device("cpu") if source is None else source.device
    wrong = int(shards.add(torch.tensor(int(source is None), device=device)))
    if wrong or source is None:
        raise error or ValueError("features: the batches of another process were refused")
    return source


def gather_moments(statistics: ClassStatistics, shards: Shards, min_count: int = 1) -> tuple[Moments, Presence]:
    """Moments of this process's classes around an anchor, a global mean and a scatter that all processes share."""
    refused = shards.add(statistics.state["refused"])
    statistics.check(refused)
    counted = statistics.state["counts"]
    own = find_present(counted, min_count=min_count)
    counts, means, squares = (own.take(statistics.state[name]) for name in ("counts", "means", "squares"))
    total = shards.add(counts.sum())
    everything = shards.add(counted.sum())
    if not float(everything):
        raise ValueError("statistics: no samples (N = 0); update them first")
    refuse_few(int(shards.largest(torch.cat([counted, counted.new_zeros(1)]).max())), min_count)
    # a class mean as the anchor: that of the first process with samples
    filled = shards.gather(torch.cat([counts[:1], counts.new_zeros(1)])[:1])
    first = int((filled > 0).nonzero()[0])
    anchor = shards.broadcast(
        means[0].clone() if first == shards.rank else torch.zeros_like(statistics.scatter[0]), first
    )
    offsets, variances = means - anchor, squares / counts
    energies = square_norms(offsets) + variances
    moments = take_moments(counts, offsets, anchor, energies, shards)
    scatter = shards.add(statistics.state["scatter"])
    moments = finish_moments(moments, variances, scatter if float(total) == float(everything) else None)
    return moments, own


def place_shard(head: HeadLike | None, shards: Shards, moments: Moments) -> Classifier | None:
    """This process's rows of the classifier, checked."""
    if head is None:
        return None
    weight, bias = check_head(None, None, head, sharded=True)
    assert weight is not None
    start, stop = shards.bounds()
    dim = moments.offsets.shape[1]
    if tuple(weight.shape) != (stop - start, dim):
        raise ValueError(
            f"weight: expected this process's rows, shape [{stop - start}, {dim}] for classes {start}..{stop - 1}, got "
            f"{tuple(weight.shape)}"
        )
    biases = torch.zeros(len(weight)) if bias is None else bias
    placed = Classifier(weight.to(moments.anchor.device), biases.to(moments.anchor), shards)
    for name, value in (("weight", placed.weight), ("bias", placed.bias)):
        wrong = shards.add((~torch.isfinite(value)).sum())
        if int(wrong):
            raise ValueError(f"{name}: holds NaN or Inf")
    return placed


def replace_bias(classifier: Classifier, shards: Shards) -> Classifier:
    """The classifier with the biases of all processes: K numbers."""
    return replace(classifier, bias=shards.gather(classifier.bias))
