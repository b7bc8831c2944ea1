"""Do rare classes survive where training first fits them under weak decays?

The networks of `ncollapse reproduce ncollapse/minority-collapse` lose rare classes that the optimum keeps. Here these
networks are first trained with a tenth of the decays, until they fit their samples, and then as there. What becomes of
the rare classes is kept beside the runs from scratch among the records.

Writes results/theory/rare-classes.json; takes about ten minutes on one core. `--runs DIR` keeps the runs, so that a
second call goes on where the first one was stopped.

    python scripts/rare_classes.py --data-root DIR --runs DIR
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

from ncollapse.compare.class_norms import MEANS, ROWS, read_norms
from ncollapse.papers.catalogue import get_experiment
from ncollapse.papers.matching import match
from ncollapse.runs.record import RunRecord, read_run, read_runs
from ncollapse.train import Recipe, run

ROOT = Path(__file__).parents[1]
RATIOS = (10, 20, 30, 40, 50)
SEEDS = 3
WEAKER, FIRST_EPOCHS = 0.1, 20


def warm_up(recipe: Recipe, runs: Path, data_root: Path | None) -> RunRecord:
    """Train with weak decays, then from these weights as the recipe says."""
    decays = {"decays__weight": WEAKER * recipe.decays.weight, "decays__feature": WEAKER * recipe.decays.feature}
    first = recipe.override(**decays, optim__epochs=FIRST_EPOCHS)
    run(first, runs, data_root=data_root)
    second = recipe.override(model__weights=str(runs / first.run_id / "final.safetensors"))
    run(second, runs, data_root=data_root)
    return read_run(runs / second.run_id)


def summarise(record: RunRecord) -> dict[str, Any]:
    """How many rare classes remain, and their norms beside those of the optimum."""
    means, rows = read_norms(record, MEANS), read_norms(record, ROWS)
    assert means is not None
    assert rows is not None
    rare = slice(5, None)
    return {
        "remain": int((means[0][rare] > 0.5 * means[1][rare].max()).sum()),
        "mean_norm": fmean(means[0][rare]),
        "row_norm": fmean(rows[0][rare]),
        "predicted_mean_norm": fmean(means[1][rare]),
        "predicted_row_norm": fmean(rows[1][rare]),
        "relative_gap": record.final("certificate.relative_gap"),
        "test_accuracy": record.final("test.accuracy"),
    }


def main(target: Path, runs: Path, data_root: Path | None) -> None:
    """Train and compare, ratio by ratio."""
    grid = get_experiment("ncollapse/minority-collapse").grid()
    kept = {found.point.keys["ratio"]: found.records for found in match(grid, read_runs(ROOT / "results" / "runs"))}
    found: dict[str, Any] = {"epochs": FIRST_EPOCHS, "decays": WEAKER, "ratios": []}
    base = grid[0].recipe
    for ratio in RATIOS:
        recipes = [base.override(data__step_imbalance=float(ratio), seed=seed) for seed in range(SEEDS)]
        warm = [summarise(warm_up(recipe, runs, data_root)) for recipe in recipes]
        scratch = [summarise(record) for record in kept.get(ratio, ())]
        found["ratios"].append({"ratio": ratio, "from_scratch": scratch, "after_weak_decays": warm})
        print(json.dumps(found["ratios"][-1], indent=1), flush=True)
        target.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data-root", type=Path, help="the folder of MNIST")
    parser.add_argument("--runs", type=Path, required=True, help="the folder for the runs")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "theory" / "rare-classes.json")
    arguments = parser.parse_args()
    main(arguments.out, arguments.runs, arguments.data_root)
