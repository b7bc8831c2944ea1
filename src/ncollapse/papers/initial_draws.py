"""How far the scores of a run depend on the draw of its initial weights, where theory knows it (theory.md, Sec. 7)."""

from __future__ import annotations

import math
import statistics

from ncollapse.runs.record import RunRecord
from ncollapse.train.initial_values import share_left
from ncollapse.train.recipe import Recipe


def deviation_of_scores(record: RunRecord) -> float:
    """The standard deviation of a run's mean scores over the draws of its initial weights; 0 where it is not known.

    Under SGD and losses that do not see a number added to all scores, W keeps a share s of its initial mean row. Its
    product with the mean feature h is the mean score of all classes, a number added to all scores. The d entries of the
    row are means of K draws from +-1/sqrt(d), so that this number has the standard deviation s |h| / sqrt(3 d K).
    """
    share = share_left(Recipe.from_dict(record.config), "weight")
    if share is None or record.get("model.head") == "etf":
        return 0.0
    size = record.final("train.dim") * record.final("train.num_classes")
    found = share * norm_of_mean_feature(record) / math.sqrt(3 * size)
    return found if math.isfinite(found) else 0.0


def norm_of_mean_feature(record: RunRecord) -> float:
    """|h| of the mean training feature h, from traces that records have; NaN where classes are not of equal size.

    The mean of |h_k|^2 over classes is |h|^2 and the trace between classes, that of the features is the trace within
    classes more, and `nc1_quotient` is the quotient of the two traces.
    """
    train = (record.summary or {}).get("train") or {}
    norms, counts = train.get("mean_norms") or (), train.get("counts") or ()
    if len(norms) < 2 or len(set(counts)) != 1:
        return math.nan
    means = statistics.fmean(norm**2 for norm in norms)
    quotient, energy = record.final("train.nc1_quotient"), record.final("train.feature_energy")
    if not quotient > 0:
        return math.nan
    return math.sqrt(max(means - (energy - means) / quotient, 0.0))
