"""The second pass where classes are spread over processes: every sample meets every class, none of which is gathered.

In each round the processes exchange a chunk of samples each. A process computes the scores of all of them for its own
classes, and the largest, the sums and the counts are put together. What is kept are a few numbers a sample, the same in
every process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .batches import Source
from .classifier import Classifier
from .collapse import Moments
from .distribution import Distribution, choose_scale
from .exact_scores import tile_rows
from .presence import Presence
from .rows import invert, split_range
from .sample_fields import finish_nearest, measure_scores, rank_nearest
from .sample_scores import ScoreNeeds, sum_scores
from .second_pass import SAME_CONSTANT, SAME_TOTAL
from .shards import Shards
from .similarity import DirectionSums
from .workspace import Workspace


class ShardedPass:
    """Collects decisions, scores, margins, nearest means and directions of all samples.

    Args:
        moments: of this process's classes with samples.
        own: which of this process's classes have samples.
        presence: which of all classes have samples.
        classifier: this process's rows of the weight and biases.
        energy: the mean of |h|^2.
    """

    def __init__(
        self, moments: Moments, own: Presence, presence: Presence, classifier: Classifier | None, energy: float
    ) -> None:
        assert moments.shards is not None
        self.moments, self.own, self.presence, self.classifier = moments, own, presence, classifier
        self.shards: Shards = moments.shards
        self.start, self.stop = self.shards.bounds()
        self.kept: dict[str, list[Tensor]] = {}
        self.counts, self.squares = torch.zeros_like(own.counts), torch.zeros_like(moments.anchor[0])
        self.centred_directions = DirectionSums(torch.zeros_like(moments.offsets))
        self.directions = DirectionSums(torch.zeros_like(moments.offsets))
        norms = torch.linalg.vector_norm(moments.offsets, dim=1)
        self.offset_squares = norms.square()
        around_anchor = moments.offsets + moments.shift  # as in `nearest_means`
        self.mean_offsets = -torch.linalg.vector_norm(around_anchor, dim=1).square()[:, None] / 2
        held = torch.arange(self.start, self.stop, device=norms.device)
        self.mean_classes = own.take(held)
        self.negatives: Distribution | None = None
        if classifier is not None:
            self._open_classifier(classifier, energy)

    def _open_classifier(self, classifier: Classifier, energy: float) -> None:
        rows = classifier.rows()
        centred = rows.centre()
        empty = rows.values[:0].to(torch.float64)
        self.weight, self.centred_weight = (torch.cat([empty, *matrix.blocks()]) for matrix in (rows, centred))
        self.inverse = invert(torch.linalg.vector_norm(self.centred_weight, dim=1))[:, None]
        self.anchor_scores, self.bias = (self.weight @ self.moments.anchor)[:, None], classifier.bias[:, None]
        samples, classes = int(self.moments.num_samples), self.shards.num_classes
        pairs = samples * (classes - 1)
        if pairs:
            _, others = sum_scores(classifier, self.moments, self.own.classes)
            largest = (energy * samples) ** 0.5 * float(rows.norms().max())
            place = self.weight.device
            self.negatives = Distribution(pairs, others / pairs, place, scale=choose_scale(largest), hold=False)

    def run(self, source: Source) -> None:
        """Take the samples of this process and of all others; all processes must call this together."""
        room, rows = Workspace(source.device), source.rows()
        for features, labels in _in_rounds(source, rows, self.shards):
            for part in split_range(len(labels), tile_rows(max(1, self.stop - self.start), source.device)):
                self._add(features[part], labels[part], room)
        self._check()
        if self.negatives is not None:
            self.negatives.merge(self.shards)

    def _check(self) -> None:
        """Raise in every process if one of them met other samples than the statistics have seen."""
        samples, expected_samples = sum(len(labels) for labels in self.kept["labels"]), int(self.moments.num_samples)
        counted = self.own.take(self.counts)
        expected = (self.moments.counts * (self.moments.variances_or_zero() + self.offset_squares)).sum()
        rounding = (self.moments.counts * self.moments.energies).sum()
        close = (self.squares - expected).abs() <= SAME_TOTAL * expected + SAME_CONSTANT * rounding
        same = torch.equal(counted, self.moments.counts) and bool(close) and samples == expected_samples
        if int(self.shards.least(torch.tensor(int(same), device=counted.device))) == 0:
            raise ValueError("batches: hold other samples than this metric has seen; expected the same ones again")

    def _add(self, features: Tensor, labels: Tensor, room: Workspace) -> None:
        x = features - self.moments.anchor
        centred = x - self.moments.shift
        mine = ((labels >= self.start) & (labels < self.stop)).nonzero().flatten()
        local = labels[mine] - self.start
        self.counts.index_add_(0, local, torch.ones_like(self.counts[:1]).expand(len(local)))
        norms = torch.linalg.vector_norm(centred, dim=1)
        self.squares += norms[mine].square().sum()
        lengths = torch.where(norms > self.moments.rounding, norms, 0.0)
        self._add_directions(features[mine], centred[mine], lengths[mine], local, room)
        self._keep(labels=labels, nearest=self._find_nearest(x))
        if self.classifier is not None:
            self._add_scores(x, centred, invert(lengths), labels, mine, local)

    def _add_directions(
        self, features: Tensor, centred: Tensor, lengths: Tensor, local: Tensor, room: Workspace
    ) -> None:
        places = self.own.places()
        index = local if places is None else places[local]
        scaled = room.take("scaled", *features.shape)
        self.centred_directions.add(centred, index, invert(lengths), out=scaled)
        self.directions.add(features, index, invert(torch.linalg.vector_norm(features, dim=1)), out=scaled)

    def _find_nearest(self, x: Tensor) -> Tensor:
        return self._largest(self.moments.offsets @ x.T + self.mean_offsets, self.mean_classes)[1]

    def _add_scores(
        self, x: Tensor, centred: Tensor, inverse: Tensor, labels: Tensor, mine: Tensor, local: Tensor
    ) -> None:
        classes = torch.arange(self.start, self.stop, device=labels.device)
        scores = (self.weight @ x.T).add_(self.anchor_scores)
        scores.masked_fill_((x == -self.moments.anchor).all(1), 0.0)  # samples that are 0, as in `second_pass.Chunk`
        own_scores = self._own(scores, mine, local)
        logits = scores - self.bias
        own_logit = self._own(logits, mine, local)
        logits[local, mine] = -torch.inf
        other, index = self._largest(logits, classes)
        wins = (own_logit > other) | ((own_logit == other) & (labels < index))
        cosines = (self.centred_weight @ centred.T).mul_(self.inverse)
        own_cosine = self._own(cosines, mine, local)
        cosines[local, mine] = -torch.inf
        margin = (own_cosine - self._largest(cosines, classes)[0]) * inverse
        self._keep(positive=own_scores, own_logit=own_logit, other_logit=other, margin=margin)
        self._keep(decision=torch.where(wins, labels, index))
        if self.negatives is not None:
            others = torch.ones_like(scores, dtype=torch.bool)
            others[local, mine] = False
            self.negatives.add(scores[others])

    def _own(self, table: Tensor, mine: Tensor, local: Tensor) -> Tensor:
        """The entry of each sample's own class, from the process that holds it."""
        found = table.new_zeros(table.shape[1])
        found[mine] = table[local, mine]
        return self.shards.add(found)

    def _largest(self, table: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        """The largest entry of each column over all processes, and the first class that has it."""
        empty = table.new_full((1, table.shape[1]), -torch.inf)
        value, place = torch.cat([table, empty]).max(0)
        best = self.shards.largest(value)
        none = torch.tensor([self.shards.num_classes], device=classes.device)
        index = torch.where(value == best, torch.cat([classes, none])[place], none)
        return best, self.shards.least(index)

    def _keep(self, **found: Tensor) -> None:
        for name, values in found.items():
            self.kept.setdefault(name, []).append(values)

    def measure(self) -> dict[str, Any]:
        """The fields that look at single samples."""
        everything = {name: torch.cat(values) for name, values in self.kept.items()}
        apart = self.moments.means_differ
        spread_out = self.moments.within() > 0 or apart
        values: dict[str, Any] = {}
        scores = None
        if self.presence.comparable:
            directions = self.directions.measure(self.moments.counts, self.shards)
            values |= dict(zip(("compactness_uncentred", "distinctiveness"), directions))
            if spread_out:
                directions = self.centred_directions.measure(self.moments.counts, self.shards)
                values |= dict(zip(("compactness", "distinctiveness_centred"), directions))
        if self.classifier is not None:
            scores = KeptScores(everything, self.negatives)
            values |= measure_scores(scores, self.presence, has_directions=spread_out)
        if self.presence.comparable and apart:
            nearest, labels = everything["nearest"], everything["labels"]
            values |= finish_nearest(rank_nearest(nearest, labels, scores), len(labels))
        return values


class KeptScores:
    """What `measure_scores` reads, of all samples."""

    def __init__(self, kept: dict[str, Tensor], negatives: Distribution | None) -> None:
        self.needs, self.negatives = ScoreNeeds(), negatives
        self.labels, self.decision, self.margin = kept["labels"], kept["decision"], kept["margin"]
        self.positive, self.own_logit, self.other_logit = kept["positive"], kept["own_logit"], kept["other_logit"]


def _in_rounds(source: Source, rows: int, shards: Shards) -> Iterator[tuple[Tensor, Tensor]]:
    """The chunks of all processes, joined; a process that has no more takes part with none."""
    chunks = source.read(max(1, rows // shards.processes))
    while True:
        found = next(chunks, None)
        if found is None:
            empty = torch.zeros(0, source.dim, dtype=torch.float64, device=source.device)
            found = empty, torch.zeros(0, dtype=torch.int64, device=source.device)
        labels = shards.gather(found[1])
        if not len(labels):
            return
        yield shards.gather(found[0]), labels
