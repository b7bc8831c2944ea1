"""What bce-vs-ce's Table 2 has: compactness and distinctiveness in several readings.

python scripts/compactness.py RUNS TARGET.json reads the weights of every finished run under RUNS: of the last epoch
and of the one with the best test accuracy. A reading is named by whose features it takes (the test set's, or the
correctly classified of them, "right") and by what they are centred on ("raw": nothing). NCOLLAPSE_DATA names the data's
folder.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from ncollapse.metrics.similarity import DirectionSums
from ncollapse.runs.environment import describe_machine
from ncollapse.runs.record import read_runs
from ncollapse.train import Recipe
from ncollapse.train.build import build_model, load_splits, make_loaders
from ncollapse.train.distributed import World
from ncollapse.train.evaluate import Extractor, find_correct


def read(features: Tensor, labels: Tensor, centre: Tensor | float) -> dict[str, float]:
    """Eqs. 49 and 50 for features centred on that."""
    units = torch.nn.functional.normalize(features.double() - centre, dim=1)
    directions = torch.stack([units[labels == k].mean(0) for k in labels.unique()])
    compact, distinct = DirectionSums(directions).measure(torch.ones(len(directions), device=directions.device))
    return {"com": compact, "dis": distinct}


def read_all(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], right: Tensor) -> dict[str, Any]:
    """Every reading; `right` marks the correctly classified test samples."""
    features, labels = test
    own, theirs = features.double().mean(0), train[0].double().mean(0)
    chosen = features[right], labels[right]
    return {
        "accuracy": float(right.double().mean()),
        "test mean": read(*test, own),
        "train mean": read(*test, theirs),
        "raw": read(*test, 0.0),
        "right, own mean": read(*chosen, chosen[0].double().mean(0)),
        "right, test mean": read(*chosen, own),
        "right, train mean": read(*chosen, theirs),
        "right, raw": read(*chosen, 0.0),
        "train set": read(*train, theirs),
    }


def main(runs: str, target: str) -> None:
    """Read the runs and write the file."""
    world = World(0, 1, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    found: dict[str, Any] = {}
    for record in read_runs(runs):
        if record.status != "finished":
            continue
        recipe = Recipe.from_dict(record.config)
        loaders = make_loaders(recipe, load_splits(recipe, os.environ.get("NCOLLAPSE_DATA")), world)
        model, _ = build_model(recipe, loaders, world)
        names = recipe.data.name, recipe.model.name, recipe.loss.name, recipe.optim.name
        found[record.run_id] = {"recipe": f"{' '.join(names)} seed {recipe.seed}"}
        for kind in ("final", "best"):
            model.load_state_dict(load_file(record.path / f"{kind}.safetensors", device=str(world.device)))
            extract = Extractor(model, recipe.precision, world)
            train, test = (extract(loaders.measured[split]) for split in ("train", "test"))
            found[record.run_id][kind] = read_all(train, test, find_correct(*test, model.head))
    command = f"python scripts/compactness.py {runs} {target}"
    whole = {**describe_machine(world.device), "command": command, "runs": found}
    Path(target).write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
