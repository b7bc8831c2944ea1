"""What the command line prints with: one console, one progress display, one way to write JSON, on any terminal."""

from __future__ import annotations

import codecs
import dataclasses
import json
import math
import os
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

DEGRADE = "ncollapse.degrade"
"""The name of the error handler with which characters that a terminal lacks are written as others."""
SUBSTITUTES = {
    **{"−": "-", "–": "-", "—": "-", "±": "+/-", "·": "*", "×": "x", "≤": "<=", "≥": ">=", "≈": "~", "→": "->"},
    **{"α": "alpha", "β": "beta", "γ": "gamma", "κ": "kappa", "λ": "lambda", "ρ": "rho", "σ": "sigma", "μ": "mu"},
    **{"Σ": "Sigma", "Δ": "Delta", "δ": "delta", "ε": "epsilon", "θ": "theta", "‖": "||", "∞": "inf", "…": "..."},
    **{"“": '"', "”": '"', "‘": "'", "’": "'", "√": "sqrt", "∈": "in", "ℓ": "l"},
}
GAP, NARROWEST = 2, 12  # blanks between columns; the narrowest that a last column gets
SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+"))


def prepare_streams() -> None:
    """Make printing safe: closed streams go nowhere, and characters that the terminal lacks become others.

    A closed descriptor is filled first: else the next file that is opened would take its number, and what libraries
    print would end up in that file.
    """
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - for the whole process
    codecs.register_error(DEGRADE, degrade)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=DEGRADE)


def degrade(error: UnicodeError) -> tuple[bytes, int]:
    """Write characters that an encoding lacks in ASCII, and the bytes of a path that is not UTF-8 as they are.

    >>> codecs.register_error(DEGRADE, degrade)
    >>> "−1.2 ± 3·10⁻⁵ λ".encode("ascii", DEGRADE)
    b'-1.2 +/- 3*10^-5 lambda'
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = b""
    raised = False
    for character in error.object[error.start : error.end]:
        if character in SUPERSCRIPTS:
            found += b"" if raised else b"^"
            found += SUPERSCRIPTS[character].encode()
        elif "\udc80" <= character <= "\udcff":
            found += bytes([ord(character) - 0xDC00])
        else:
            plain = SUBSTITUTES.get(character) or unicodedata.normalize("NFKD", character)
            found += plain.encode("ascii", "ignore") or b"?"
        raised = character in SUPERSCRIPTS
    return found, error.end


def terminal_width() -> int:
    """Return how many columns the terminal has; 80 where the output goes elsewhere."""
    return shutil.get_terminal_size().columns


def break_lines(text: str, width: int | None, indent: str = "  ") -> str:
    """Break a sentence into lines of a width, the later ones indented; ids and paths stay whole.

    >>> print(break_lines("runs are listed in out/report.html", 20))
    runs are listed in
      out/report.html
    """
    if width is None or not text:
        return text
    return textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def lay_out(rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Lay rows out in aligned columns, one text a row; where that is wider than `width`, the last column is broken.

    >>> print(*lay_out([("", "value", "meaning"), ("nc1", "0.25", "spread within classes")], 24), sep="\\n")
         value  meaning
    nc1  0.25   spread
                within
                classes
    """
    sizes = [max(map(len, column)) + GAP for column in zip(*rows, strict=True)][:-1]
    margin = sum(sizes)
    room = None if width is None else max(width - margin, NARROWEST)
    texts = []
    for *cells, last in rows:
        start = "".join(cell.ljust(size) for cell, size in zip(cells, sizes, strict=True))
        texts.append((start + break_lines(last, room, indent="").replace("\n", "\n" + " " * margin)).rstrip())
    return texts


def console() -> Console:
    """Make a rich console on standard output; brackets and colons in names and paths are printed as they are."""
    from rich.console import Console

    return Console(markup=False, emoji=False)


def progress(console: Console | None = None) -> Progress:
    """Make a progress display on standard error, so that results on standard output stay clean.

    However narrow the terminal, the bar, the epochs and the time left stay whole: the detail is cut first.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    cut = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    return Progress(
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=20, table_column=Column(min_width=20)),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[detail]}", markup=False, table_column=cut),
        console=console or Console(stderr=True, markup=False, emoji=False),
        expand=True,
    )


def clean(value: Any) -> Any:
    """Make a value valid JSON: NaN and infinities become None, arrays lists, dataclasses dicts.

    >>> clean({"nc1": float("nan"), "counts": (3, 4)})
    {'nc1': None, 'counts': [3, 4]}
    """
    kind = type(value)
    if kind is float:  # first what most values are
        return value if math.isfinite(value) else None
    if value is None or kind in (bool, int, str):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [clean(item) for item in value]
    if hasattr(value, "tolist"):
        return clean(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)


def print_json(value: Any) -> None:
    """Print one valid JSON object and nothing else."""
    sys.stdout.write(json.dumps(clean(value), allow_nan=False) + "\n")
