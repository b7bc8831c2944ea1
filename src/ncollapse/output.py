"""Places to write to: a folder made or refused, and what the system says told of the argument that named the place."""

from __future__ import annotations

import contextlib
import errno
import tempfile
from collections.abc import Iterator
from pathlib import Path

FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)


def find_file_in_the_way(folder: Path) -> Path | None:
    """The file that stands where this folder, or one above it, would have to be."""
    return next((path for path in (folder, *folder.parents) if path.exists() and not path.is_dir()), None)


def refuse_file(place: Path, out: Path) -> None:
    """Raise where a folder at `out` or below it cannot be, because of a file."""
    blocked = find_file_in_the_way(place)
    if blocked is not None:
        where = "" if blocked == out else f"{blocked} "
        raise NotADirectoryError(f"--out {out}: {where}is a file, not a folder")


def make_folder(place: Path, out: Path) -> None:
    """Make a folder at `out` or below it that can be written to; an error names the argument."""
    with writing_to(f"--out {out}"):
        refuse_file(place, out)
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):  # it may be there and be read-only
            pass


@contextlib.contextmanager
def writing_to(place: str) -> Iterator[None]:
    """What the system refuses in here is said of `place`: an argument with its value, or a file."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # not the system's own words
            raise
        kind = PermissionError if error.errno in FORBIDDEN else OSError
        raise kind(f"{place}: cannot be written: {error.strerror}") from error
