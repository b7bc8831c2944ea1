"""Predicted against measured for training with mixup, CutMix and label smoothing: settings 5 and 6 of bce-vs-ce.

Measured are the logits of unmixed training images: z+ - z- for CE, which sees differences alone, and z+ and z- for BCE.
They come from the records under results/runs and from the printed scores and biases of bce-vs-ce Tables 12 and 13.
Three predictions stand beside them:

- free: the features of mixed images are free and decays are weak. Then the logits are those of the targets themselves.
- given norm: the same with the decays of the run and its measured mean |h|^2 (records of SGD, whose decay is part of
  the objective).
- unseen partner: a mix whose partner has less than a share r of the target looks like an unmixed image to the network.
  r is fitted to one printed number, CE's z+ - z- of ResNet18 on CIFAR10 under AdamW; the rest is predicted.

Writes results/theory/mixed-targets.json and prints a summary.

    python scripts/mixed_targets.py
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from scipy.optimize import brentq

import ncollapse as nc
from ncollapse.losses import make_loss
from ncollapse.theory import Mixing
from ncollapse.train import Recipe, recipes
from ncollapse.train.theory import find_mixing

ROOT = Path(__file__).parents[1]
TABLES = {"table-12": "cifar10", "table-13": "cifar100"}
FITTED = {"data": "cifar10", "model": "resnet18", "loss": "ce", "optimizer": "adamw"}
SETTINGS = {"sgd": "bce-vs-ce/setting-5", "adamw": "bce-vs-ce/setting-6"}


def read_printed() -> Iterator[dict[str, Any]]:
    """One row for each run of Tables 12 and 13 with mixed targets."""
    text = (files("ncollapse.papers") / "published" / "bce-vs-ce.json").read_text()
    for table in TABLES:
        runs: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
        for cell in json.loads(text)["entries"][table]["cells"]:
            where = cell["where"]
            if where["augment"] == "DA1+DA2" and cell["field"].startswith("train."):
                key = (where["data"], where["model"], where["loss"], where["optimizer"])
                runs[key][cell["field"].removeprefix("train.")] = float(cell["mean"])
        for (data, model, loss, optimizer), values in runs.items():
            yield {
                "source": table.replace("-", " "),
                **{"data": data, "model": model, "loss": loss, "optimizer": optimizer, "mix_probability": 1.0},
                "measured": _logits(loss, values["positive_score"], values["negative_score"], values["bias"]),
                "accuracy": values["accuracy"] / 100,
            }


def read_records(folder: Path) -> Iterator[dict[str, Any]]:
    """One row for each finished run with mixed targets that trained to its end."""
    for path in sorted(folder.glob("*/config.json")):
        config = json.loads(path.read_text())
        recipe = Recipe.from_dict(config)
        summary = json.loads((path.parent / "summary.json").read_text())
        if not recipe.augment.mixes or summary["status"] != "finished" or recipe.optim.epochs < 100:
            continue
        train = summary["train"]
        scores = [train[name]["mean"] for name in ("positive_score", "negative_score", "bias")]
        with gzip.open(path.parent / "history.jsonl.gz", "rt") as lines:
            last = json.loads(list(lines)[-1])
        yield {
            "source": path.parent.name,
            **{"data": recipe.data.name, "model": recipe.model.name, "loss": recipe.loss.name},
            **{"optimizer": recipe.optim.name, "mix_probability": recipe.augment.mix_probability},
            "measured": _logits(recipe.loss.name, *scores),
            "accuracy": train["accuracy"],
            "training_loss": last["loss"],
            "feature_energy": train["feature_energy"],
            "weight_energy": train["weight_energy"],
        }


def _logits(loss: str, positive: float, negative: float, bias: float) -> dict[str, float]:
    """What the loss sees of the scores: their difference for CE, logits for BCE."""
    if loss == "ce":
        return {"difference": positive - negative}
    return {"positive": positive - bias, "negative": negative - bias}


def make_recipe(row: dict[str, Any]) -> Recipe:
    base = recipes.get(SETTINGS[row["optimizer"]], loss=row["loss"], data=row["data"], model=row["model"])
    return base.override(augment__mix_probability=row["mix_probability"])


def law_of(row: dict[str, Any]) -> Mixing:
    classes = {"cifar10": 10, "cifar100": 100}[row["data"]]
    return _law(row["data"], row["mix_probability"], classes)


@cache
def _law(data: str, probability: float, classes: int) -> Mixing:
    row = {"optimizer": "sgd", "loss": "ce", "data": data, "model": "resnet18", "mix_probability": probability}
    return find_mixing(make_recipe(row), classes, levels=200)


@cache
def predict_weak(loss: str, law: Mixing) -> tuple[dict[str, float], float]:
    """The logits of unmixed images and the mean loss as the decays go to 0: every target has its own logits."""
    form = make_loss(loss).convex_form(law.rows)
    logits = form.invert(np.zeros_like(law.rows))
    return _logits(loss, *logits[0, [0, -1]].tolist(), 0.0), form.curve(logits, np.array(law.probabilities))[0]


def fit_share(rows: list[dict[str, Any]]) -> float:
    """The share r below which a partner is not seen, from one printed number."""
    (row,) = (r for r in rows if r["source"].startswith("table") and FITTED.items() <= r.items())
    law = law_of(row)

    def surplus(share: float) -> float:
        first = law.merge(share)
        return math.log(first.own[0] / first.other[0]) - row["measured"]["difference"]

    return float(brentq(surplus, 0.0, 0.5, xtol=1e-3))


def predict_given_norm(row: dict[str, Any]) -> dict[str, float] | None:
    """The optimum with the run's decays and feature norm; None where the decay is no part of the objective."""
    if "feature_energy" not in row:
        return None
    problem = make_recipe(row).problem(samples=50_000, feature_energy=row["feature_energy"], features="free")
    if problem is None:
        return None
    found = nc.predict(problem)
    logits = _logits(row["loss"], found.positive_score, found.negative_score, found.bias)
    return {**logits, "weight_energy": found.weight_energy, "bias": found.bias, "feature_decay": problem.feature_decay}


def compare(folder: Path) -> dict[str, Any]:
    """All rows with their predictions, the fitted share, and the mean errors."""
    rows = [*read_printed(), *read_records(folder)]
    share = fit_share(rows)
    for row in rows:
        law = law_of(row)
        row["free"], row["least_loss"] = predict_weak(row["loss"], law)
        row["unseen_partner"], row["least_loss_unseen"] = predict_weak(row["loss"], law.merge(share))
        row["given_norm"] = predict_given_norm(row)
    return {"unseen_share": share, "rows": rows, "errors": average_errors(rows)}


def average_errors(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean absolute errors by data set, optimiser and logit; the fitted number is left out."""
    groups: dict[tuple[str, str, str], list[dict[str, float]]] = defaultdict(list)
    for row in rows:
        if row["source"].startswith("table") and FITTED.items() <= row.items():
            continue
        for name, value in row["measured"].items():
            errors = {model: abs(value - row[model][name]) for model in ("free", "unseen_partner")}
            groups[row["data"], row["optimizer"], f"{row['loss']} {name}"].append({"measured": value, **errors})
    return [
        {
            "data": data,
            "optimizer": optimizer,
            "logit": logit,
            "runs": len(found),
            **{key: mean(item[key] for item in found) for key in ("measured", "free", "unseen_partner")},
        }
        for (data, optimizer, logit), found in sorted(groups.items())
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=ROOT / "results" / "runs")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "theory" / "mixed-targets.json")
    args = parser.parse_args()
    found = compare(args.runs)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"a partner below {found['unseen_share']:.3f} of the target is not seen; mean absolute errors:")
    print(f"{'data':<10}{'optimiser':<11}{'logit':<16}{'runs':>5}{'measured':>10}{'free':>8}{'unseen':>8}")
    for line in found["errors"]:
        print(
            f"{line['data']:<10}{line['optimizer']:<11}{line['logit']:<16}{line['runs']:>5}{line['measured']:>10.2f}"
            f"{line['free']:>8.2f}{line['unseen_partner']:>8.2f}"
        )


if __name__ == "__main__":
    main()
