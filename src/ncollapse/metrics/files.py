"""Reading features, labels and a classifier from one file of arrays."""

from __future__ import annotations

import contextlib
import math
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, is_zipfile

import numpy as np
from numpy.lib import format as npy
from numpy.lib.format import MAGIC_PREFIX

NEEDED = ("features", "labels")
OPTIONAL = ("weight", "bias")
NPY_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_arrays(path: str | PathLike[str]) -> dict[str, Any]:
    """Read `features`, `labels` and, where they are there, `weight` and `bias` from an .npz or .safetensors file.

    Missing or extra arrays and pickled objects raise ValueError; nothing in the file is ever executed.
    """
    file = Path(path)
    if not file.exists():
        raise FileNotFoundError(f"{file}: no such file")
    if file.suffix == ".safetensors":
        arrays = _read_safetensors(file)
    elif file.suffix == ".npz":
        arrays = _read_npz(file)
    else:
        raise ValueError(f"{file}: expected a .npz or .safetensors file with {_wanted()}")
    return arrays


def _read_npz(file: Path) -> dict[str, Any]:
    with open_npz(file, _wanted()) as archive:
        check_names(file, archive.files)
        return {name: read_member(file, archive, name) for name in archive.files}


@contextmanager
def open_npz(file: Path, wanted: str) -> Iterator[Any]:
    """An .npz archive to read from; whatever is wrong with the file is a ValueError that names it."""
    try:
        with file.open("rb") as opened:
            if opened.read(len(MAGIC_PREFIX)) == MAGIC_PREFIX:
                raise ValueError(f"{file}: a single array, not an .npz archive with {wanted}")
            if not is_zipfile(opened):
                raise BadZipFile("not a zip archive, or not all of it")
            opened.seek(0)
            try:
                archive = np.load(opened, allow_pickle=False)
            except ValueError:  # numpy looks at the first bytes alone
                raise BadZipFile("it does not begin as a zip archive does") from None
            with archive:
                yield archive
    # RuntimeError: an encrypted archive, or one packed in a way unknown here
    except (OSError, EOFError, BadZipFile, zlib.error, RuntimeError) as error:
        raise ValueError(f"{file}: not a readable .npz file ({error})") from None


def read_member(file: Path, archive: Any, name: str) -> Any:
    """One array of an open archive, unless it is larger than the memory that is free."""
    refuse_size(file, archive, name)
    try:
        array = archive[name]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise ValueError(f"{file}: {name} is damaged ({error})") from None
        raise ValueError(f"{file}: {name} holds pickled objects, which are not read; save it as numbers") from None
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{file}: {name} is not an array; write the file with numpy.savez")
    return array


def refuse_size(file: Path, archive: Any, name: str) -> None:
    """Raise for an array that does not fit into memory: a small file may claim to unpack to any size."""
    member = next((info for info in archive.zip.infolist() if info.filename in (f"{name}.npy", name)), None)
    if member is None:
        return
    claimed, free = member.file_size, free_memory()
    try:
        with archive.zip.open(member) as stream:
            shape, _, kind = NPY_HEADERS[npy.read_magic(stream)](stream)
        claimed = max(claimed, math.prod(shape) * kind.itemsize)
    except (KeyError, ValueError):
        pass  # no array, or a damaged one: `read_member` says so
    if claimed > free:
        raise ValueError(
            f"{file}: {name} takes {claimed / 2**30:.1f} GiB, but only {free / 2**30:.1f} GiB of memory are free"
        )


def free_memory() -> float:
    """The bytes of memory that are available (Linux), else those of the machine, else infinity."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) * 1024
    with contextlib.suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return math.inf


def _read_safetensors(file: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        arrays = load_file(str(file))
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file}: not a readable .safetensors file ({error})") from None
    check_names(file, list(arrays))
    return dict(arrays)


def check_names(file: Path, names: list[str]) -> None:
    """Raise unless the file holds what is needed and nothing unknown."""
    missing = [name for name in NEEDED if name not in names]
    extra = [name for name in names if name not in NEEDED + OPTIONAL]
    if "bias" in names and "weight" not in names:
        missing.append("weight (there is a bias)")
    if missing:
        raise ValueError(
            f"{file}: {', '.join(missing)} missing; expected {_wanted()}; found {', '.join(names) or 'nothing'}"
        )
    if extra:
        raise ValueError(f"{file}: unknown {', '.join(extra)}; expected {_wanted()} and nothing else")


def _wanted() -> str:
    return "features [N, d], labels [N] and optionally weight [K, d], bias [K]"
