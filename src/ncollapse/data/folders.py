"""Image folders: each class is a folder, each sample a file in it. Files are listed here and decoded later."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ncollapse.data.dataset import Labelled, MissingSplit, refuse_untrained
from ncollapse.data.splits import split_stratified

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".webp", ".tif", ".tiff")
PARTS = {"train": ("train",), "test": ("test", "val")}
MINI_CLASSES, MINI_PER_CLASS, MINI_TEST, MINI_SEED = 100, 600, 100, 0


@dataclass(frozen=True, eq=False)
class FolderDataset(Labelled):
    """A data set of image files: paths in place of the images, all else as in Dataset."""

    paths: tuple[str, ...]
    labels: Tensor
    classes: tuple[str, ...]
    name: str
    split: str
    record: tuple[Mapping[str, Any], ...] = field(default=())

    def __repr__(self) -> str:
        return f"FolderDataset({self.name}, {self.split}: {len(self.paths)} files, {len(self.classes)} classes)"

    def __post_init__(self) -> None:
        self._check_labels(len(self.paths))

    def select(self, index: Tensor, **draw: Any) -> FolderDataset:
        """Return the samples at `index`, in that order; `draw` is appended to the record."""
        record = (*self.record, draw) if draw else self.record
        paths = tuple(self.paths[place] for place in index.tolist())
        return replace(self, paths=paths, labels=self.labels[index], record=record)


def load_folder(folder: Path, split: str, name: str) -> FolderDataset:
    """Read FOLDER/train/<class>/* and FOLDER/test/<class>/* (or val); both must have the same classes.

    A folder without test and val, or one that holds the class folders itself, has training samples alone: its test
    split raises `MissingSplit`. Classes are numbered in the order of their names, files follow theirs.
    """
    parts = find_parts(folder)
    if split not in parts:
        missing_test = f"no folder {folder / 'test'} or {folder / 'val'}, which would hold one folder for each class"
        raise MissingSplit(missing_test) if name.startswith("folder:") else FileNotFoundError(missing_test)
    classes = {part: _list_classes(path) for part, path in parts.items()}
    for part, other in (("train", "test"), ("test", "train")) if len(parts) == 2 else ():
        refuse_untrained(str(parts[part]), classes[part], str(parts[other]), classes[other], noun="class folder")
    return _collect([parts[split]], classes[split], name, split)


def find_parts(folder: Path) -> dict[str, Path]:
    """Return the folders of the training and test images; the folder itself where it holds the class folders."""
    if not folder.is_dir():
        raise FileNotFoundError(f"data: expected a folder of images, found no folder {folder}")
    found = {
        split: folder / next(name for name in names if (folder / name).is_dir())
        for split, names in PARTS.items()
        if any((folder / name).is_dir() for name in names)
    }
    if not found:
        return {"train": folder}
    if "train" not in found:
        raise FileNotFoundError(f"data: expected a folder {folder / 'train'} beside {found['test']}, found none")
    return found


def load_mini_imagenet(folder: Path, split: str) -> FolderDataset:
    """Read miniImageNet's 100 classes of 600 images as 50000 training and 10000 test images over all classes.

    The class folders lie in FOLDER itself, or in train, val and test below it as for few-shot learning (64, 16 and 20
    classes), which are joined here. 100 images of each class are drawn for the test set, always the same
    (seed 0), as in mse-landscape (Appendix A); the papers do not publish their split.
    """
    below = [folder / part for part in ("train", "val", "test") if (folder / part).is_dir()]
    homes = below or [folder]
    classes = sorted({name for home in homes for name in _list_classes(home)})
    whole = _collect(homes, classes, "mini-imagenet", split)
    if len(classes) != MINI_CLASSES or set(whole.counts()) != {MINI_PER_CLASS}:
        counts = sorted(set(whole.counts()))
        raise ValueError(
            f"{folder} must hold {MINI_CLASSES} class folders of {MINI_PER_CLASS} images; "
            f"found {len(classes)} of {counts[0]} to {counts[-1]}"
        )
    fraction = MINI_TEST / MINI_PER_CLASS
    train, test = split_stratified(whole.labels, fraction, MINI_SEED)
    index = train if split == "train" else test
    return whole.select(index, draw="split", per_class=MINI_TEST, seed=MINI_SEED, stratified=True)


def _list_classes(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise FileNotFoundError(f"data: expected a folder of images, found no folder {folder}")
    found = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not found:
        raise ValueError(f"{folder} holds no class folders: expected one folder of images for each class")
    return found


def _collect(homes: list[Path], classes: list[str], name: str, split: str) -> FolderDataset:
    paths: list[str] = []
    labels: list[int] = []
    for label, class_name in enumerate(classes):
        entries = [
            entry
            for home in homes
            if (home / class_name).is_dir()
            for entry in os.scandir(home / class_name)
            if entry.name.lower().endswith(SUFFIXES) and not entry.name.startswith(".")
        ]
        found = [entry.path for entry in entries]
        odd = [entry.path for entry in entries if not entry.is_file()]  # a pipe would block its reader for ever
        if odd:
            raise ValueError(f"{odd[0]}: an image must be a regular file")
        if not found:
            raise ValueError(f"the class folder {homes[0] / class_name} holds no image ({', '.join(SUFFIXES)})")
        paths += sorted(found)
        labels += [label] * len(found)
    return FolderDataset(tuple(paths), torch.tensor(labels), tuple(classes), name, split)
