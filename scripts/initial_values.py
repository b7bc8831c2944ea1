"""What SGD keeps of initial values under CE, against bce-vs-ce Tables 6 to 13: the biases and the mean of the scores.

Under CE the mean of the biases over the classes feels its decay alone, so its end follows from its start, the learning
rates and lambda_b (`theory.decay_alone`). The mean of the scores follows the mean of the rows of W in the same way; of
that the sign is compared. The starts are those of the authors' networks, built from the default seed of their code, 6.
Writes results/theory/initial-values.json and prints a summary.

    python scripts/initial_values.py
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ncollapse.data import INFO
from ncollapse.papers import publications
from ncollapse.papers.catalogue import get_experiment
from ncollapse.papers.experiment import Point
from ncollapse.papers.publications import Cell, Publication
from ncollapse.train.initial_values import share_left

TABLES = tuple(f"table-{number}" for number in range(6, 14))
STARTS = {
    ("resnet18", 10): (-0.017934, -0.0746),
    ("resnet50", 10): (0.009545, -0.2600),
    ("densenet121", 10): (0.002496, 0.0364),
    ("resnet18", 100): (0.000747, -0.0351),
    ("resnet50", 100): (0.000670, -0.0409),
    ("densenet121", 100): (-0.002616, 0.0492),
}
"""By network and number of classes: the mean of the initial biases, and the sum of the mean of the initial rows of W.
Read off the authors' networks, built from that seed by their code; nothing was trained."""


def list_cells() -> Iterator[tuple[str, Publication, Cell, Point]]:
    """The biases under CE and SGD, with the point of the grid that trains each."""
    for table in TABLES:
        publication, points = publications.load("bce-vs-ce")[table], get_experiment(f"bce-vs-ce/{table}").grid()
        for cell in publication.cells:
            if cell.field == "train.bias" and cell.where["loss"] == "ce" and cell.where["optimizer"] == "sgd":
                (point,) = (p for p in points if p.keys.items() >= cell.where.items())
                yield table, publication, cell, point


def follow_biases() -> list[dict[str, Any]]:
    """One row a printed bias of Tables 6 to 11; those of Tables 12 and 13 have two digits."""
    rows = []
    for table, _, cell, point in list_cells():
        if "augment" in cell.where:
            continue
        classes = INFO[point.keys["data"]].num_classes
        start = point.recipe.model.bias_init + STARTS[point.keys["model"], classes][0]  # type: ignore[operator]
        share = share_left(point.recipe, "bias")
        assert share is not None
        end = start * share
        rows.append(
            {
                "table": table,
                "where": cell.where,
                "start": start,
                "share": share,
                "predicted": end,
                "published": cell.mean,
                "off_by": abs(end - cell.value),
                "half_digit": abs(end - cell.value) <= cell.unit_in_last_place / 2,
            }
        )
    return rows


def compare_scores() -> list[dict[str, Any]]:
    """One row a network: the printed mean of the scores over classes and samples, and the sign of its start.

    The features are not negative, so the mean score has the sign of the sum of the mean row if they are alike.
    """
    rows = []
    for table, publication, cell, point in list_cells():
        classes = INFO[point.keys["data"]].num_classes
        pair = [publication.find(f"train.{sign}_score", **cell.where) for sign in ("positive", "negative")]
        weights = (1 / classes, (classes - 1) / classes)
        mean = sum(weight * score.value for weight, score in zip(weights, pair))
        rounding = sum(weight * score.unit_in_last_place / 2 for weight, score in zip(weights, pair))
        rows.append(
            {
                "table": table,
                "where": cell.where,
                "mean_score": mean,
                "rounding": rounding,
                "start": STARTS[point.keys["model"], classes][1],
                "known": abs(mean) > rounding,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/theory/initial-values.json"))
    out = parser.parse_args().out
    biases, scores = follow_biases(), compare_scores()
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"biases": biases, "scores": scores}, indent=1) + "\n")
    for row in biases:
        where = ", ".join(str(value) for key, value in row["where"].items() if key not in ("loss", "optimizer"))
        print(f"{row['table']:<9} {where:<28} {row['share']:.4f} {row['predicted']:>9.4f} {row['published']:>8}")
    known = [row for row in scores if row["known"]]
    alike = sum(math.copysign(1, row["mean_score"]) == math.copysign(1, row["start"]) for row in known)
    print(f"{sum(row['half_digit'] for row in biases)} of {len(biases)} biases to the last digit")
    print(f"{alike} of {len(known)} mean scores, whose sign the rounding leaves, have that of the initial weights")


if __name__ == "__main__":
    main()
