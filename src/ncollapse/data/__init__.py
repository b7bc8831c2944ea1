"""Data sets, seeded subsets, augmentation and loaders that live on the device."""

from ncollapse.data.augment import Augment
from ncollapse.data.catalogue import INFO, NORMALISATION, load
from ncollapse.data.dataset import Dataset
from ncollapse.data.loader import DeviceLoader, EvalLoader
from ncollapse.data.subsets import (
    long_tail,
    per_class_counts,
    random_labels,
    samples_per_class,
    step_imbalance,
    validation_split,
)

__all__ = [
    "INFO",
    "NORMALISATION",
    "Augment",
    "Dataset",
    "DeviceLoader",
    "EvalLoader",
    "load",
    "long_tail",
    "per_class_counts",
    "random_labels",
    "samples_per_class",
    "step_imbalance",
    "validation_split",
]
