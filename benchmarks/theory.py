"""Check `predict`, `solve` and `certify` against a brute force on random problems.

    python benchmarks/theory.py --problems 500 --out results/theory/random-problems.json

The brute force is tests/reference/theory.py: L-BFGS over every entry of W, H and b from random starts, written from the
papers' objective alone. It shares no code with `ncollapse.theory`. Losses, free and ReLU features, dimensions below and
above K, unequal and empty classes, class weights and bias decays from 0 to 1000 are drawn at random. For each problem:

- excess: the predicted minimum minus the best value of the brute force. It must not exceed 1e-7.
- bound: the certified lower bound minus the best value known. It must not exceed rounding (1e-12).
- gap: the certified gap at the predicted optimum. It must be below 1e-7 for convex losses and d >= K.

Seconds are of processor time. Results are written after every problem; a run with the same --out goes on after them.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import ncollapse as nc

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from reference.theory import minimise

LOSSES: dict[str, dict[str, Any]] = {
    "ce": {},
    "bce": {},
    "ls": {"alpha": 0.1},
    "mse": {},
    "mse-rescaled": {"kappa": 1.5, "beta": 6.0},
    "bce-smoothed": {"label_smoothing": 0.1},
    "focal": {"gamma": 2.0},
}
REFERENCE: dict[str, dict[str, float]] = {"mse-rescaled": {"A": 3.0, "B": 6.0, "C": 2.0}}
EXCESS, BOUND, GAP = 1e-7, 1e-12, 1e-7


def draw(seed: int) -> dict[str, Any]:
    """The arguments of a random problem."""
    rng = np.random.default_rng(seed)
    k = int(rng.integers(2, 7))
    name = str(rng.choice(list(LOSSES)))
    kind = str(rng.choice(["equal", "whole", "fractional", "empty"], p=[0.3, 0.3, 0.25, 0.15]))
    if kind == "equal":
        counts = np.full(k, float(rng.integers(1, 4)))
    elif kind == "fractional":
        counts = np.exp(rng.uniform(0, 4, k))
    else:
        counts = rng.integers(1, 5, k).astype(float)
        if kind == "empty" and k > 2:
            counts[int(rng.integers(k))] = 0.0
    decay = 10.0 ** rng.uniform(-3.5, -1.2)
    return {
        "name": name,
        "num_classes": k,
        "counts": counts,
        "lw": decay * 10.0 ** rng.uniform(-0.5, 0.5),
        "lh": decay * 10.0 ** rng.uniform(-0.5, 0.5) / max(1.0, counts.sum() / (2 * k)),
        "lb": float(rng.choice([0.0, 10.0 ** rng.uniform(-5, 3)])),
        "bias": bool(rng.random() < 0.7),
        "relu": bool(rng.random() < 0.5),
        "dim": None if rng.random() < 0.7 else int(rng.integers(2, k + 3)),
        "weight": np.exp(rng.uniform(-1, 1, k)) if rng.random() < 0.15 else None,
    }


def make(case: dict[str, Any]) -> nc.Problem:
    """The problem of drawn arguments."""
    weight = None if case["weight"] is None else list(case["weight"])
    loss = nc.make_loss(case["name"].partition("-")[0], **LOSSES[case["name"]], weight=weight)
    return nc.Problem(
        loss.double(),
        class_counts=list(case["counts"]),
        weight_decay=case["lw"],
        feature_decay=case["lh"],
        bias_decay=case["lb"],
        bias=case["bias"],
        features="relu" if case["relu"] else "free",
        dim=case["dim"],
    )


def check(seed: int, restarts: int = 4) -> dict[str, Any]:
    """One problem: what was predicted, what the brute force found, and the certificate."""
    case, problem = draw(seed), make(draw(seed))
    start = time.process_time()
    prediction = nc.predict(problem)
    seconds = time.process_time() - start
    name = case["name"]
    nonconvex = name == "focal" or (case["dim"] is not None and case["dim"] < case["num_classes"])
    weight = None if problem.loss.weight is None else problem.loss.weight.numpy()
    brute = minimise(
        name.partition("-")[0],
        case["counts"],
        case["lw"],
        case["lh"],
        case["lb"],
        bias=case["bias"],
        relu=case["relu"],
        dim=case["dim"],
        class_weight=weight,
        restarts=restarts * (3 if nonconvex else 1),
        seed=seed,
        most_samples=16,
        **REFERENCE.get(name, LOSSES[name]),
    )
    kind = {"loss": name, "features": "relu" if case["relu"] else "free"}
    found: dict[str, Any] = {"seed": seed, **kind, "method": prediction.method, "seconds": seconds}
    found["excess"] = prediction.objective - brute["objective"]
    found["best"] = min(prediction.objective, brute["objective"])
    found["gap"] = found["bound"] = math.nan
    if problem.loss.convex:
        certificate = certify_prediction(prediction)
        bound = max(certificate.lower_bound, np.nan_to_num(prediction.lower_bound, nan=-math.inf))
        found["gap"], found["bound"] = certificate.gap, bound - found["best"]
    found["tight"] = problem.loss.convex and (case["dim"] is None or case["dim"] >= case["num_classes"])
    return found


def certify_prediction(prediction: nc.Prediction) -> nc.Certificate:
    """The certificate at the predicted optimum."""
    if prediction.solution is not None and prediction.solution.certificate is not None:
        return prediction.solution.certificate
    point = prediction.configuration()
    present, first = np.unique(point.labels.numpy(), return_index=True)
    assert len(present) == len(prediction.problem.groups.counts)
    counted = prediction.problem.replace(class_counts=prediction.problem.counts)
    return nc.certify(point.features[first], point.labels[first], point.weight, point.bias, counted)


def failures(found: dict[str, Any]) -> list[str]:
    """What a result breaks."""
    broken = []
    if found["excess"] > EXCESS:
        broken.append(f"above the brute force by {found['excess']:.2g}")
    if found["bound"] > BOUND * (1 + abs(found["best"])):
        broken.append(f"bound above the best known value by {found['bound']:.2g}")
    if found["tight"] and found["gap"] > GAP:
        broken.append(f"gap {found['gap']:.2g} at an optimum")
    return broken


def tabulate(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The worst of each kind of problem."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for found in results:
        groups.setdefault((found["loss"], found["features"]), []).append(found)
    return [
        {
            "loss": name,
            "features": features,
            "problems": len(group),
            "closed": sum(found["method"] == "closed" for found in group),
            "excess": max(found["excess"] for found in group),
            "bound": max((found["bound"] for found in group if found["bound"] is not None), default=None),
            "gap": max((found["gap"] for found in group if found["tight"]), default=None),
            "slowest": max(found["seconds"] for found in group),
        }
        for (name, features), group in sorted(groups.items())
    ]


def write(path: Path, results: list[dict[str, Any]]) -> None:
    """The table and all results, one on each line."""
    lines = ",\n".join(json.dumps(found) for found in results)
    path.write_text(f'{{"table": {json.dumps(tabulate(results), indent=1)},\n"results": [\n{lines}\n]}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--out", type=Path, help="a JSON file for the results")
    args = parser.parse_args()
    results: list[dict[str, Any]] = []
    if args.out is not None and args.out.exists():
        results = json.loads(args.out.read_text())["results"]
    done = {found["seed"] for found in results}
    broken = 0
    for seed in range(args.first, args.first + args.problems):
        if seed in done:
            continue
        found = check(seed)
        for line in failures(found):
            broken += 1
            print(f"seed {seed}: {line}; {draw(seed)}", flush=True)
        results.append({key: None if value != value else value for key, value in found.items()})
        if args.out is not None:
            write(args.out, results)
    heads = ("problems", "closed", "excess", "bound", "gap", "slowest")
    print(f"{'loss':14}{'features':10}" + "".join(f"{head:>11}" for head in heads))
    for row in tabulate(results):
        cells = [(row[head], "11.1e" if head in heads[2:5] else "11.4g") for head in heads]
        numbers = "".join(" " * 11 if value is None else format(value, form) for value, form in cells)
        print(f"{row['loss']:14}{row['features']:10}{numbers}")
    print(f"{broken} failures in {len(results)} problems")


if __name__ == "__main__":
    main()
