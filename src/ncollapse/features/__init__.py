"""From any model and its batches to (features, labels, head), leaving no trace on either."""

from ncollapse.features.batches import plain_order, split_batch
from ncollapse.features.classifier import find_classifier, unwrap
from ncollapse.features.extraction import Extracted, extract, tap
from ncollapse.features.isolation import undisturbed

__all__ = ["Extracted", "extract", "find_classifier", "plain_order", "split_batch", "tap", "undisturbed", "unwrap"]
