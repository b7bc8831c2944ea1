"""Data sets, seeded subsets, augmentation and loaders that live on the device."""

from ncollapse.data.augment import Augment
from ncollapse.data.catalogue import INFO, NORMALISATION, Samples, load
from ncollapse.data.dataset import Dataset, MissingSplit
from ncollapse.data.folders import FolderDataset
from ncollapse.data.loader import DeviceLoader, EvalLoader
from ncollapse.data.loader_factory import eval_loader, train_loader
from ncollapse.data.stream import FolderEvalLoader, FolderLoader
from ncollapse.data.subsets import (
    hold_out_test,
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
    "FolderDataset",
    "FolderEvalLoader",
    "FolderLoader",
    "MissingSplit",
    "Samples",
    "eval_loader",
    "hold_out_test",
    "load",
    "long_tail",
    "per_class_counts",
    "random_labels",
    "samples_per_class",
    "step_imbalance",
    "train_loader",
    "validation_split",
]
