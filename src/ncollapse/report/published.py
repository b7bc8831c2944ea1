"""Published numbers for runs of the catalogue: found by configuration, so that any folder of such runs shows them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from ncollapse.compare import Variant
from ncollapse.runs.identity import setting_key


class Printed(NamedTuple):
    """A number as a paper prints it, in our units, and where."""

    value: float
    source: str


Published = dict[str, dict[str, Printed]]


def find_published(variants: Sequence[Variant]) -> Published:
    """For each variant whose configuration is one of the catalogue's, its printed numbers by field."""
    found: Published = {}
    for variant in variants:
        config = variant.records[0].config
        paper = str(config.get("name", "")).partition("/")[0]
        values = index_paper(paper).get(setting_key(config))
        if values:
            found[variant.label] = values
    return found


@cache
def index_paper(paper: str) -> dict[str, dict[str, Printed]]:
    """The published cells of one paper's experiments, by the configuration of the run they speak of."""
    from ncollapse.papers import catalogue, publications

    if paper not in publications.PAPERS:
        return {}
    printed = publications.load(paper)
    index: dict[str, dict[str, Printed]] = {}
    for experiment in catalogue.CATALOGUE.values():
        if experiment.paper != paper or experiment.item not in printed:
            continue
        cells = printed[experiment.item].cells
        for point in experiment.grid():
            values = index.setdefault(setting_key(point.recipe.to_dict()), {})
            for cell in cells:
                if all(point.keys.get(name) == value for name, value in cell.where.items()):
                    values.setdefault(cell.field, Printed(cell.value, f"{paper} {experiment.item}"))
    return index
