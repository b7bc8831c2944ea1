"""Snapshots small enough to be kept beside the code: what the figures draw, in few dimensions and few samples."""

from __future__ import annotations

import numpy as np

SAMPLES = 300
DIMENSIONS = 50
CLASSES = 20
"""Up to so many classes the classifier and the class means are kept."""
BINS = 64

Arrays = dict[str, np.ndarray]


def thin_snapshot(arrays: Arrays) -> Arrays:
    """The arrays of a snapshot, turned into a basis of at most 50 dimensions and thinned to some 300 samples a split.

    The basis spans the classifier and the class means, so that their inner products are kept exactly, and then the
    directions in which the features spread most. Features of up to 50 dimensions are kept as they are.
    """
    kept = _rebin({k: a for k, a in arrays.items() if k.endswith((".edges", ".counts")) or k == "bias"})
    few = arrays.get("weight") is not None and len(arrays["weight"]) <= CLASSES
    frames = [name for name in ("weight", "train.class_means", "test.class_means") if name in arrays and few]
    clouds = {split: _choose(arrays, split) for split in ("train", "test") if f"{split}.features" in arrays}
    rows = [np.asarray(arrays[name], dtype=np.float64) for name in frames]
    features = [cloud[0] for cloud in clouds.values()]
    if not rows and not features:
        return kept
    basis = find_basis(rows, features)
    for name in frames:
        kept[name] = (np.asarray(arrays[name], dtype=np.float64) @ basis).astype(np.float32)
    for split, (cloud, labels) in clouds.items():
        kept[f"{split}.features"] = (cloud @ basis).astype(np.float16)
        kept[f"{split}.labels"] = labels
    return kept


def find_basis(rows: list[np.ndarray], features: list[np.ndarray]) -> np.ndarray:
    """Orthonormal columns [d, r]: they span the rows, then the largest principal directions of the features."""
    dim = (rows or features)[0].shape[1]
    if dim <= DIMENSIONS:
        return np.eye(dim)
    basis = np.zeros((dim, 0))
    if rows:
        _, sizes, directions = np.linalg.svd(np.concatenate(rows), full_matrices=False)
        basis = directions[sizes > 1e-10 * sizes[0]].T
    left = DIMENSIONS - basis.shape[1]
    if features and left > 0:
        cloud = np.concatenate([f - f.mean(0) for f in features])
        rest = cloud - (cloud @ basis) @ basis.T
        directions = np.linalg.svd(rest, full_matrices=False)[2][:left]
        basis = np.concatenate([basis, directions.T], axis=1)
    return basis


def _choose(arrays: Arrays, split: str) -> tuple[np.ndarray, np.ndarray]:
    """The first few samples of every class; the snapshot's own order is already random."""
    features, labels = arrays[f"{split}.features"], arrays[f"{split}.labels"]
    classes = np.unique(labels)
    each = max(1, SAMPLES // max(1, classes.size))
    index = np.sort(np.concatenate([np.flatnonzero(labels == k)[:each] for k in classes]))
    return np.asarray(features[index], dtype=np.float64), np.asarray(labels[index])


def _rebin(arrays: Arrays) -> Arrays:
    """Histograms with neighbouring bins joined, so that at most 64 are left."""
    kept = dict(arrays)
    for name in [name.removesuffix(".edges") for name in arrays if name.endswith(".edges")]:
        edges, counts = arrays[f"{name}.edges"], arrays.get(f"{name}.counts")
        if counts is None or counts.size <= BINS:
            continue
        starts = np.arange(0, counts.size, -(-counts.size // BINS))
        kept[f"{name}.counts"] = np.add.reduceat(counts, starts)
        kept[f"{name}.edges"] = np.append(edges[starts], edges[-1])
    return kept
