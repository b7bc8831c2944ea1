"""Reading features, labels and a classifier from one file of arrays."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

NEEDED = ("features", "labels")
OPTIONAL = ("weight", "bias")


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
    try:
        archive = np.load(file, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{file}: not a readable .npz file ({error})") from None
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ValueError(f"{file}: a single array, not an .npz archive with {_wanted()}")
    with archive:
        check_names(file, archive.files)
        arrays = {}
        for name in archive.files:
            try:
                arrays[name] = archive[name]
            except ValueError:
                raise ValueError(
                    f"{file}: {name} holds pickled objects, which are not read; save it as numbers"
                ) from None
    return arrays


def _read_safetensors(file: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        arrays = load_file(str(file))
    except SafetensorError as error:
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
