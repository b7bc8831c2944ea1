"""docs/metrics.md, the table of fields and the result stay in step."""

import dataclasses
import doctest
import importlib
import json
import re
from pathlib import Path

import pytest

import ncollapse as nc
from ncollapse.metrics import FIELDS, GROUPS
from ncollapse.metrics.fields import format_fields

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")


def test_every_field_is_in_the_table_and_the_table_in_the_docs():
    assert {row.name for row in FIELDS} == {item.name for item in dataclasses.fields(nc.Measurement)}
    assert len({row.name for row in FIELDS}) == len(FIELDS)
    assert {row.group for row in FIELDS} == set(GROUPS)
    assert format_fields() in PAGE


def test_every_field_named_in_the_prose_exists():
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    names = set(re.findall(r"`((?:nc\d|equi|uniform|bias_|mean|means|compact|distinct|collapsed)\w*)`", prose))
    assert len(names) > 20
    assert names <= {row.name for row in FIELDS} | {"mean", "median"}


def test_the_examples_of_the_docs_run():
    scope = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(code, scope)
    assert scope["m"].num_classes == 10
    assert scope["p"].problem.num_classes == 10


@pytest.mark.parametrize(
    "module",
    [
        "batches",
        "curves",
        "distribution",
        "fields",
        "flattening",
        "measurement",
        "measuring",
        "ood",
        "presence",
        "rows",
        "scores",
        "selection",
        "similarity",
        "snapshot",
        "statistics",
        "table",
    ],
)
def test_examples_in_docstrings_run(module):
    found = doctest.testmod(importlib.import_module(f"ncollapse.metrics.{module}"))
    assert found.attempted
    assert found.failed == 0


def test_the_table_of_costs_is_the_record():
    """Rows of classes that are apart, as the benchmark wrote them."""
    file = Path(__file__).parents[2] / "results" / "benchmarks" / "classes-cpu.json"
    rows = [row for row in json.loads(file.read_text(encoding="utf-8"))["rows"] if row["noise"] == 0.5]
    wanted = []
    for row in sorted(rows, key=lambda row: (row["d"], row["K"])):
        other = f"{row['other']:,.2f} s" + (" (scaled up)" if row["share"] > 1 else "")
        ratios = f"{row['same_ratio']:.2f} | {row['all_ratio']:.2f}"
        wanted.append(
            f"| {row['K']:,} | {row['d']:,} | {row['same']:.2f} s | {row['all']:.2f} s | {other} | {ratios} |"
        )
    assert "\n".join(wanted) in PAGE
    assert len(wanted) >= 9
    (most,) = (row for row in rows if (row["K"], row["d"]) == (50_000, 256))
    assert f"take {most['same_mib']:.0f} MiB above the inputs, and every field {most['all_mib']:.0f} MiB" in " ".join(
        PAGE.split()
    )
