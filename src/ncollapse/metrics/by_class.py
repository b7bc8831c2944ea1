"""Accuracy, precision and F1 of each class, for data whose classes differ in size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def describe_classes(predicted: Tensor, labels: Tensor, num_classes: int) -> dict[str, Any]:
    """Return the recall ("accuracy"), precision and F1 of each class, with their means over classes.

    With n_k samples of class k, p_k predictions of it and c_k of them correct: recall c_k / n_k, precision c_k / p_k,
    F1 2 c_k / (n_k + p_k). `balanced_accuracy` is the mean recall and `macro_f1` the mean F1 over the classes that
    have samples; a class without samples has NaN, one that is never predicted has precision NaN and F1 0.

    >>> found = describe_classes(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 0, 1]), 2)
    >>> found["balanced_accuracy"], [round(value, 3) for value in found["f1"]]
    (0.8333333333333333, [0.8, 0.667])
    """
    labels, predicted = labels.cpu().long(), predicted.cpu().long()
    own, guessed, right = (
        torch.bincount(rows, minlength=num_classes).double()
        for rows in (labels, predicted, labels[predicted == labels])
    )
    f1 = torch.where(own > 0, 2 * right / (own + guessed), torch.nan)
    recall = right / own
    there = own > 0
    return {
        "accuracy": recall.tolist(),
        "precision": (right / guessed).tolist(),
        "f1": f1.tolist(),
        "balanced_accuracy": float(recall[there].mean()),
        "macro_f1": float(f1[there].mean()),
    }
