"""The history of a run, one JSON object a line: what is readable is kept, damaged lines are counted and named."""

from __future__ import annotations

import io
import zlib
from pathlib import Path
from typing import Any

from ncollapse.runs.files import parse_json, read_bounded, write_atomic
from ncollapse.runs.schema import MOST_EPOCHS, check_row

Row = dict[str, Any]
PLAIN, PACKED = "history.jsonl", "history.jsonl.gz"
LARGEST_HISTORY = 256 << 20
KEPT_ROWS = 200
"""Packed histories, kept beside the code, are thinned to so many rows."""
MOST_ROWS = 10**6
MOST_PROBLEMS = 20
CHUNK = 1 << 16


def read_history(folder: Path, notes: list[str], epochs: int = MOST_EPOCHS) -> list[Row]:
    """Read the rows of a run's history, plain or packed, in the order of their epochs.

    Lines that cannot be read, rows that no run of so many epochs writes, and rows that repeat or go back to an earlier
    epoch are left out; `notes` says how many and why.
    """
    try:
        content = _read_lines(folder, notes)
    except (OSError, ValueError, MemoryError) as error:
        notes.append(f"history: {error or type(error).__name__}")
        return []
    if content is None:
        return []
    kept, problems, lines = parse_history(content, epochs)
    if lines > len(kept):
        left_out = f"{lines - len(kept)} of {lines} lines"
        notes.append(f"history: {left_out} cannot be read and are left out (first: {problems[0]})")
    return [row for _, row in kept]


def parse_history(content: bytes, epochs: int = MOST_EPOCHS) -> tuple[list[tuple[bytes, Row]], list[str], int]:
    """Return the valid lines with their rows, what is wrong with the first others, and how many lines there are."""
    kept: list[tuple[bytes, Row]] = []
    problems: list[str] = []
    last, number = -1, 0
    for number, line in enumerate(io.BytesIO(content), 1):
        line = line.rstrip(b"\n")
        try:
            if len(kept) == MOST_ROWS:
                raise ValueError(f"expected at most {MOST_ROWS} rows")
            row = parse_json(line)
            check_row(row, epochs)
            if row["epoch"] <= last:
                raise ValueError(f"epoch: expected one after {last}, got {row['epoch']}")
        except (ValueError, MemoryError) as error:
            if len(problems) < MOST_PROBLEMS:
                problems.append(f"line {number}: {error}")
            continue
        last = row["epoch"] = int(row["epoch"])
        kept.append((line, row))
    return kept, problems, number


def cut_history(path: Path, epoch: int, epochs: int = MOST_EPOCHS) -> list[str]:
    """Keep the readable rows of a history file up to an epoch; return what is wrong with lines that are dropped.

    Rows past the epoch are dropped too: they will be written again.
    """
    if not path.exists():
        return []
    content = read_bounded(path, LARGEST_HISTORY)
    kept, problems, _ = parse_history(content, epochs)
    wanted = b"".join(line + b"\n" for line, row in kept if row["epoch"] <= epoch)
    if wanted != content:
        write_atomic(path, wanted)
    return problems


def find_missing_epochs(rows: list[Row], every: int, epochs: int | None, reached: int) -> list[range]:
    """Return the epochs up to `reached` that a run measured every `every` epochs should have recorded, but has not.

    The last of the run's `epochs` is always measured. So is the first, but not in runs of earlier versions, so that it
    is not missed. Each range is a gap: its length is the number of rows that are
    missing.

    >>> find_missing_epochs([{"epoch": 4}, {"epoch": 8}], 2, 9, 9)
    [range(2, 4, 2), range(6, 8, 2), range(9, 10)]
    """
    found: list[range] = []
    present = sorted({row["epoch"] for row in rows if row["epoch"] > 0 and row["epoch"] % every == 0})
    before = 0
    for epoch in [*present, reached // every * every + every]:
        gap = range(before + every, epoch, every)
        if gap:
            found.append(gap)
        before = epoch
    if epochs is not None and reached >= epochs and epochs % every and all(row["epoch"] != epochs for row in rows):
        found.append(range(epochs, epochs + 1))
    return found


def _read_lines(folder: Path, notes: list[str]) -> bytes | None:
    if (folder / PLAIN).exists():
        return read_bounded(folder / PLAIN, LARGEST_HISTORY)
    if (folder / PACKED).exists():
        return _unpack(read_bounded(folder / PACKED, LARGEST_HISTORY), notes)
    return None


def _unpack(packed: bytes, notes: list[str]) -> bytes:
    """Decompress gzip up to the bound; of a damaged file, what comes before the damage."""
    stream = zlib.decompressobj(wbits=31)
    found = bytearray()
    try:
        for start in range(0, len(packed), CHUNK):
            rest = packed[start : start + CHUNK]
            while rest and not stream.eof:
                found += stream.decompress(rest, LARGEST_HISTORY + 1 - len(found))
                if len(found) > LARGEST_HISTORY:
                    raise ValueError(f"expected at most {LARGEST_HISTORY} bytes when unpacked")
                rest = stream.unconsumed_tail
    except zlib.error as error:
        notes.append(f"history: damaged gzip ({error})")
    else:
        if not stream.eof:
            notes.append("history: the gzip file is cut short")
    return bytes(found)
