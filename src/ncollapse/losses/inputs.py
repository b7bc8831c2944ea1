"""The steps that all losses share: check the arguments, read the target, weight the samples, reduce."""

from __future__ import annotations

import math
from typing import Literal, cast, get_args

import torch
from torch import Tensor

Reduction = Literal["mean", "sum", "none"]
REDUCTIONS = get_args(Reduction)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def check_reduction(reduction: str) -> Reduction:
    """Return `reduction` if it is one of the three words, else raise."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction: expected 'mean', 'sum' or 'none', got {reduction!r}")
    return cast(Reduction, reduction)


def check_class_reduction(class_reduction: str) -> str:
    """Return `class_reduction` if it is "sum" or "mean", else raise."""
    if class_reduction not in ("sum", "mean"):
        raise ValueError(f"class_reduction: expected 'sum' or 'mean', got {class_reduction!r}")
    return class_reduction


def refuse_text(name: str, value: object) -> None:
    """Raise for a number given as text."""
    if isinstance(value, str):
        raise TypeError(f"{name}: expected a number, got {value!r}")


def check_smoothing(name: str, value: float) -> float:
    """Return a smoothing strength in [0, 1) as a float, else raise."""
    refuse_text(name, value)
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{name}: expected a number in [0, 1), got {value!r}")
    return float(value)


def check_gamma(gamma: float) -> float:
    """Return the focal exponent as a finite float >= 0, else raise."""
    refuse_text("gamma", gamma)
    if not (math.isfinite(gamma) and gamma >= 0.0):
        raise ValueError(f"gamma: expected a finite number >= 0, got {gamma!r}")
    return float(gamma)


def check_positive(name: str, value: float) -> float:
    """Return a finite float > 0, else raise."""
    refuse_text(name, value)
    if not (math.isfinite(value) and value > 0.0):
        raise ValueError(f"{name}: expected a finite number > 0, got {value!r}")
    return float(value)


def read_logits(logits: Tensor) -> Tensor:
    """Return logits [B, K] in float32 or float64: half precision is widened before anything is computed."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        kind = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
        raise TypeError(f"logits: expected a floating-point tensor, got {kind}")
    if logits.ndim != 2:
        raise ValueError(f"logits: expected shape [B, K], got {list(logits.shape)}")
    if logits.shape[1] < 2:
        raise ValueError(
            f"logits: expected at least 2 classes, got shape {list(logits.shape)}; for one logit: BinaryLoss"
        )
    return widen(logits)


def widen(logits: Tensor) -> Tensor:
    """Return float16 and bfloat16 as float32, anything else as it is."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def is_index(target: Tensor, batch: int, num_classes: int) -> bool:
    """Tell an index target [B] (True) from a soft target [B, K] (False), by shape; raise for anything else.

    Labels out of range and negative soft targets raise ValueError on the CPU. On other devices looking would mean
    waiting for the device, while compiling it would break the graph, and torch.func.vmap has no value to look at: there
    the gather or scatter that reads the label has its own assertion.
    """
    if not isinstance(target, Tensor):
        raise TypeError(f"target: expected a tensor, got {type(target).__name__}")
    if target.shape == (batch, num_classes):
        if target.is_complex():
            raise TypeError(f"target: expected real numbers in the shape [B, K], got {target.dtype}")
        limits = _limits(target)
        if limits is not None and limits[0] < 0:
            raise ValueError(f"soft target must not be negative, got {limits[0]:g}")
        return False
    if target.shape != (batch,):
        raise ValueError(
            f"target: expected shape [{batch}] (class indices) or [{batch}, {num_classes}] (soft), "
            f"got {list(target.shape)}"
        )
    if target.dtype not in _INTEGERS:
        raise TypeError(f"target: expected integer class indices in the shape [B], got {target.dtype}")
    limits = _limits(target)
    if limits is not None and (limits[0] < 0 or limits[1] >= num_classes):
        low, high = limits
        raise ValueError(f"target: expected values in [0, {num_classes - 1}], got values from {low:.0f} to {high:.0f}")
    return True


def check_most(target: Tensor, most: float) -> None:
    """Raise if a soft target on the CPU exceeds `most`; on other devices looking would mean waiting for the device."""
    limits = _limits(target)
    if limits is not None and limits[1] > most:
        raise ValueError(f"soft target must not exceed {most:g}, got {limits[1]:g}")


def _limits(target: Tensor) -> tuple[float, float] | None:
    """Return the least and the largest value, or None where there is none or it cannot be read at once."""
    if target.device.type != "cpu" or not target.numel() or torch.compiler.is_compiling():
        return None
    low, high = target.detach().aminmax()
    try:
        return float(low), float(high)
    except RuntimeError:  # inside torch.func.vmap a value stands for many
        return None


def one_hot(target: Tensor, like: Tensor) -> Tensor:
    """Return an index target [B] as rows of zeros and one 1, in the shape, dtype and device of `like` [B, K]."""
    return torch.zeros_like(like).scatter(1, target.long().unsqueeze(1), 1.0)


def reduce(values: Tensor, target: Tensor, index: bool, weight: Tensor | None, reduction: str) -> Tensor:
    """Weight the samples' losses [B] and reduce them.

    Sample i weighs sum_k y_ik weight_k (weight[y_i] for an index). "mean" is the weighted mean, so that multiplying
    all class weights by a number changes nothing, least of all the scale against which a decay is chosen.
    """
    check_reduction(reduction)
    if weight is None:
        return values.mean() if reduction == "mean" else values.sum() if reduction == "sum" else values
    weight = weight.to(values)
    shares = weight[target.long()] if index else (target.to(values.dtype) * weight).sum(1)
    values = values * shares
    if reduction == "mean":
        return values.sum() / shares.sum()
    return values.sum() if reduction == "sum" else values


def mean_factor(reduction: str, batch: int) -> float:
    """Return by what an unweighted reduction multiplies the gradients of `batch` samples."""
    return 1.0 / batch if reduction == "mean" and batch else 1.0


def check_weight(weight: Tensor | None, num_classes: int) -> None:
    """Raise unless the class weights are None or have shape [K]."""
    if weight is not None and tuple(weight.shape) != (num_classes,):
        raise ValueError(
            f"weight: expected one entry for each of {num_classes} classes, got shape {list(weight.shape)}"
        )
