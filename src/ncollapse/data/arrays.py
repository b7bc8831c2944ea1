"""The user's own data, from the arrays of an .npz file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from ncollapse.data.dataset import Dataset, MissingSplit, refuse_untrained
from ncollapse.metrics.files import NPY_HEADERS, open_npz, read_member

MOST_CLASSES = 1_000_000


def load_npz(path: Path, split: str) -> Dataset:
    """Read `images` and `labels` (train), `test_images` and `test_labels` (test), and `classes` (names) if it is there.

    Images are uint8 [N, C, H, W], [N, H, W] or [N, H, W, C] (C is 1 or 3); floating point ones of these shapes, or
    vectors [N, d], enter the network as they are. Labels are 0 to K - 1; a number that the training labels skip, or
    that only the test labels have, is an error, unless the classes have names. Whatever is wrong with the file is a
    ValueError that names it.
    """
    if not path.is_file():
        raise FileNotFoundError(f"data: expected an .npz file of images and labels, found no file {path}")
    prefix = "" if split == "train" else "test_"
    with open_npz(path, "images and labels") as file:
        halves = [key for key in ("test_images", "test_labels") if key in file]
        if len(halves) == 1:
            raise ValueError(f"{path}: expected both test_images and test_labels or neither, got {halves[0]} alone")
        if f"{prefix}images" not in file or f"{prefix}labels" not in file:
            refuse = MissingSplit if prefix and "images" in file and "labels" in file else ValueError
            raise refuse(
                f"{path} needs the arrays {prefix}images and {prefix}labels for the split {split!r}; "
                f"it has {', '.join(file.files) or 'none'}"
            )
        shapes = {key: _read_shape(path, file, key) for key in ("images", "test_images") if key in file}
        images = read_member(path, file, f"{prefix}images")
        numbered = {key: read_member(path, file, key) for key in ("labels", "test_labels") if key in file}
        names = read_member(path, file, "classes") if "classes" in file else np.array([])
    if len(set(shapes.values())) > 1:
        train, test = (list(shape) for shape in shapes.values())
        raise ValueError(f"{path}: images are {train} each, but test_images {test}")
    for key, array in numbered.items():
        if not np.issubdtype(array.dtype, np.integer):
            raise ValueError(f"{path}: {key} must be whole numbers, got {array.dtype}")
    highest = max((int(array.max()) for array in numbered.values() if array.size), default=-1)
    if highest >= MOST_CLASSES:
        raise ValueError(f"{path}: labels: expected values below {MOST_CLASSES}, got {highest}")
    if not names.size:
        _refuse_gaps(path, numbered["labels"])
        trained, tested = (np.unique(numbered.get(key, [])).tolist() for key in ("labels", "test_labels"))
        refuse_untrained(f"{path}: the array labels", trained, "the array test_labels", tested)
    if not images.size:
        raise ValueError(f"{path}: {prefix}images holds no samples, its shape is {list(images.shape)}")
    classes = tuple(str(name) for name in (names.reshape(-1) if names.size else range(highest + 1)))
    labels = torch.from_numpy(numbered[f"{prefix}labels"].astype(np.int64))
    try:
        return Dataset(_convert(images), labels, classes, f"npz:{path}", split)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _refuse_gaps(path: Path, labels: np.ndarray[Any, Any]) -> None:
    """Raise if the training labels skip a class: a mistake in the numbering, unless the file names its classes."""
    known = set(np.unique(labels).tolist())
    highest = max(known, default=-1)
    empty = [label for label in range(highest + 1) if label not in known]
    if empty:
        listed = ", ".join(map(str, empty[:5])) + (" ..." if len(empty) > 5 else "")
        hint = "labels - 1 starts at 0" if empty == [0] else "numpy.unique(labels, return_inverse=True)[1] closes gaps"
        raise ValueError(
            f"{path}: labels run to {highest}, but no training sample has the label {listed}: {hint}; if these classes "
            "are meant, name all of them in an array `classes`"
        )


def _read_shape(path: Path, file: Any, key: str) -> tuple[int, ...]:
    """Read the shape of one sample from the header of its array alone."""
    try:
        with file.zip.open(f"{key}.npy") as stream:
            whole = np.broadcast_to(np.uint8(0), NPY_HEADERS[npy.read_magic(stream)](stream)[0])
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path}: {key} is not an array; write the file with numpy.savez") from error
    return tuple(_arrange(whole).shape[1:])


def _convert(images: np.ndarray[Any, Any]) -> Tensor:
    if images.dtype != np.uint8:
        if not np.issubdtype(images.dtype, np.floating):
            raise ValueError(f"images: expected uint8 or floating point, got {images.dtype}")
        if not np.isfinite(images).all():
            raise ValueError("images hold NaN or infinity")
        with np.errstate(over="ignore"):
            images = images.astype(np.float32)
        if not np.isfinite(images).all():
            raise ValueError(f"images: expected numbers of 32 bits, of at most {np.finfo(np.float32).max:.3g}")
    return torch.from_numpy(np.ascontiguousarray(_arrange(images)))


def _arrange(images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return images as [N, C, H, W], and anything else unchanged."""
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4 and images.shape[3] in (1, 3) and images.shape[1] not in (1, 3):
        return images.transpose(0, 3, 1, 2)
    return images
