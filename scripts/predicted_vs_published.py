"""Predicted against published: every score, bias and weight norm of bce-vs-ce Tables 6 to 11, with no fitted number.

The papers' networks end in a ReLU and their feature decay acts on batches, so the model is H >= 0 with n = batch / K,
where a batch is the mean over an epoch: the last one is short.
Writes results/theory/predicted-vs-published.json and prints a summary.

    python scripts/predicted_vs_published.py
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from functools import cache
from importlib.resources import files
from pathlib import Path
from statistics import mean
from typing import Any

import ncollapse as nc
from ncollapse.data import INFO
from ncollapse.train.theory import mean_batch

TABLES = ("table-6", "table-7", "table-8", "table-9", "table-10", "table-11")
FIELDS = ("weight_energy", "positive_score", "negative_score", "bias")
DECAY = 5e-4  # of weights and features in all six tables, of the bias where the table does not vary it
BATCH = 128


@cache
def predict(loss: str, num_classes: int, batch_size: float, bias_decay: float) -> nc.Prediction:
    """The optimum of the papers' objective."""
    return nc.predict(
        loss,
        num_classes=num_classes,
        batch_size=batch_size,
        weight_decay=DECAY,
        feature_decay=DECAY,
        bias_decay=bias_decay,
        features="relu",
    )


def compare() -> list[dict[str, Any]]:
    """One row a printed number: where it stands, what is printed, what is predicted."""
    text = (files("ncollapse.papers") / "published" / "bce-vs-ce.json").read_text()
    rows = []
    for table in TABLES:
        for cell in json.loads(text)["entries"][table]["cells"]:
            where, name = cell["where"], cell["field"].removeprefix("train.")
            if name not in FIELDS or "test" in cell["field"]:
                continue
            bias_decay = 0.0 if table == "table-9" else where.get("bias_decay", DECAY)
            batch = where.get("batch_size", BATCH)
            data = INFO[where["data"]]
            prediction = predict(where["loss"], data.num_classes, mean_batch(data.train, batch), bias_decay)
            if name == "bias" and prediction.problem.leaves_bias_free:
                continue
            predicted = getattr(prediction, name)
            published = float(cell["mean"])
            digits = len(cell["mean"].partition(".")[2])
            error = abs(published - predicted)
            rows.append(
                {
                    "table": table,
                    "where": {**where, "bias_decay": bias_decay, "batch_size": batch},
                    "field": name,
                    "published": cell["mean"],
                    "predicted": predicted,
                    "relative_error": error / abs(predicted) if predicted else None,
                    "half_digit": bool(error <= 0.5 * 10.0**-digits),
                }
            )
    return rows


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and largest relative error by table, loss and optimiser."""
    groups: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        if row["relative_error"] is not None:
            groups[row["table"], row["where"]["loss"], row["where"]["optimizer"]].append(row["relative_error"])
    return [
        {"table": table, "loss": loss, "optimizer": optimizer, "numbers": len(e), "mean": mean(e), "largest": max(e)}
        for (table, loss, optimizer), e in sorted(groups.items())
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/theory/predicted-vs-published.json"))
    out = parser.parse_args().out
    rows = compare()
    summary = summarise(rows)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"summary": summary, "rows": rows}, indent=1) + "\n")
    print(f"{'table':<10}{'loss':<6}{'optimiser':<11}{'numbers':>8}{'mean error':>12}{'largest':>10}")
    for line in summary:
        print(
            f"{line['table']:<10}{line['loss']:<6}{line['optimizer']:<11}{line['numbers']:>8}"
            f"{line['mean']:>12.2%}{line['largest']:>10.2%}"
        )


if __name__ == "__main__":
    main()
