"""Run folders made of numpy alone, in the layout the training loop writes, for the tests of comparison and page."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from ncollapse.runs.epoch_snapshots import add_epoch, choose_epochs, reduce_epochs
from ncollapse.runs.identity import run_id as identify

CONFIG: dict[str, Any] = {
    "name": "synthetic",
    "data": {"name": "digits", "validation": 0.0, "subset": None, "random_labels": False, "image_size": None},
    "model": {"name": "mlp-small", "feature_dim": 16, "head": "linear", "bias": True, "bias_init": 0.0},
    "loss": {"name": "ce", "gamma": None, "alpha": None, "kappa": None, "beta": None, "M": None},
    "optim": {"name": "adamw", "lr": 0.003, "momentum": 0.9, "epochs": 30, "batch_size": 64, "weight_decay": 0.0},
    "schedule": {"name": "cosine", "milestones": [], "factor": 0.1},
    "decays": {"weight": 5e-4, "feature": 5e-4, "bias": 5e-4},
    "augment": {"crop": 0, "flip": False},
    "precision": "float32",
    "select": "last",
    "measure_every": 1,
    "seed": 0,
}
ENV = {
    "versions": {"python": "3.11.9", "torch": "2.13.0", "ncollapse": "0.1.0"},
    "hardware": {"device": "cpu", "cores": 2},
    "command": "ncollapse compare --data digits",
    "started": "2025-01-01T00:00:00+00:00",
}
SCORES = {
    "ce": (6.0, -0.67, 0.0),
    "bce": (7.4, -2.4, 3.1),
    "focal": (3.1, -0.35, 0.0),
    "ls": (4.4, -0.5, 0.0),
    "mse": (0.95, 0.0, -0.1),
}


def spread(values: np.ndarray) -> dict[str, float]:
    """A measurement's spread of values, as a dict."""
    q = np.quantile(values, [0, 0.05, 0.25, 0.5, 0.75, 0.95, 1])
    names = ["min", "q05", "q25", "median", "q75", "q95", "max"]
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        **dict(zip(names, map(float, q))),
        "count": int(values.size),
    }


def scale(values: dict[str, float], factor: float) -> dict[str, float]:
    """A spread times a positive factor."""
    return {key: value if key == "count" else value * factor for key, value in values.items()}


def frame(num_classes: int, dim: int, rng: np.random.Generator) -> np.ndarray:
    """A random simplex frame of unit vectors, [K, d] with d >= K."""
    basis = np.linalg.qr(rng.standard_normal((dim, num_classes)))[0].T
    simplex = (np.eye(num_classes) - 1 / num_classes) * math.sqrt(num_classes / (num_classes - 1))
    return np.asarray(simplex @ basis)


def configure(changes: dict[str, Any]) -> dict[str, Any]:
    """The default configuration with dotted changes such as {"optim.epochs": 5}."""
    config = copy.deepcopy(CONFIG)
    for key, value in changes.items():
        *parents, leaf = key.split(".")
        node = config
        for parent in parents:
            node = node[parent]
        node[leaf] = value
    return config


def run_id(config: dict[str, Any]) -> str:
    """The name that a run of this configuration gets."""
    return identify(config)


def write_run(
    out: Path,
    changes: dict[str, Any] | None = None,
    *,
    num_classes: int = 10,
    per_class: int = 20,
    status: str = "finished",
    epochs_done: int | None = None,
    snapshot: bool = True,
    folder: str | None = None,
    epoch_snapshots: bool = False,
) -> Path:
    """Write one run folder and return its path; `status` "running" or "interrupted" leaves the summary out."""
    config = configure(changes or {})
    name, epochs = config["loss"]["name"], config["optim"]["epochs"]
    dim = config["model"]["feature_dim"] or 16
    rng = np.random.default_rng(int(run_id(config), 16))
    path = out / (folder or run_id(config))
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    (path / "env.json").write_text(json.dumps(ENV))
    arrays = make_arrays(name, num_classes, per_class, dim, rng)
    done = epochs if epochs_done is None else epochs_done
    spreads = {key.removeprefix("values."): spread(arrays[key]) for key in arrays if key.startswith("values.")}
    spreads["bias"] = spread(arrays["bias"])
    rows = [make_row(epoch, epochs, name, rng, spreads, num_classes) for epoch in range(1, done + 1)]
    (path / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if snapshot and status == "finished":
        kept = {k: np.ascontiguousarray(v) for k, v in arrays.items() if not k.startswith("values.")}
        save_file(kept, path / "snapshot.safetensors")
    if epoch_snapshots:
        write_epoch_snapshots(path, arrays, epochs, done)
    if status in ("finished", "failed"):
        summary = make_summary(path.name, status, rows, config, arrays, num_classes, rng)
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def make_arrays(
    name: str, num_classes: int, per_class: int, dim: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """A snapshot: a noisy frame with the loss's scores, its histograms and a few features."""
    positive, negative, bias = SCORES.get(name, SCORES["ce"])
    directions = frame(num_classes, dim, rng) if dim >= num_classes else rng.standard_normal((num_classes, dim))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    weight = directions * math.sqrt(positive) + 0.01 * rng.standard_normal((num_classes, dim))
    arrays: dict[str, np.ndarray] = {
        "weight": weight.astype(np.float32),
        "bias": (bias + 0.05 * rng.standard_normal(num_classes)).astype(np.float32),
    }
    labels = np.repeat(np.arange(num_classes), per_class)
    for split, noise in (("train", 0.06), ("test", 0.2)):
        features = directions[labels] * math.sqrt(positive) + noise * rng.standard_normal((labels.size, dim))
        scores = features @ weight.T
        mask = np.eye(num_classes, dtype=bool)[labels]
        unit = scores / np.linalg.norm(features, axis=1, keepdims=True) / np.linalg.norm(weight, axis=1)
        margin = unit[mask] - np.where(mask, -np.inf, unit).max(1)
        shift = negative - scores[~mask].mean() if name == "bce" else 0.0
        for field, values in (
            ("positive_score", scores[mask]),
            ("negative_score", scores[~mask] + shift),
            ("margin", margin),
        ):
            counts, edges = np.histogram(values, bins=48)
            arrays[f"{split}.{field}.edges"], arrays[f"{split}.{field}.counts"] = edges, counts.astype(np.int64)
            arrays[f"values.{split}.{field}"] = values
        arrays[f"{split}.features"] = features.astype(np.float32)
        arrays[f"{split}.labels"] = labels.astype(np.int64)
        arrays[f"{split}.class_means"] = np.stack([features[labels == k].mean(0) for k in range(num_classes)])
        arrays[f"{split}.counts"] = np.bincount(labels, minlength=num_classes)
    return arrays


def write_epoch_snapshots(path: Path, arrays: dict[str, np.ndarray], epochs: int, done: int) -> None:
    """Snapshots of the epochs so far: features that were scattered at first and end where the arrays have them."""
    rng = np.random.default_rng(0)
    noise = {name: rng.standard_normal(arrays[name].shape) for name in ("train.features", "test.features")}
    for epoch in sorted(e for e in choose_epochs(epochs) if e <= done):
        left = 1 - epoch / epochs
        now = {name: array for name, array in arrays.items() if not name.startswith("values.")}
        now |= {name: array + left * noise[name] for name, array in arrays.items() if name in noise}
        now["weight"] = arrays["weight"] + left * rng.standard_normal(arrays["weight"].shape)
        add_epoch(path, epoch, now)
    if done == epochs:
        reduce_epochs(path)


def make_row(
    epoch: int, epochs: int, name: str, rng: np.random.Generator, spreads: dict[str, dict[str, float]], num_classes: int
) -> dict[str, Any]:
    """One epoch of the history; BCE collapses a little faster than the others, as in bce-vs-ce Fig. 2."""
    rate = {"bce": 9.0, "ce": 6.5, "focal": 5.0, "ls": 7.0, "mse": 6.0}.get(name, 6.0)
    t = epoch / epochs
    jitter = float(np.exp(0.08 * rng.standard_normal()))
    row: dict[str, Any] = {
        "epoch": epoch,
        "step": epoch * 20,
        "lr": 0.003 * (1 - t) + 1e-5,
        "loss": 2.3 * math.exp(-rate * t) + 0.01,
    }
    for split, floor, lag in (("train", 1e-4, 1.0), ("test", 4e-2, 0.8)):
        decay = math.exp(-rate * lag * t)
        luck = 0.0 if split == "train" else 0.004 * float(rng.standard_normal())
        accuracy = min(1.0, (1.0 if split == "train" else 0.965) + luck - 0.8 * math.exp(-3 * rate * t))
        accuracy = round(accuracy, 4)
        row[split] = {
            "nc1": (8 * decay**1.4 + floor) * jitter,
            "nc2": (0.9 * decay + floor * 5) * jitter,
            "nc3": (1.1 * decay + floor * 5) * jitter,
            "nc4": 1 - accuracy,
            "accuracy": accuracy,
            "uniform_accuracy": accuracy - (0.0 if name == "bce" else 0.06 * decay + (0 if split == "train" else 0.02)),
            "compactness": 1 - 0.4 * decay - floor,
            "distinctiveness": 0.5 - 0.3 * decay,
            "positive_score": scale(spreads[f"{split}.positive_score"], 1 - decay),
            "negative_score": scale(spreads[f"{split}.negative_score"], 1 - decay),
            "bias": scale(spreads["bias"], 1 - decay),
            "weight_energy": 60 * (1 - decay) + 1.0,
            "feature_energy": 6.0 * (1 - decay),
            "num_samples": 1500,
            "num_classes": num_classes,
        }
    row["certificate"] = {
        "gap": 1.5 * math.exp(-rate * t) + 2e-4,
        "relative_gap": 0.5,
        "lower_bound": 0.2,
        "objective": 0.25,
    }
    row["time"] = {"epoch_s": 0.1, "measure_s": 0.02, "elapsed_s": 0.12 * epoch}
    return row


def make_summary(
    name_of_run: str,
    status: str,
    rows: list[dict[str, Any]],
    config: dict[str, Any],
    arrays: dict[str, np.ndarray],
    num_classes: int,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """The summary that ends a run."""
    name, epochs = config["loss"]["name"], config["optim"]["epochs"]
    positive, negative, bias = SCORES.get(name, SCORES["ce"])
    last = rows[-1] if rows else {}
    summary: dict[str, Any] = {
        "status": status,
        "run_id": name_of_run,
        "epoch": len(rows),
        "epochs": epochs,
        "selected_epoch": len(rows),
        "certificate": last.get("certificate"),
        "reason": None if status == "finished" else "RuntimeError: the loss is not finite",
        "traceback": None if status == "finished" else "Traceback (most recent call last): ...",
        "time": {"wall_s": 0.12 * epochs, "steps_per_s": 400.0},
        "prediction": {
            "phase": "saturated" if name == "bce" else "centred",
            "positive_score": positive * 1.02,
            "negative_score": negative * 0.99,
            "bias": bias,
            "weight_energy": 61.0,
            "feature_energy": 6.05,
            "objective": 0.25,
            "problem": {
                "loss": name,
                "loss_params": {},
                "num_classes": num_classes,
                "per_class": config["optim"]["batch_size"] / num_classes,
                "batch_size": config["optim"]["batch_size"],
                "class_counts": None,
                "dim": None,
                "weight_decay": config["decays"]["weight"],
                "feature_decay": config["decays"]["feature"],
                "bias_decay": config["decays"]["bias"],
                "bias": True,
                "features": "relu",
            },
        },
    }
    for split in ("train", "test"):
        if last:
            accuracy = np.clip(last[split]["accuracy"] + 0.01 * rng.standard_normal(num_classes), 0, 1)
            summary[split] = last[split] | {
                "class_accuracy": accuracy.tolist(),
                "counts": arrays[f"{split}.counts"].tolist(),
                "weight_norms": np.linalg.norm(arrays["weight"], axis=1).tolist(),
                "mean_norms": np.linalg.norm(arrays[f"{split}.class_means"], axis=1).tolist(),
            }
    return summary


def write_comparison(out: Path, losses: tuple[str, ...] = ("ce", "bce"), seeds: int = 3, **changes: Any) -> Path:
    """The runs of a comparison: losses x seeds."""
    for loss in losses:
        for seed in range(seeds):
            write_run(out, {"loss.name": loss, "seed": seed, **changes})
    return out


def write_grid(out: Path, epochs: int = 100) -> Path:
    """The 60 runs of bce-vs-ce Fig. 3: two losses, two optimisers, nine initial biases and six bias decays."""
    for loss in ("ce", "bce"):
        for optimiser in ("sgd", "adamw"):
            base = {"loss.name": loss, "optim.name": optimiser, "optim.epochs": epochs}
            for initial in (0, 1, 2, 3, 4, 5, 6, 8, 10):
                write_run(out, base | {"decays.bias": 0.0, "model.bias_init": float(initial)})
            for decay in (0.5, 0.05, 5e-3, 5e-4, 5e-5, 5e-6):
                write_run(out, base | {"decays.bias": decay, "model.bias_init": 10.0})
    return out
