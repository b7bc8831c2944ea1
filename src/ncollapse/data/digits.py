"""The embedded data set: scikit-learn's 1797 handwritten digits of 8 x 8 pixels, with a fixed split."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ncollapse.data.dataset import Dataset
from ncollapse.data.splits import split_stratified

TEST_FRACTION = 0.2
SPLIT_SEED = 0


def read_table() -> np.ndarray[Any, Any]:
    """Return [1797, 65]: 64 grey levels and the digit, from scikit-learn's file, since importing it takes seconds."""
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise ImportError("the data set digits comes with scikit-learn: pip install scikit-learn")
    file = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():
        return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits as read

    bunch = read()
    return np.concatenate([bunch.data, bunch.target[:, None]], axis=1)


def load_digits(split: str) -> Dataset:
    """Return 1438 training or 359 test images, uint8 [N, 1, 8, 8] with grey levels 0..16 scaled to 0..255.

    scikit-learn has one set; the stratified split (20 % of each class to the test set, seed 0) is ours and fixed.
    """
    table = torch.from_numpy(read_table())
    images = table[:, :64].reshape(-1, 1, 8, 8).mul(255 / 16).round().to(torch.uint8)
    labels = table[:, 64].long()
    train, test = split_stratified(labels, TEST_FRACTION, SPLIT_SEED)
    index = train if split == "train" else test
    classes = tuple(str(digit) for digit in range(10))
    record = ({"draw": "split", "fraction": TEST_FRACTION, "seed": SPLIT_SEED, "stratified": True},)
    return Dataset(images[index], labels[index], classes, "digits", split, record)
