"""Two questions that bce-vs-ce leaves open (Sec. 5), answered with `solve` and certified.

1. Does BCE raise the imbalance at which the minority classes collapse, compared with CE, and by how much?
   And for ReLU features with a bias that decays, do the minority features vanish before that?
2. What do the optima of CE and BCE look like when K > d?

Writes results/theory/open-questions.json; takes a few minutes on one core.

    python scripts/open_questions.py
"""

from __future__ import annotations

import argparse
import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import torch

import ncollapse as nc

DECAY, MINORITY = 5e-3, 10  # lambda_W = lambda_H, and the samples of a minority class
GROUPS = ((2, 2), (5, 5))  # majority and minority classes
FACTORS = (0.5, 0.9, 0.99, 1.01, 1.1)  # of the predicted threshold
SIZES = ((4, 2), (6, 2), (6, 3), (7, 3), (8, 3), (10, 5), (6, 5))  # K, d
# loss, lambda_b and factors of the threshold for free features
EARLY = (("ce", 1.0, (0.85, 0.90)), ("bce", 0.3, (0.985, 0.994)), ("mse", 1.0, (0.985, 0.994)))


def predicted_threshold(loss: str, relu: bool, bias: bool, majority: int, minority: int) -> float:
    """The ratio R = n_A / n_B from which on the minority classes coincide.

    They are told apart iff sqrt(n_B) / N > sqrt(lW lH), with N = n_B (R K_A + K_B); for CE without a bias and H >= 0,
    where their features vanish, iff sqrt((K - 1) / K n_B) / N > sqrt(lW lH) (imbalanced-relu Cor. 4).
    """
    k = majority + minority
    share = (k - 1) / k if loss == "ce" and relu and not bias else 1.0
    return (math.sqrt(share / MINORITY) / DECAY - minority) / majority


def ask_minority_collapse() -> list[dict[str, Any]]:
    rows = []
    for (majority, minority), features, bias, loss in product(GROUPS, ("free", "relu"), (False, True), ("ce", "bce")):
        threshold = predicted_threshold(loss, features == "relu", bias, majority, minority)
        for factor in FACTORS:
            ratio = factor * threshold
            problem = nc.Problem(
                loss,
                class_counts=[ratio * MINORITY] * majority + [MINORITY] * minority,
                weight_decay=DECAY,
                feature_decay=DECAY,
                bias=bias,
                features=features,
            )
            solution = nc.solve(problem)
            z = solution.features @ solution.weight.T
            h, w = solution.features, solution.weight
            rows.append(
                {
                    "majority": majority,
                    "minority": minority,
                    "features": features,
                    "bias": bias,
                    "loss": loss,
                    "threshold": threshold,
                    "factor": factor,
                    "ratio": ratio,
                    "minority_margin": float(z[-1, -1] - z[-1, -2]),
                    "majority_margin": float(z[0, 0] - z[0, 1]),
                    "minority_distance": float((h[-1] - h[-2]).norm()),
                    "minority_norm": float(h[-1].norm()),
                    "minority_cosine": float(torch.cosine_similarity(w[-1], w[-2], dim=0)),
                    "objective": solution.objective,
                    "gap": solution.certificate.gap,
                }
            )
            print(rows[-1])
    return rows


def ask_early_collapse() -> list[dict[str, Any]]:
    """Two majority and two minority classes behind a ReLU, with a bias that decays."""
    rows = []
    for loss, bias_decay, factors in EARLY:
        threshold = predicted_threshold(loss, True, True, 2, 2)
        for factor in factors:
            problem = nc.Problem(
                loss,
                class_counts=[factor * threshold * MINORITY] * 2 + [MINORITY] * 2,
                weight_decay=DECAY,
                feature_decay=DECAY,
                bias_decay=bias_decay,
                features="relu",
            )
            solution = nc.solve(problem)
            z = solution.features @ solution.weight.T
            rows.append(
                {
                    "loss": loss,
                    "bias_decay": bias_decay,
                    "factor": factor,
                    "minority_margin": float(z[-1, -1] - z[-1, -2]),
                    "minority_norm": float(solution.features[-1].norm()),
                    "objective": solution.objective,
                    "gap": solution.certificate.gap,
                }
            )
            print(rows[-1])
    return rows


def ask_small_dimension() -> list[dict[str, Any]]:
    rows = []
    for (k, d), decay, bias, loss in product(SIZES, (5e-3, 5e-4), (True, False), ("ce", "bce")):
        settings = {"per_class": 1, "weight_decay": decay, "feature_decay": decay, "bias": bias}
        solution = nc.solve(nc.Problem(loss, k, dim=d, **settings), time_limit=None)
        h, w = solution.features, solution.weight
        b = torch.zeros(k, dtype=torch.float64) if solution.bias is None else solution.bias
        own = torch.eye(k, dtype=torch.bool)
        scores = h @ w.T
        logits = scores - b
        norms = w.norm(dim=1)
        seen = norms > 1e-6
        cosines = torch.nn.functional.normalize(w[seen], dim=1) @ torch.nn.functional.normalize(w[seen], dim=1).T
        cosines = cosines[~torch.eye(len(cosines), dtype=torch.bool)]
        rows.append(
            {
                "num_classes": k,
                "dim": d,
                "decay": decay,
                "bias": bias,
                "loss": loss,
                "objective": solution.objective,
                "objectives": sorted(solution.objectives),
                "slope": solution.slope,
                "lower_bound": solution.certificate.lower_bound,
                "full_dimension": nc.predict(loss, num_classes=k, **settings).objective,
                "weight_norms": sorted(norms.tolist()),
                "biases": sorted(b.tolist()),
                "largest_cosine": float(cosines.max()),
                "smallest_cosine": float(cosines.min()),
                "alignment": float(torch.cosine_similarity(h[seen], w[seen], dim=1).min()),
                "correct": bool((logits[own] > logits.masked_fill(own, -math.inf).amax(dim=1)).all()),
                "lowest_positive_logit": float(logits[own].min()),
                "highest_negative_logit": float(logits[~own].max()),
                "uniform": bool(logits[own].min() > logits[~own].max()),
            }
        )
        print(rows[-1])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/theory/open-questions.json"))
    out = parser.parse_args().out
    answer = {
        "minority_collapse": ask_minority_collapse(),
        "early_collapse": ask_early_collapse(),
        "small_dimension": ask_small_dimension(),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(answer, indent=1) + "\n")


if __name__ == "__main__":
    main()
