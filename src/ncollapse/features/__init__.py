"""From any model and its batches to (features, labels, head), leaving no trace on either."""

from ncollapse.features.batches import split_batch
from ncollapse.features.classifier import find_classifier, unwrap
from ncollapse.features.extraction import Extracted, extract, run_model
from ncollapse.features.isolation import undisturbed
from ncollapse.features.sampling import plain_order
from ncollapse.features.taps import tap

__all__ = [
    "Extracted",
    "extract",
    "find_classifier",
    "plain_order",
    "run_model",
    "split_batch",
    "tap",
    "undisturbed",
    "unwrap",
]
