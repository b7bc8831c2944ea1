"""CIFAR's Python batches, read without executing anything in them.

They are pickles, and a pickle can execute any code. The reader here replaces the few names that a batch needs for its
array of bytes by harmless classes, and refuses every other name before anything is called.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from ncollapse.data.dataset import Dataset

BATCHES = {
    ("cifar10", "train"): tuple(f"data_batch_{number}" for number in range(1, 6)),
    ("cifar10", "test"): ("test_batch",),
    ("cifar100", "train"): ("train",),
    ("cifar100", "test"): ("test",),
}
KEYS = {"cifar10": ("labels", "batches.meta", "label_names"), "cifar100": ("fine_labels", "meta", "fine_label_names")}
ROW = 3 * 32 * 32


def load_cifar(folder: Path, split: str, name: str) -> Dataset:
    """CIFAR-10, or CIFAR-100 with its 100 fine classes: uint8 [N, 3, 32, 32]."""
    label_key, meta, names_key = KEYS[name]
    names = _take(read_pickle(folder / meta), names_key, list, folder / meta)
    if not all(isinstance(item, (str, bytes)) for item in names):
        raise ValueError(f"{folder / meta}: {names_key} must be a list of strings")
    classes = tuple(_decode(item) for item in names)
    images, labels = [], []
    for batch in BATCHES[name, split]:
        path = folder / batch
        content = read_pickle(path)
        data, targets = _take(content, "data", np.ndarray, path), _take(content, label_key, list, path)
        if data.dtype != np.uint8 or data.shape != (len(targets), ROW):
            raise ValueError(f"{path}: data must be uint8 [{len(targets)}, {ROW}], got {data.dtype} {list(data.shape)}")
        wrong = [row for row, target in enumerate(targets) if type(target) is not int or not 0 <= target < len(classes)]
        if wrong:
            known = f"whole numbers 0..{len(classes) - 1}"
            raise ValueError(f"{path}: {label_key} must be a list of {known}; that of image {wrong[0]} is not")
        images.append(data)
        labels.append(torch.tensor(targets, dtype=torch.int64))
    pixels = torch.from_numpy(np.concatenate(images)).reshape(-1, 3, 32, 32)
    return Dataset(pixels, torch.cat(labels), classes, name, split)


def read_pickle(path: Path) -> dict[str, Any]:
    """Return the dictionary in a pickle of arrays, dicts, lists, bytes, strings and numbers; refuse everything else.

    Arrays cannot be written to.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    with path.open("rb") as stream:
        try:
            found = _Unpickler(stream).load()
            if isinstance(found, dict):
                found = {_decode(key): _unwrap(value) for key, value in found.items()}
        except _Refused as error:
            raise ValueError(f"{path} asks for {error}, which no CIFAR file needs; refused, nothing was run") from error
        except Exception as error:  # a hostile or cut stream fails in any way it likes
            raise ValueError(f"{path} is a damaged or truncated pickle: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds a {type(found).__name__}, not a dictionary")
    return found


class _Refused(Exception):
    pass


class _Dtype:
    """Replaces numpy.dtype; only bytes are accepted."""

    def __init__(self, code: Any, *_: Any) -> None:
        if _decode(code) != "u1":
            raise _Refused(f"an array of type {code!r}")

    def __setstate__(self, state: Any) -> None:
        pass


class _Array:
    """Replaces the array that numpy's _reconstruct makes and its state fills."""

    array: np.ndarray[Any, np.dtype[np.uint8]] | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes):
            raise _Refused("an array of objects")
        self.array = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")


def _unwrap(value: Any) -> Any:
    if not isinstance(value, _Array):
        return value
    if value.array is None:
        raise ValueError("an array is never filled")
    return value.array


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _encode(text: str, codec: str) -> bytes:
    """How a pickle of protocol 2 writes bytes."""
    if codec != "latin1":
        raise _Refused(f"the codec {codec!r}")
    return text.encode("latin1")


class _Unpickler(pickle.Unpickler):
    _stands_in: ClassVar[dict[tuple[str, str], Callable[..., Any]]] = {
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _Dtype,
        ("_codecs", "encode"): _encode,
    }

    def __init__(self, stream: Any) -> None:
        super().__init__(stream, encoding="bytes")

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        try:
            return self._stands_in[module, name]
        except KeyError:
            raise _Refused(f"{module}.{name}") from None


def _take(found: dict[str, Any], key: str, kind: type, path: Path) -> Any:
    if not isinstance(found.get(key), kind):
        raise ValueError(f"{path} has no {kind.__name__} {key!r}; it has {', '.join(found) or 'nothing'}")
    return found[key]


def _decode(text: Any) -> str:
    return text.decode("latin1") if isinstance(text, bytes) else str(text)
