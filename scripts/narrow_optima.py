"""Where networks with fewer feature dimensions than classes end, beside the optimum that a minimiser finds.

The runs are those of `ncollapse reproduce ncollapse/k-greater-than-d ncollapse/narrow-bias-init` among the records. The
optimum is the lowest minimum of several starts; the problem is not convex there, so it is no proven one. The local
minima that 64 starts end in stand beside it. The objective of a run is that of its last layer, in full, at the end:
what its certificate counts from.

Writes results/theory/narrow-optima.json; takes about ten seconds on one core.

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


def compare(problem: Problem, records: Sequence[RunRecord], predicted: Sequence[RunRecord] = ()) -> dict[str, Any]:
    """The optimum of a problem, and the end of each run: from the usual bias and from the predicted one."""
    optimum = nc.predict(problem, method="numerical")
    minima = Counter(round(value, DIGITS) for value in nc.solve(problem, restarts=STARTS).objectives)
    return {
        "optimum": {name: getattr(optimum, name) for name in FIELDS},
        "lower_bound": optimum.lower_bound,
        "minima": [{"objective": value, "starts": starts} for value, starts in sorted(minima.items())],
        "runs": describe(records),
        "runs_from_predicted_bias": describe(predicted),
    }


def describe(records: Sequence[RunRecord]) -> dict[str, dict[str, float]]:
    """The end of each run."""
    return {run.run_id: {name: run.final(place) for name, place in FIELDS.items()} for run in records}


def main(target: Path) -> None:
    """Compare every configuration of the experiment that has runs."""
    records = read_runs(ROOT / "results" / "runs")
    rows = []
    starts = match(get_experiment("ncollapse/narrow-bias-init").grid(), records)
    for found in match(get_experiment("ncollapse/k-greater-than-d").grid(), records):
        recipe, keys = found.point.recipe, {name: found.point.keys[name] for name in ("loss", "dim")}
        problem = recipe.problem(num_classes=10, samples=count_samples(recipe.data))
        predicted = [other.records for other in starts if other.point.keys.items() >= {**keys, **PREDICTED}.items()]
        if found.records and problem is not None:
            rows.append(keys | compare(problem, found.records, *predicted))
            print(json.dumps(rows[-1], indent=1))
    target.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "theory" / "narrow-optima.json")
    main(parser.parse_args().out)
