"""A report as one self-contained HTML file."""

from __future__ import annotations

import datetime
import hashlib
from collections import Counter
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ncollapse import __version__
from ncollapse.compare import QUANTITIES
from ncollapse.compare.sentences import describe_ranges
from ncollapse.output import find_file_in_the_way
from ncollapse.report.answer import make_answer
from ncollapse.report.content import Report
from ncollapse.report.encoding import embed, limit_breaks
from ncollapse.report.explain import draw_explanations
from ncollapse.report.progress import describe_progress
from ncollapse.report.run_tables import MANY_RUNS
from ncollapse.report.static import draw_static
from ncollapse.report.style import loss_style, theme_css
from ncollapse.report.tables import format_json
from ncollapse.runs.files import write_atomic
from ncollapse.runs.record import get_nested

MAIN_PARTS = ("main", "contents", "statuses")
BUNDLE = "plotly-cartesian.min.js"
"""Plotly's bundle without 3-D and maps, a third of the whole; pages with 3-D figures take the whole one."""


def write_page(report: Report, path: Path) -> Path:
    """Write a report's page; the file is replaced in one step, so that a reader never sees half of it."""
    check_output(path)
    text = render(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        write_atomic(path, text.encode(errors="backslashreplace"))  # a path may hold bytes that are no UTF-8
    except OSError as error:  # which speaks of the files of a run; a page has none to resume
        raise (error.__cause__ if isinstance(error.__cause__, OSError) else error) from None
    return path


def check_output(path: Path) -> None:
    """Refuse a path at which no page can be written: a folder, or a path below a file."""
    if path.is_dir():
        raise ValueError(f"out: {str(path)!r} is a folder; give a file, such as {str(path / 'report.html')!r}")
    blocked = find_file_in_the_way(path.parent)
    if blocked:
        raise NotADirectoryError(f"out: {str(blocked)!r} is a file, so there can be no {str(path)!r}")


def render(report: Report, live: str = "") -> str:
    """The page as text; `live` is the state of the records that a served page was made from."""
    environment = load_environment()
    return str(
        environment.get_template("page.html").render(
            **page_values(report),
            css=theme_css() + read_template("page.css"),
            js=read_template("page.js"),
            plotly=read_plotly(report),
            live=live,
        )
    )


def render_main(report: Report) -> dict[str, str]:
    """The whole main part of the page, its contents and its line of statuses, for a live page with new sections."""
    values, environment = page_values(report) | {"static": False}, load_environment()
    return {name: str(environment.get_template(f"{name}.html").render(**values)) for name in MAIN_PARTS}


def render_parts(report: Report) -> dict[str, str]:
    """The parts of the page that a live page replaces, as HTML by the id of their element."""
    values = page_values(report)
    environment = load_environment()
    parts = {
        name: str(environment.get_template(f"{name}.html").render(**values))
        for name in ("statuses", "progress", "notes", "answer")
    }
    table, caption = environment.get_template("table.html"), environment.get_template("caption.html")
    for item in report.tables:
        parts[f"table-{item.id}"] = str(table.render(table=item, **values))
    for figure in report.figures:
        parts[f"caption-{figure.id}"] = str(caption.render(figure=figure))
    return parts


def page_values(report: Report) -> dict[str, Any]:
    """What the templates of a report are given."""
    return {
        "report": report,
        "answer": make_answer(report.comparison) if report.comparison else None,
        "explanations": draw_explanations() if report.comparison else (),
        "definitions": [q for q in QUANTITIES if q.meaning] if report.comparison else [],
        "progress": [found for record in report.records if (found := describe_progress(record))],
        "version": __version__,
        "written": datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
        "statuses": Counter(r.status for r in report.records),
        "static": True,
        "show_configurations": len(report.records) <= MANY_RUNS,
    }


@cache
def load_environment() -> Any:
    """The templates, compiled, with everything from records escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("ncollapse.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "loss_style": loss_style,
        "embed": embed,
        "format_json": format_json,
        "get_nested": get_nested,
        "describe_ranges": describe_ranges,
        "limit_breaks": limit_breaks,
        "draw_static": draw_static,
    }
    for name in environment.list_templates(extensions=["html"]):
        environment.get_template(name)
    return environment


def read_plotly(report: Report) -> str:
    """The smallest of plotly's bundles that draws a report's figures; nothing where there are none."""
    kinds = {trace.get("type") for figure in report.figures for trace in figure.spec["data"]}
    if not kinds:
        return ""
    if "scatter3d" in kinds:
        from plotly.offline import get_plotlyjs

        return str(get_plotlyjs()).replace("</script", "<\\/script")
    return read_template(BUNDLE).replace("</script", "<\\/script")


@cache
def read_template(name: str) -> str:
    """A file of the package's templates."""
    return (files("ncollapse.report") / "templates" / name).read_text(encoding="utf-8")


def digest(text: str) -> str:
    """A short hash, by which a live page knows what has changed."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
