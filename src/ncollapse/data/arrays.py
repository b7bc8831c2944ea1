"""The user's own arrays, from an npz file."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ncollapse.data.dataset import Dataset


class MissingSplit(ValueError):
    """The file has training samples alone."""


def load_npz(path: Path, split: str) -> Dataset:
    """Read `images` and `labels` (train), `test_images` and `test_labels` (test), and `classes` (names) if it is there.

    Images are uint8 [N, C, H, W], [N, H, W] or [N, H, W, C] (C is 1 or 3); floating point ones of these shapes, or
    vectors [N, d], enter the network as they are.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    prefix = "" if split == "train" else "test_"
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            if f"{prefix}images" not in file or f"{prefix}labels" not in file:
                refuse = MissingSplit if prefix and "images" in file and "labels" in file else ValueError
                raise refuse(
                    f"{path} needs the arrays {prefix}images and {prefix}labels for the split {split!r}; "
                    f"it has {', '.join(file.files) or 'none'}"
                )
            images, labels = file[f"{prefix}images"], file[f"{prefix}labels"]
            names = [str(item) for item in file["classes"]] if "classes" in file else None
            numbered = {key: file[key] for key in ("labels", "test_labels") if key in file}
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise ValueError(f"{path} is no npz file, or a damaged one: {error}") from error
    for key, array in numbered.items():
        if not np.issubdtype(array.dtype, np.integer):
            raise ValueError(f"{path}: {key} must be whole numbers, got {array.dtype}")
    highest = max(int(array.max()) if array.size else -1 for array in numbered.values())
    classes = tuple(names or (str(label) for label in range(highest + 1)))
    return Dataset(_arrange(images, path), torch.from_numpy(labels.astype(np.int64)), classes, f"npz:{path}", split)


def _arrange(images: np.ndarray, path: Path) -> Tensor:  # type: ignore[type-arg]
    if images.dtype != np.uint8:
        if not np.issubdtype(images.dtype, np.floating):
            raise ValueError(f"{path}: images must be uint8 or floating point, got {images.dtype}")
        if not np.isfinite(images).all():
            raise ValueError(f"{path}: images hold NaN or infinity")
        images = images.astype(np.float32)
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[3] in (1, 3) and images.shape[1] not in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(images))
