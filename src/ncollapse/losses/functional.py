"""The losses as functions: each sums over the classes and averages over the samples.

    loss(logits [B, K], target [B] of class indices or [B, K] soft, ..., weight=None, reduction="mean")

Half-precision logits are widened to float32 first. Nothing here waits for the device or branches on data, so every
function can be compiled and captured in a CUDA graph.
"""

from ncollapse.losses.binary_cross_entropy import binary_cross_entropy
from ncollapse.losses.cross_entropy import cross_entropy
from ncollapse.losses.focal import focal
from ncollapse.losses.label_smoothing import label_smoothing
from ncollapse.losses.mse import mse
from ncollapse.losses.one_logit import binary

__all__ = ["binary", "binary_cross_entropy", "cross_entropy", "focal", "label_smoothing", "mse"]
