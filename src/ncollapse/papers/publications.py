"""The published numbers, as printed, with the table, row and column they stand in.

They live in `published/PAPER.json` as strings, so that every printed digit is kept. Each cell says which runs it speaks
of (`where`, in the words of the catalogue's filters) and which number of a run record it reports (`field`).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

PAPERS = ("bce-vs-ce", "bce-vs-ce-early", "all-losses", "imbalanced-relu", "mse-landscape")


@dataclass(frozen=True)
class Cell:
    """One published number: `mean` and `std` as printed; `percent` where the paper prints percent and we fractions."""

    row: str
    column: str
    where: dict[str, Any]
    field: str
    mean: str
    std: str | None = None
    percent: bool = False

    @property
    def value(self) -> float:
        """The number in our units (rates are fractions)."""
        return float(self.mean) / (100 if self.percent else 1)

    @property
    def unit_in_last_place(self) -> float:
        """What one step of the last printed digit is worth, in our units.

        >>> Cell("", "", {}, "alpha", "-0.0268").unit_in_last_place
        0.0001
        """
        digits = len(self.mean.partition(".")[2])
        return 10.0**-digits / (100 if self.percent else 1)

    @property
    def printed(self) -> str:
        """The cell as the paper shows it."""
        return self.mean if self.std is None else f"{self.mean} ± {self.std}"


@dataclass(frozen=True)
class Publication:
    """A published table or figure: what it shows, what its reader should know, its numbers."""

    caption: str
    notes: tuple[str, ...]
    cells: tuple[Cell, ...]

    def find(self, field: str, **where: Any) -> Cell:
        """The cell of that field and exactly these keys; KeyError if there is none."""
        for cell in self.cells:
            if cell.field == field and cell.where == where:
                return cell
        raise KeyError(f"no published {field} for {where}")


@cache
def load(paper: str) -> dict[str, Publication]:
    """Every table and figure of a paper.

    >>> load("bce-vs-ce")["table-6"].cells[0].printed
    '219.0960'
    """
    if paper not in PAPERS:
        raise ValueError(f"paper={paper!r}: there are {', '.join(PAPERS)}")
    text = files("ncollapse.papers").joinpath("published", f"{paper}.json").read_text(encoding="utf-8")
    return {name: _read(entry) for name, entry in json.loads(text)["entries"].items()}


def title(paper: str) -> str:
    """Authors, title and venue of a paper."""
    text = files("ncollapse.papers").joinpath("published", f"{paper}.json").read_text(encoding="utf-8")
    return str(json.loads(text)["title"])


def tabulated_alpha(rho: float, bias: float, num_classes: int, batch_size: int) -> float:
    """The value that tables 6 to 11 of bce-vs-ce list as alpha(b): Eq. 57 with n = batch size / K, without lambda_b b.

    alpha(b) = -(K-1) / (K (1 + exp(b + r / (K-1)))) + 1 / (K (1 + exp(r - b))), r = rho / (K sqrt(n)), for
    lambda_W = lambda_H. (The column was computed without the last term of the formula, as every row shows.)

    >>> round(tabulated_alpha(357.9696, 3.5134, 10, 128), 4)
    -0.0086
    """
    k = num_classes
    r = rho / math.sqrt(batch_size / k) / k
    return -(k - 1) / (k * (1 + math.exp(bias + r / (k - 1)))) + 1 / (k * (1 + math.exp(r - bias)))


def _read(entry: dict[str, Any]) -> Publication:
    cells = tuple(
        Cell(c["row"], c["column"], c["where"], c["field"], c["mean"], c.get("std"), c.get("unit") == "percent")
        for c in entry["cells"]
    )
    return Publication(entry["caption"], tuple(entry["notes"]), cells)
