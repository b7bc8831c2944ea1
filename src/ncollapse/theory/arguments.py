"""The types of the keyword arguments that make a `Problem`, for type checkers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from ncollapse.theory.mixing import Mixing


class LossArguments(TypedDict, total=False):
    """The parameters of the losses."""

    gamma: float | None
    alpha: float | None
    kappa: float | None
    beta: float | None
    M: float | None
    label_smoothing: float | None


class ProblemArguments(LossArguments, total=False):
    """The arguments of `Problem` by keyword, and the parameters of its loss."""

    weight_decay: float
    feature_decay: float
    bias_decay: float
    per_class: float | None
    batch_size: float | None
    class_counts: Sequence[float] | None
    dim: int | None
    bias: bool
    features: Literal["free", "relu"]
    targets: Any
    target_counts: Sequence[float] | None
    logit_offset: Sequence[float] | None
    mixing: Mixing | None
