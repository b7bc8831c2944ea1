"""Results of single classes on the terminal, for data whose classes differ in size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ncollapse.compare.classes import GROUPS, ClassTable
from ncollapse.report.numbers import show_estimate
from ncollapse.report.terminal import format_difference

if TYPE_CHECKING:
    from rich.console import Console

RAREST = 5
TITLES = {"balanced_accuracy": "balanced accuracy", "macro_f1": "macro F1"}


def print_class_table(output: Console, table: ClassTable) -> None:
    """Print means over classes and groups of classes for every loss, then the rarest classes by name."""
    from rich.table import Table
    from rich.text import Text

    most, least = max(table.train_counts), min(table.train_counts)
    title = f"classes of {least} to {most} training samples, test set, in %"
    means = Table(box=None, header_style="bold", pad_edge=False, title=title, title_justify="left", title_style="bold")
    means.add_column("")
    for key in (*TITLES, *GROUPS):
        means.add_column(TITLES.get(key, key), justify="right")
    for row in table.rows:
        means.add_row(Text(row.label), *(show_estimate(row.values[key], percent=True) for key in (*TITLES, *GROUPS)))
        if row.differences:
            shown = [format_difference(row.differences[key], percent=True) for key in (*TITLES, *GROUPS)]
            means.add_row(Text(f"  − {row.reference}"), *shown)
    output.print(means, "")
    order = sorted(range(len(table.names)), key=lambda k: (table.train_counts[k], k))[:RAREST]
    rarest = Table(
        box=None, header_style="bold", pad_edge=False, title="rarest classes", title_justify="left", title_style="bold"
    )
    for heading in ("class", "training samples", *(row.label for row in table.rows)):
        rarest.add_column(Text(heading), justify="left" if heading == "class" else "right")
    for k in order:
        shown = [show_estimate(row.class_accuracy[k], percent=True) for row in table.rows]
        rarest.add_row(Text(table.names[k]), str(table.train_counts[k]), *shown)
    output.print(rarest, "")
    note = "head, middle, tail: mean accuracy of the third of the classes with the most training samples, of those"
    output.print(f"{note} between, and of the third with the fewest; over all seeds.", style="dim", highlight=False)
