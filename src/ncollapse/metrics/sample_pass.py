"""The second pass, put together from the accumulators that the wanted fields need."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .batches import Source
from .bounded_scores import BoundedScores
from .class_sums import ClassSums
from .classifier import Classifier
from .collapse import Moments, whiten_means
from .distribution import EXACT
from .exact_scores import FEW_SCORES, ExactScores
from .nearest_means import NearestMeans
from .presence import Presence
from .radii import is_worthwhile, nearest_mean_radii
from .reference import Reference
from .sample_fields import finish_nearest, finish_scores, rank_nearest, rank_scores
from .sample_scores import OwnScores, SampleScores, ScoreNeeds
from .second_pass import Accumulator, CentredDirections, WithinClasses, read_again
from .selection import Selection
from .similarity import DirectionSums
from .transfer import HOST, copy_together
from .workspace import Workspace

VARIANCES = ("nc1_quotient", "cdnv")
SCATTER = ("nc1", "nc1_balanced")
CENTRED = ("compactness", "distinctiveness_centred")
NEAREST = ("nc4", "nearest_mean_accuracy")
NEGATIVES = ("negative_score", "scores_concentrated")
WITHIN = ("variances", "scatter", "along")  # of the moments
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
        device: torch.device,
    ) -> None:
        self.moments, self.presence, self.wanted, self.device = moments, presence, wanted, device
        self.found: dict[str, Tensor] = {}
        self.nearest = self._open_nearest(reference)
        self.scores = self._open_scores(classifier, feature_energy)
        self.within: WithinClasses | None = None
        self.directions: CentredDirections | None = None
        scatter = wanted.any(*SCATTER) and presence.comparable
        whole = isinstance(self.scores, BoundedScores) and self.scores.needs.negatives
        if scatter and not whole and len(moments.counts) < moments.offsets.shape[1]:
            self.moments = whiten_means(moments)
            scatter = self.moments.whitening is not None
        self.placed = self.moments.on(device)
        if whole or (presence.comparable and wanted.any(*VARIANCES, *SCATTER, *CENTRED, "cosine_margin")):
            self.within = WithinClasses(self.placed, scatter=scatter or whole)
        if presence.comparable and wanted.any(*CENTRED):
            self.directions = CentredDirections(self.placed)

    def _open_scores(self, classifier: Classifier | None, feature_energy: float) -> SampleScores | None:
        wanted = self.wanted
        negatives, logits = wanted.any(*NEGATIVES), wanted.any(*UNIFORM)
        decisions, margins = logits or wanted.any("accuracy", "class_accuracy", "nc4"), wanted.any("cosine_margin")
        own = negatives or logits or (decisions and margins) or wanted.any("positive_score")
        needs = ScoreNeeds(own=own, decisions=decisions, logits=logits, margins=margins, negatives=negatives)
        if classifier is None or not (needs.every_score or needs.own):
            return None
        samples, classes = int(self.moments.num_samples), len(classifier.weight)
        if not needs.every_score:
            return OwnScores(classifier, self.moments, needs, self.device)
        if needs.negatives:  # their deviations take the whole d x d scatter, which K <= d classes leave out
            exact = samples * classes <= EXACT or classes <= self.moments.offsets.shape[1]
        else:
            exact = samples * classes <= FEW_SCORES
        options = (classifier, self.moments, self.presence.classes, needs, feature_energy)
        if not exact and self.device.type == "cpu":
            return BoundedScores(*options)
        joint = self.nearest if self.nearest is not None and self.nearest.is_joinable(self.moments) else None
        return ExactScores(*options, self.device, joint)

    def _open_nearest(self, reference: Reference | None) -> NearestMeans | None:
        if not self.wanted.any(*NEAREST):
            return None
        moments = self.moments if reference is None else reference.moments
        presence = self.presence if reference is None else reference.presence
        if not presence.comparable or not moments.means_differ:
            return None
        radii = None
        if reference is None and is_worthwhile(moments, presence.present, self.device):
            radii = nearest_mean_radii(moments)
        return NearestMeans(moments, presence, int(self.moments.num_samples), self.device, radii)

    def run(self, source: Source, first: ClassSums, room: Workspace) -> Moments:
        """Read the samples again, where anything needs them; returns the moments with variances and scatter."""
        joined = isinstance(self.scores, ExactScores) and self.scores.nearest is not None
        parts = (self.scores, None if joined else self.nearest, self.within, self.directions)
        accumulators: list[Accumulator] = [part for part in parts if part is not None]
        if not accumulators:
            return self.moments
        places = self.presence.places()
        places = places if places is None else places.to(self.device)
        read_again(source, first, self.placed, places, accumulators, room)
        found = self._rank(self.placed if self.within is None else self.within.finish())
        here = (
            [] if self.moments.offsets.device == HOST else [name for name in (*WITHIN, "directions") if name in found]
        )
        away = [name for name in found if name not in here]  # a few numbers of each field are read on the host anyway
        self.found = {name: found[name] for name in here}
        self.found |= dict(zip(away, copy_together([found[name] for name in away], HOST)))
        self.moments = self.moments.add(**{name: self.found[name] for name in WITHIN if name in self.found})
        return self.moments

    def _rank(self, moments: Moments) -> dict[str, Tensor]:
        """What the fields are made of, still on the device of the samples; nothing waits for it."""
        found = {name: getattr(moments, name) for name in WITHIN}
        if self.directions is not None:
            found["directions"] = self.directions.directions.sums
        if self.scores is not None:
            self.scores.finish(moments)
            found |= rank_scores(self.scores, len(self.presence.counts))
        if self.nearest is not None:
            found |= rank_nearest(self.nearest.nearest, self.nearest.labels, self.scores)
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def measure(self) -> dict[str, Any]:
        """The fields that look at single samples."""
        values: dict[str, Any] = {}
        spread_out = self.moments.within() > 0 or self.moments.means_differ
        if "directions" in self.found and spread_out:
            compact, distinct = DirectionSums(self.found["directions"]).measure(self.moments.counts)
            values |= {"compactness": compact, "distinctiveness_centred": distinct}
            self.directions = None  # frees [K, d] numbers
        if self.scores is not None:
            values |= finish_scores(self.found, self.scores, self.presence, has_directions=spread_out)
        return values | finish_nearest(self.found, int(self.moments.num_samples))
