"""Output folders: made, or refused with an error that names the argument."""

from __future__ import annotations

import contextlib
import errno
import tempfile
from collections.abc import Iterator
from pathlib import Path

FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)


def find_file_in_the_way(folder: Path) -> Path | None:
    """Return the file that is in the place of this folder, or of one above it; None if there is none."""
    return next((path for path in (folder, *folder.parents) if path.exists() and not path.is_dir()), None)


def refuse_file(folder: Path, out: Path) -> None:
    """Raise if a file is in the place of a folder at `out` or below it."""
    blocked = find_file_in_the_way(folder)
    if blocked is not None:
        where = "" if blocked == out else f"{blocked} "
        raise NotADirectoryError(f"--out {out}: {where}is a file, not a folder")


def make_folder(folder: Path, out: Path) -> None:
    """Make a folder at `out` or below it and check that it can be written; an error names the argument."""
    with writing_to(f"--out {out}"):
        refuse_file(folder, out)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # an existing folder may be read-only
            pass


@contextlib.contextmanager
def writing_to(place: str) -> Iterator[None]:
    """Prefix errors of the file system in this block with `place`: an argument with its value, or a file."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # not the system's own words
            raise
        kind = PermissionError if error.errno in FORBIDDEN else OSError
        raise kind(f"{place}: cannot be written: {error.strerror}") from error
