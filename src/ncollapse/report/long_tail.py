"""Results of single classes on the page, for data whose classes differ in size: groups of classes, and every class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ncollapse.compare.classes import GROUPS, ClassRow, ClassTable
from ncollapse.compare.numbers import MISSING, show_difference, show_estimate
from ncollapse.compare.seeds import Estimate
from ncollapse.grammar import join
from ncollapse.report.class_table import choose_titles, describe_groups
from ncollapse.report.encoding import compact
from ncollapse.report.panels import Figure, Panel, Spec, build, escape, name_once, shorten_labels, thin
from ncollapse.report.style import DASHES, loss_style
from ncollapse.report.tables import Cell, Table

SHOWN_CLASSES = 300
"""So many classes the table of classes shows at most: the rarest ones."""


def tabulate_groups(tables: Sequence[ClassTable]) -> list[Table]:
    """For each set of training counts, a table of means over classes and over groups of classes."""
    return [
        Table(
            name("class-groups", number),
            f"{join([g for g in GROUPS if g in table.groups])} classes{where(table, tables)}".capitalize(),
            f"{describe_groups(table)[0].upper()}{describe_groups(table)[1:]}",
            tuple(map(Cell, ("", *choose_titles(table).values()))),
            tuple(_group_row(row, choose_titles(table)) for row in table.rows),
        )
        for number, table in enumerate(tables)
    ]


def _group_row(row: ClassRow, keys: Iterable[str]) -> tuple[Cell, ...]:
    cells = [Cell(row.label, (f"against {row.reference}",) if row.reference else (), loss=row.loss)]
    for key in keys:
        found = row.values[key]
        lines: tuple[str, ...] = ()
        if key in row.differences:
            shown, interval = show_difference(row.differences[key], percent=True)
            lines = (f"{shown} {interval}" if interval.startswith("[") else f"{shown}, {interval}",)
        numbers = {"mean": found.mean, "std": found.std, "n": found.n}
        cells.append(Cell(show_estimate(found, percent=True), lines, numbers=numbers))
    return tuple(cells)


def tabulate_rare(tables: Sequence[ClassTable]) -> list[Table]:
    """For each set of training counts, the test accuracy of every class, the rarest class first."""
    made = []
    for number, table in enumerate(tables):
        order = sort_classes(table)
        notes: tuple[str, ...] = ()
        if len(order) > SHOWN_CLASSES:
            notes = (f"The {SHOWN_CLASSES} rarest of {len(order)} classes.",)
        names = shorten_labels([row.label for row in table.rows], most=10**6)
        columns = ("class", "training samples", "group", *(f"{label}: test accuracy" for label in names))
        rows = []
        for k in order[:SHOWN_CLASSES]:
            first = (Cell(table.names[k]), Cell(f"{table.train_counts[k]}", numbers={"samples": table.train_counts[k]}))
            rows.append((*first, Cell(table.groups[k]), *(_class_cell(row.class_accuracy[k]) for row in table.rows)))
        made.append(
            Table(
                name("rare-classes", number),
                f"Class by class, the rarest first{where(table, tables)}",
                "Test accuracy over all seeds.",
                tuple(map(Cell, columns)),
                tuple(rows),
                notes=notes,
            )
        )
    return made


def _class_cell(found: Estimate) -> Cell:
    text = show_estimate(found, percent=True) if found.n else MISSING
    return Cell(text, numbers={"mean": found.mean, "std": found.std, "n": found.n})


def draw_rare(tables: Sequence[ClassTable]) -> Figure | None:
    """Test accuracy of every class over its number of training samples, one line a variant."""
    panels = []
    for table in tables:
        order = [k for k in sort_classes(table) if table.train_counts[k]]
        traces: list[Spec] = []
        names = shorten_labels([row.label for row in table.rows])
        for row, label in zip(table.rows, names):
            style = loss_style(row.loss)
            same = [other.label for other in table.rows if other.loss == row.loss]
            line = {"color": style.colour, "width": 1.6, "dash": DASHES[same.index(row.label) % len(DASHES)]}
            tied = len({table.train_counts[k] for k in order}) < len(order)
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers" if tied else "lines+markers",
                    "name": escape(label),
                    "legendgroup": escape(row.label),
                    "showlegend": False,
                    "x": [table.train_counts[k] for k in order],
                    "y": compact(row.class_accuracy[k].mean for k in order),
                    "text": [escape(table.names[k]) for k in order],
                    "line": line,
                    "cliponaxis": False,
                    "marker": {"symbol": style.marker, "size": 7, "color": style.colour, "maxdisplayed": 40},
                    "hovertemplate": "%{text}, %{x} samples: %{y:.1%}<extra>%{fullData.name}</extra>",
                }
            )
            if tied:
                traces.append(join_sizes(traces[-1]))
        x: Spec = {"type": "log", "title": {"text": "training samples of the class", "standoff": 4}}
        counts = sorted({table.train_counts[k] for k in order})
        x |= {"tickvals": thin(counts), "ticktext": [f"{c:,}" for c in thin(counts)]}
        title = f"test accuracy{where(table, tables)}"
        panels.append(Panel(escape(title), traces, x, {"tickformat": ".0%", "rangemode": "tozero"}))
    if not panels:
        return None
    name_once(panels)
    return Figure(
        "rare-classes",
        "Accuracy by size of class",
        "One mark per class, mean over seeds; lines join the means over the classes of one size. Classes with few "
        "training samples are on the left."
        if any(trace["mode"] == "lines" for panel in panels for trace in panel.traces)
        else "One mark per class, mean over seeds. Classes with few training samples are on the left.",
        build(panels, columns=min(2, len(panels)), row_height=280, showlegend=True),
        result=describe_tail(tables),
    )


def join_sizes(marks: Spec) -> Spec:
    """The line that joins the means over classes of one size, beside the marks of the classes."""
    found: dict[int, list[float]] = {}
    for count, value in zip(marks["x"], marks["y"]):
        if value is not None:
            found.setdefault(count, []).append(value)
    kept = ("type", "name", "legendgroup", "showlegend", "line")
    means = compact(sum(values) / len(values) for values in found.values())
    return {**{key: marks[key] for key in kept}, "mode": "lines", "x": list(found), "y": means, "hoverinfo": "skip"}


def describe_tail(tables: Sequence[ClassTable]) -> str:
    """How far the tail lies behind the head, for every variant of a single table."""
    if len(tables) != 1 or len(tables[0].rows) > 6:
        return ""
    said = []
    for row in tables[0].rows:
        head, tail = row.values["head"], row.values["tail"]
        if head.n and tail.n:
            said.append(f"{100 * (head.mean - tail.mean):.1f} points ({row.label})")
    return f"The tail is less accurate than the head by {join(said)}." if said else ""


def sort_classes(table: ClassTable) -> list[int]:
    """The classes in the order of their training samples, the rarest first."""
    return sorted(range(len(table.names)), key=lambda k: (table.train_counts[k], k))


def where(table: ClassTable, tables: Sequence[ClassTable]) -> str:
    """What tells a table from the others; nothing where it is the only one."""
    return f": {len(table.names)} classes, imbalance {table.imbalance:.3g}" if len(tables) > 1 else ""


def name(base: str, number: int) -> str:
    """An id for the page; the first of several has no number."""
    return f"{base}-{number}" if number else base
