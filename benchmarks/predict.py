"""How long a prediction takes: under 2 ms in closed form, for any number of classes; about ten seconds by minimising.

python benchmarks/predict.py                closed forms
python benchmarks/predict.py --numerical    problems without one: processor time, and the certified bracket
"""

from __future__ import annotations

import argparse
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


COUNTS = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89] * 2
NUMERICAL: dict[str, dict[str, Any]] = {
    "K = 20, unequal": {"class_counts": COUNTS},
    "K = 20, unequal, relu": {"class_counts": COUNTS, "features": "relu", "bias_decay": 0.01},
    "K = 20, d = 10": {"num_classes": 20, "per_class": 1, "dim": 10},
    "K = 20, d = 10, relu": {"num_classes": 20, "per_class": 1, "dim": 10, "features": "relu"},
    "K = 100, d = 32": {"num_classes": 100, "per_class": 1, "dim": 32},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numerical", action="store_true")
    if parser.parse_args().numerical:
        time_minimiser()
    else:
        time_closed_forms()


def time_minimiser() -> None:
    """Print the seconds of each problem without a closed form, and how far its minimum is certified to be below."""
    print(f"{'problem':<24}{'loss':<6}{'seconds':>8}{'objective':>12}{'bracket':>10}{'starts':>8}{'at best':>9}")
    for name, arguments in NUMERICAL.items():
        for loss in ("ce", "bce"):
            start = time.process_time()
            found = nc.predict(loss, weight_decay=5e-3, feature_decay=5e-3, **arguments)
            seconds, solution = time.process_time() - start, found.solution
            assert solution is not None
            numbers = f"{seconds:8.1f}{found.objective:12.6f}{found.objective - found.lower_bound:10.1e}"
            print(f"{name:<24}{loss:<6}{numbers}{len(solution.objectives):8}{solution.reached:9}", flush=True)


def time_closed_forms() -> None:
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
