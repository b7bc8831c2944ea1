"""Files of a run folder, written whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from ncollapse.console import clean


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, finds the old content or the new, never a part of either."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise name_unwritten_file(error, path) from error
        raise


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, NaN and infinity as null."""
    write_atomic(path, (json.dumps(clean(value), indent=1, allow_nan=False) + "\n").encode())


def append_line(path: Path, value: Any) -> None:
    """Append one line of JSON and wait until it is on the disk."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(clean(value), allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise name_unwritten_file(error, path) from error


def read_object(path: Path, notes: list[str] | None = None, needed: bool = False) -> dict[str, Any] | None:
    """Read the JSON object of a file; None where there is none.

    What is wrong with the file is added to `notes`. Without `notes`, an error of the file system is raised.
    """
    said: list[str] = [] if notes is None else notes
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        if needed:
            said.append(f"{path.name}: missing")
        return None
    except (OSError, ValueError, RecursionError) as error:
        if notes is None and isinstance(error, OSError):
            raise
        said.append(f"{path.name}: {error}")
        return None
    if not isinstance(value, dict):
        said.append(f"{path.name}: a {type(value).__name__} instead of an object")
        return None
    return value


def name_unwritten_file(error: OSError, path: Path) -> OSError:
    """Return the same error, naming the file that could not be written and what can be done."""
    text = f"{error.strerror}; what was written before is kept, and --resume continues from it. Not written"
    return OSError(error.errno, text, str(path))
