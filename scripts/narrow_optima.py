"""Where networks with fewer feature dimensions than classes end, beside the optimum that a minimiser finds.

The runs are those of `ncollapse reproduce ncollapse/k-greater-than-d ncollapse/narrow-bias-init` among the records,
with 10 classes, and those of bce-vs-ce/k-greater-than-d, with 100. The optimum is the lowest minimum of several starts;
the problem is not convex there, so it is no proven one. The local minima that 64 starts end in stand beside it for 10
classes. The objective of a run is that of its last layer, in full, at the end: what its certificate counts from.

Writes results/theory/narrow-optima.json; takes about a minute on one core.

    python scripts/narrow_optima.py
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ncollapse as nc
from ncollapse.papers.catalogue import get_experiment
from ncollapse.papers.matching import match
from ncollapse.runs.record import RunRecord, read_runs
from ncollapse.theory import Problem
from ncollapse.train.theory import count_samples

ROOT = Path(__file__).parents[1]
STARTS, DIGITS = 64, 4
PREDICTED = {"bias_init": "theory"}
FIELDS = {
    "objective": "certificate.objective",
    "positive_score": "train.positive_score.mean",
    "negative_score": "train.negative_score.mean",
    "bias": "train.bias.mean",
    "weight_energy": "train.weight_energy",
}


def compare(problem: Problem, records: Sequence[RunRecord]) -> dict[str, Any]:
    """The optimum of a problem, and the end of each run."""
    optimum = nc.predict(problem, method="numerical")
    m = nc.measure(*optimum.configuration(problem.dim))
    return {
        "optimum": {name: getattr(optimum, name) for name in FIELDS},
        "lower_bound": optimum.lower_bound,
        "uniform_accuracy": m.uniform_accuracy,
        "runs": describe(records),
    }


def find_minima(problem: Problem) -> list[dict[str, float]]:
    """The local minima that random starts end in, and how many of them."""
    minima = Counter(round(value, DIGITS) for value in nc.solve(problem, restarts=STARTS).objectives)
    return [{"objective": value, "starts": starts} for value, starts in sorted(minima.items())]


def describe(records: Sequence[RunRecord]) -> dict[str, dict[str, float]]:
    """The end of each run."""
    return {run.run_id: {name: run.final(place) for name, place in FIELDS.items()} for run in records}


def main(target: Path) -> None:
    """Compare every configuration of the two experiments that has runs and fewer dimensions than classes."""
    records = read_runs(ROOT / "results" / "runs")
    rows = []
    starts = match(get_experiment("ncollapse/narrow-bias-init").grid(), records)
    for paper, classes in (("ncollapse", 10), ("bce-vs-ce", 100)):
        for found in match(get_experiment(f"{paper}/k-greater-than-d").grid(), records):
            recipe, keys = found.point.recipe, {name: found.point.keys[name] for name in ("loss", "dim")}
            problem = recipe.problem(num_classes=classes, samples=count_samples(recipe.data))
            if not found.records or problem is None or keys["dim"] >= classes:
                continue
            row = {"num_classes": classes, **keys, **compare(problem, found.records)}
            if classes == 10:
                same = {**keys, **PREDICTED}.items()
                predicted = [run for other in starts if other.point.keys.items() >= same for run in other.records]
                row |= {"minima": find_minima(problem), "runs_from_predicted_bias": describe(predicted)}
            rows.append(row)
            print(json.dumps(row, indent=1))
    target.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "theory" / "narrow-optima.json")
    main(parser.parse_args().out)
