"""Which comparisons of the fused kernels have passed on this machine: empty files in the user's cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
from functools import cache
from pathlib import Path

import ncollapse


def locate_cache() -> Path:
    """Return the folder NCOLLAPSE_CACHE, or `ncollapse` in the user's cache folder."""
    chosen = os.environ.get("NCOLLAPSE_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ncollapse"


def was_verified(*facts: object) -> bool:
    """Whether a comparison with exactly these facts has passed before."""
    with contextlib.suppress(OSError, RuntimeError):  # no home folder
        return _find_marker(facts).exists()
    return False


def remember_verified(*facts: object) -> None:
    """Note that a comparison with these facts has passed; where nothing can be written, it will be made again."""
    with contextlib.suppress(OSError, RuntimeError):
        marker = _find_marker(facts)
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()


def _find_marker(facts: tuple[object, ...]) -> Path:
    words = repr((*facts, _digest_sources()))
    return locate_cache() / "verified" / hashlib.sha256(words.encode()).hexdigest()[:32]


@cache
def _digest_sources() -> str:
    """A digest of the package's networks and kernels: what has changed since is compared again."""
    folder = Path(ncollapse.__file__).parent / "models"
    content = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    return hashlib.sha256(content).hexdigest()
