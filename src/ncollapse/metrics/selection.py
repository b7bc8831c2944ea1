"""Which fields are measured: all, those that are asked for, or above many classes those that stay cheap."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from .fields import FIELDS

ALL_FIELDS_CLASSES = 10_000  # up to so many classes the default measures every field

EVERY_SCORE = frozenset(
    {
        *("nc4", "nearest_mean_accuracy", "accuracy", "class_accuracy", "cosine_margin", "negative_score"),
        *("uniform_accuracy", "uniform_threshold", "uniform_accuracy_grid", "scores_concentrated"),
    }
)
EVERY_PAIR = frozenset(
    {
        *("cdnv", "equiangle_means", "equiangle_weights", "mean_cosines", "weight_cosines", "mean_orthogonality"),
        "nc3_relu",  # needs a problem, too
    }
)
ON_REQUEST = frozenset({"numerical_rank"})
ALWAYS = frozenset({"num_samples", "num_classes", "present_classes", "dim", "counts", "empty_classes"})
NAMES = tuple(row.name for row in FIELDS)


class Selection(frozenset[str]):
    """The names of the fields to measure.

    >>> Selection({"nc1", "nc2"}).any("nc1", "cdnv")
    True
    """

    def any(self, *names: str) -> bool:
        """Whether one of these is wanted."""
        return not self.isdisjoint(names)


def select_fields(
    fields: str | Iterable[str] | None, num_classes: int, *, numerical_rank: bool = False
) -> tuple[Selection, list[str]]:
    """The fields that `measure(fields=...)` means: None for the default, "all", or names.

    The default leaves out what costs O(N K d) or O(K^2 d) where there are more than `ALL_FIELDS_CLASSES` classes; the
    second result says so.
    """
    extra = ON_REQUEST if numerical_rank else frozenset[str]()
    notes: list[str] = []
    if fields is None:
        chosen = frozenset(NAMES) - ON_REQUEST
        if num_classes > ALL_FIELDS_CLASSES:
            left_out = [name for name in NAMES if name in EVERY_SCORE | EVERY_PAIR]
            chosen -= frozenset(left_out)
            notes.append(
                f"{num_classes} classes: left out {', '.join(left_out)}, which need every score or every pair of "
                'classes; ask for them by name, fields=[...], or for everything, fields="all"'
            )
        return Selection(chosen | extra), notes
    if fields == "all":
        return Selection(frozenset(NAMES) - ON_REQUEST | extra), notes
    return Selection(check_fields(fields) | extra), notes


def check_fields(fields: str | Iterable[str]) -> frozenset[str]:
    """Names of fields, each of which must exist.

    >>> sorted(check_fields(["nc2", "nc1"]))
    ['nc1', 'nc2']
    """
    if isinstance(fields, str):
        fields = [fields]
    names = list(fields)
    unknown = [str(name) for name in names if name not in NAMES]
    if unknown or not names:
        got = ", ".join(unknown) if unknown else "none"
        near = difflib.get_close_matches(unknown[0], NAMES, 1) if unknown else []
        hint = f"; did you mean {near[0]}?" if near else ""
        hint = "; give the names one by one, without commas" if "," in got and len(unknown) == 1 else hint
        raise ValueError(f'fields: expected "all" or names of fields such as nc1, nc2 and cdnv, got {got}{hint}')
    return frozenset(names)
