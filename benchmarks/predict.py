"""How long a prediction takes, for any number of classes: the claim is under 2 ms.

Run: python benchmarks/predict.py
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import ncollapse as nc

CLASSES = (2, 10, 1000, 1_000_000)
CASES = [
    (loss, features, bias_decay)
    for loss in ("ce", "bce", "focal", "ls", "mse")
    for features in ("free", "relu")
    for bias_decay in (0.0, 5e-4, 1e3)
]


def main() -> None:
    """Print the median and the slowest case for each number of classes, in milliseconds."""
    nc.predict("bce", num_classes=3, per_class=1, weight_decay=1e-3, feature_decay=1e-3)
    print(f"{'classes':>9}  {'median ms':>9}  {'slowest ms':>10}  slowest case")
    for k in CLASSES:
        table = {case: measure(k, *case) for case in CASES}
        slowest = max(table, key=lambda case, table=table: table[case])
        print(f"{k:>9}  {statistics.median(table.values()):>9.3f}  {table[slowest]:>10.3f}  {slowest}")
    counts = [float(count) for count in range(1, 1001)]
    arguments = {"class_counts": counts, "weight_decay": 1e-6, "feature_decay": 1e-6, "features": "relu", "bias": False}
    times = [clock("ce", **arguments) for _ in range(25)]
    print(f"{1000:>9}  {statistics.median(times):>9.3f}  {max(times):>10.3f}  ce with a thousand class counts")


def measure(num_classes: int, loss: str, features: str, bias_decay: float, repeats: int = 25) -> float:
    """The median time of one prediction, over separated, nearly collapsed and collapsed problems."""
    times = []
    for kmu in (1e-3, 0.999, 1.5):
        decays = {"weight_decay": kmu / num_classes, "feature_decay": kmu / num_classes, "bias_decay": bias_decay}
        times += [
            clock(loss, num_classes=num_classes, per_class=1, features=features, **decays) for _ in range(repeats)
        ]
    return statistics.median(times)


def clock(loss: str, **arguments: Any) -> float:
    """The milliseconds of one prediction."""
    start = time.perf_counter()
    nc.predict(loss, **arguments)
    return 1e3 * (time.perf_counter() - start)


if __name__ == "__main__":
    main()
