"""MNIST's idx files, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from contextlib import nullcontext
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from ncollapse.data.dataset import Dataset

PARTS = {"train": "train", "test": "t10k"}
LARGEST_IDX = 1 << 30
"""The largest published file of this kind has 0.6 GB."""
DIGITS = tuple(str(digit) for digit in range(10))
GARMENTS = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


def read_idx(path: Path) -> Tensor:
    """Read the uint8 array of an idx file: magic 0x0000_08NN with NN dimensions, their sizes, then the bytes.

    No more is unpacked than the header announces, and no more than `LARGEST_IDX` bytes.
    """
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        try:
            with gzip.GzipFile(fileobj=file) if packed else nullcontext(file) as stream:
                return _read_stream(stream, path)
        except (EOFError, OSError, zlib.error) as error:
            kind = "a damaged or truncated gzip file" if packed else "unreadable"
            raise ValueError(f"{path} is {kind}: {error}") from error


def _read_stream(stream: IO[bytes] | gzip.GzipFile, path: Path) -> Tensor:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:3] != b"\x00\x00\x08":
        raise ValueError(f"{path} is no idx file of bytes: it starts with {magic.hex() or 'nothing'}, not 000008")
    header = 4 * magic[3]
    sizes = stream.read(header)
    if len(sizes) < header:
        raise ValueError(f"{path} is truncated: {4 + len(sizes)} bytes, and its header alone takes {4 + header}")
    shape = struct.unpack(f">{magic[3]}I", sizes)
    needed = math.prod(shape)
    if needed > LARGEST_IDX:
        raise ValueError(f"{path}: expected at most {LARGEST_IDX} bytes, got shape {list(shape)}")
    raw = stream.read(needed + 1)
    if len(raw) != needed:
        kind, found = ("truncated", str(len(raw))) if len(raw) < needed else ("too long", "more")
        raise ValueError(f"{path} is {kind}: shape {list(shape)} needs {needed} bytes, it has {found}")
    return torch.from_numpy(np.frombuffer(raw, np.uint8).reshape(shape).copy())


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
