"""Results of single classes on the terminal, for data whose classes differ in size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ncollapse.compare.classes import GROUPS, ClassTable
from ncollapse.compare.numbers import show_difference, show_estimate
from ncollapse.report.terminal import print_packed

if TYPE_CHECKING:
    from rich.console import Console

RAREST = 5
TITLES = {"balanced_accuracy": "balanced accuracy", "macro_f1": "macro F1", **{group: group for group in GROUPS}}


def choose_titles(table: ClassTable) -> dict[str, str]:
    """The columns of a table of groups by their keys, without groups that have no class."""
    return {key: title for key, title in TITLES.items() if key not in GROUPS or key in table.groups}


def describe_groups(table: ClassTable) -> str:
    """How to read a table of groups."""
    named = "head, middle, tail: mean accuracy of the third of the classes with the most training samples, of those "
    named += "between, and of the third with the fewest."
    if len(set(table.train_counts)) == 2:
        most, least = max(table.train_counts), min(table.train_counts)
        named = f"head, tail: mean accuracy of the classes with {most} and of those with {least} training samples."
    return f"{named} Over all seeds; differences are paired by seed, in points."


def print_class_table(output: Console, table: ClassTable) -> None:
    """Print means over classes and groups of classes for every loss, then the rarest classes by name."""
    from rich.text import Text

    rows: list[list[str | Text]] = []
    titles = choose_titles(table)
    for row in table.rows:
        rows.append([row.label, *(show_estimate(row.values[key], percent=True) for key in titles)])
        if row.differences:
            shown = [Text(" ".join(show_difference(row.differences[key], percent=True)), "dim") for key in titles]
            rows.append([Text(f"  − {row.reference}", "dim"), *shown])
    most, least = max(table.train_counts), min(table.train_counts)
    title = f"test set, classes of {least} to {most} training samples"
    print_packed(output, title, ["", *titles.values()], rows)
    order = sorted(range(len(table.names)), key=lambda k: (table.train_counts[k], k))[:RAREST]
    rarest = [
        [
            table.names[k],
            str(table.train_counts[k]),
            *(show_estimate(row.class_accuracy[k], percent=True) for row in table.rows),
        ]
        for k in order
    ]
    print_packed(output, "accuracy of the rarest classes", ["", "samples", *(row.label for row in table.rows)], rarest)
    output.print("")
    output.print(describe_groups(table), style="dim", highlight=False)
