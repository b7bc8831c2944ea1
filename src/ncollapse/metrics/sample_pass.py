"""The second pass, put together from the accumulators that the wanted fields need."""

from __future__ import annotations

from typing import Any

from .batches import Source
from .bounded_scores import BoundedScores
from .class_sums import ClassSums
from .classifier import Classifier
from .collapse import Moments, span_means, whiten_means
from .distribution import EXACT
from .exact_scores import FEW_SCORES, ExactScores
from .nearest_means import NearestMeans
from .presence import Presence
from .radii import is_worthwhile, nearest_mean_radii
from .reference import Reference
from .sample_fields import measure_nearest, measure_scores
from .sample_scores import SampleScores, ScoreNeeds
from .second_pass import Accumulator, CentredDirections, WithinClasses, read_again
from .selection import Selection

VARIANCES = ("nc1_quotient", "cdnv")
SCATTER = ("nc1", "nc1_balanced")
CENTRED = ("compactness", "distinctiveness_centred")
NEAREST = ("nc4", "nearest_mean_accuracy")
NEGATIVES = ("negative_score", "scores_concentrated")
UNIFORM = ("uniform_accuracy", "uniform_threshold", "uniform_accuracy_grid")


class SamplePass:
    """What the second pass has to find for the wanted fields, and the fields themselves."""

    def __init__(
        self,
        moments: Moments,
        presence: Presence,
        classifier: Classifier | None,
        wanted: Selection,
        feature_energy: float,
        reference: Reference | None,
    ) -> None:
        self.moments, self.presence, self.wanted = moments, presence, wanted
        self.scores = self._open_scores(classifier, feature_energy)
        self.nearest = self._open_nearest(reference)
        self.within: WithinClasses | None = None
        self.directions: CentredDirections | None = None
        scatter = wanted.any(*SCATTER) and presence.comparable
        whole = isinstance(self.scores, BoundedScores) and self.scores.needs.negatives
        if whole or (presence.comparable and wanted.any(*VARIANCES, *SCATTER, *CENTRED, "cosine_margin")):
            if scatter and not whole and len(moments.counts) < moments.offsets.shape[1]:
                self.moments = whiten_means(span_means(moments))
                scatter = self.moments.whitening is not None
            self.within = WithinClasses(self.moments, scatter=scatter or whole)
        if presence.comparable and wanted.any(*CENTRED):
            self.directions = CentredDirections(moments)

    def _open_scores(self, classifier: Classifier | None, feature_energy: float) -> SampleScores | None:
        wanted = self.wanted
        negatives, logits = wanted.any(*NEGATIVES), wanted.any(*UNIFORM)
        decisions, margins = logits or wanted.any("accuracy", "class_accuracy", "nc4"), wanted.any("cosine_margin")
        own = negatives or logits or (decisions and margins) or wanted.any("positive_score")
        needs = ScoreNeeds(own=own, decisions=decisions, logits=logits, margins=margins, negatives=negatives)
        if classifier is None or not (needs.every_score or needs.own):
            return None
        samples, classes = int(self.moments.counts.sum()), len(classifier.weight)
        if not needs.every_score:
            return SampleScores(classifier, self.moments, needs)
        if needs.negatives:  # their deviations take the whole d x d scatter, which K <= d classes leave out
            exact = samples * classes <= EXACT or classes <= self.moments.offsets.shape[1]
        else:
            exact = samples * classes <= FEW_SCORES
        kind = ExactScores if exact or classifier.weight.device.type != "cpu" else BoundedScores
        return kind(classifier, self.moments, self.presence.classes, needs, feature_energy)

    def _open_nearest(self, reference: Reference | None) -> NearestMeans | None:
        if not self.wanted.any(*NEAREST):
            return None
        moments = self.moments if reference is None else reference.moments
        presence = self.presence if reference is None else reference.presence
        if not presence.comparable or not bool(moments.centred().norms().any()):
            return None
        samples, radii = int(self.moments.counts.sum()), None
        if reference is None and is_worthwhile(samples, presence.present):
            radii = nearest_mean_radii(moments)
        return NearestMeans(moments, presence, samples, radii)

    def run(self, source: Source, first: ClassSums) -> Moments:
        """Read the samples again, where anything needs them; returns the moments with variances and scatter."""
        parts = (self.directions, self.scores, self.nearest, self.within)
        accumulators: list[Accumulator] = [part for part in parts if part is not None]
        if accumulators:
            read_again(source, first, self.moments, self.presence.places(), accumulators)
        if self.within is not None:
            self.moments = self.within.finish()
        if self.scores is not None:
            self.scores.finish(self.moments)
        return self.moments

    def measure(self) -> dict[str, Any]:
        """The fields that look at single samples."""
        values: dict[str, Any] = {}
        spread_out = self.moments.within() > 0 or bool(self.moments.centred().norms().any())
        if self.directions is not None and spread_out:
            compact, distinct = self.directions.directions.measure(self.moments.counts)
            values |= {"compactness": compact, "distinctiveness_centred": distinct}
            self.directions = None  # frees [K, d] numbers
        if self.scores is not None:
            values |= measure_scores(self.scores, self.presence, has_directions=spread_out)
        if self.nearest is not None:
            values |= measure_nearest(self.nearest, self.scores)
        return values
