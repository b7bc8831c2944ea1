"""What the command line prints with: one console, one progress display, one way to write JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


def console() -> Console:
    """A rich console on standard output, for tables and plain results."""
    from rich.console import Console

    return Console()


def progress() -> Progress:
    """A progress display on standard error, so that results on standard output stay clean."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[detail]}"),
        console=Console(stderr=True),
    )


def clean(value: Any) -> Any:
    """Make a value valid JSON: NaN and infinities become None, arrays lists, dataclasses dicts.

    >>> clean({"nc1": float("nan"), "counts": (3, 4)})
    {'nc1': None, 'counts': [3, 4]}
    """
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
