"""MNIST's idx files, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ncollapse.data.dataset import Dataset

PARTS = {"train": "train", "test": "t10k"}
DIGITS = tuple(str(digit) for digit in range(10))
GARMENTS = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


def read_idx(path: Path) -> Tensor:
    """The uint8 array of an idx file: magic 0x0000_08NN with NN dimensions, their sizes, then the bytes."""
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        try:
            raw = gzip.decompress(raw)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{path} is a damaged or truncated gzip file: {error}") from error
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise ValueError(f"{path} is no idx file of bytes: it starts with {raw[:4].hex() or 'nothing'}, not 000008")
    dimensions = raw[3]
    header = 4 + 4 * dimensions
    if len(raw) < header:
        raise ValueError(f"{path} is truncated: {len(raw)} bytes, and its header alone takes {header}")
    shape = struct.unpack(f">{dimensions}I", raw[4:header])
    if len(raw) - header != math.prod(shape):
        found = len(raw) - header
        kind = "truncated" if found < math.prod(shape) else "too long"
        raise ValueError(f"{path} is {kind}: shape {list(shape)} needs {math.prod(shape)} bytes, it has {found}")
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=header).reshape(shape).copy())


def load_idx(folder: Path, split: str, name: str, classes: tuple[str, ...]) -> Dataset:
    """Images and labels of one split, uint8 [N, 1, H, W]."""
    images = read_idx(find_idx(folder, f"{PARTS[split]}-images-idx3-ubyte"))
    labels = read_idx(find_idx(folder, f"{PARTS[split]}-labels-idx1-ubyte"))
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise ValueError(
            f"{folder}: {split} images {list(images.shape)} and labels {list(labels.shape)} do not belong together"
        )
    return Dataset(images[:, None], labels.long(), classes, name, split)


def find_idx(folder: Path, stem: str) -> Path:
    """The file of this name, gzipped or not."""
    for path in (folder / stem, folder / f"{stem}.gz"):
        if path.is_file():
            return path
    raise FileNotFoundError(f"no file {folder / stem} (or {stem}.gz)")
