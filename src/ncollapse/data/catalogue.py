"""The data sets known by name: what they hold, where their files go, and how to read them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ncollapse.data.dataset import Dataset
from ncollapse.data.digits import load_digits

SPLITS = ("train", "test")
CIFAR_STATISTICS = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
IMAGENET_STATISTICS = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
NORMALISATION: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "digits": ((0.3053,), (0.3761,)),
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2860,), (0.3530,)),
    "cifar10": CIFAR_STATISTICS,
    "cifar100": CIFAR_STATISTICS,
    "imagenet": IMAGENET_STATISTICS,
    "mini-imagenet": IMAGENET_STATISTICS,
}


@dataclass(frozen=True)
class Info:
    """Facts of one data set: shape of an image, samples of train and test, and the folder its files go to."""

    shape: tuple[int, int, int]
    num_classes: int
    train: int
    test: int
    folder: str | None


INFO: dict[str, Info] = {
    "digits": Info((1, 8, 8), 10, 1438, 359, None),
}


def load(name: str, root: str | os.PathLike[str] | None = None, split: str = "train") -> Dataset:
    """Read a data set by name; `root` defaults to the environment variable NCOLLAPSE_DATA.

    >>> load("digits").images.shape
    torch.Size([1438, 1, 8, 8])
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    if name == "digits":
        return load_digits(split)
    raise ValueError(f"no data set {name!r}; there are {', '.join(INFO)}")


def find_root(root: str | os.PathLike[str] | None) -> Path:
    """The folder of the data sets: the argument, else NCOLLAPSE_DATA."""
    chosen = root if root is not None else os.environ.get("NCOLLAPSE_DATA")
    if not chosen:
        raise ValueError("no data root: give root (--root DIR), or set the environment variable NCOLLAPSE_DATA")
    return Path(chosen)
