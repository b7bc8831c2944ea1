"""`ncollapse data list|check`: which data sets are there, which are missing and where to put them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from ncollapse.commands.options import parse_args
from ncollapse.console import console, print_json

if TYPE_CHECKING:
    from ncollapse.data.check import Finding

NARROW = 70
"""Columns below which a table would cut the names of the data sets."""
STYLES = {"embedded": "green", "sound": "green", "there": "cyan", "damaged": "red", "missing": "dim"}


@dataclass
class Args:
    action: tyro.conf.Positional[Literal["list", "check"]]
    """list looks, check also reads: structure, counts and md5 sums."""
    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Data sets to check, folder:PATH and npz:PATH among them; all that are there if none is named."""
    root: Annotated[str | None, tyro.conf.arg(aliases=["--data-root"])] = None
    """The folder of the data sets; the environment variable NCOLLAPSE_DATA otherwise."""
    json: bool = False
    """Print one JSON object."""


def main(argv: list[str]) -> int:
    """List or check; 1 if a data set that is there is damaged, or one that was named is missing."""
    from ncollapse.data.check import check_data, list_data

    args = parse_args(Args, argv, "data", description="What is below the data root.")
    if args.action == "list" and args.names:
        raise ValueError("names: expected none for list; ncollapse data check mnist --root DIR checks one")
    root = args.root or os.environ.get("NCOLLAPSE_DATA") or None
    found = list_data(root) if args.action == "list" else check_data(root, args.names)
    if args.json:
        print_json({"root": root, "data": found})
    else:
        _print(found, root)
    faults = {"damaged", "missing"} if args.names else {"damaged"}
    return 1 if any(finding.state in faults for finding in found) else 0


def _print(found: list[Finding], root: str | None) -> None:
    from rich.table import Column, Table
    from rich.text import Text

    out = console()
    narrow = out.width < NARROW
    table = Table("data set", "state", "classes", "train", "test", Column("where", overflow="fold"), box=None)
    for finding in found:
        where = f"put it into {finding.where}" if finding.state == "missing" else finding.where
        sizes = [str(number) for number in (finding.num_classes, finding.train, finding.test)]
        table.add_row(finding.name, Text(finding.state, style=STYLES[finding.state]), *sizes, where)
        if narrow:
            classes, train, test = sizes
            out.print(f"{finding.name}: {finding.state}, {classes} classes, {train} / {test}; {where}", soft_wrap=True)
    if not narrow:
        out.print(table)
    for finding in found:
        for kind, notes in (("problem", finding.problems), ("warning", finding.warnings), ("note", finding.notes)):
            for note in notes:
                out.print(f"{kind}: {finding.name}: {note}", soft_wrap=True)
    own = all(":" in finding.name for finding in found)
    if not own:
        also = "Also: gaussian (drawn), folder:PATH (PATH/<class>/*, PATH/train/<class>/*), npz:PATH (images, labels)."
        out.print(f"\n{also}")
    if root is None and not own:
        out.print("No data root: give --root DIR, or set the environment variable NCOLLAPSE_DATA.")
