"""log sigmoid together with its slope, for losses that return their own gradient."""

from __future__ import annotations

import torch
from torch import Tensor


def log_sigmoid_and_slope(x: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return log sigmoid(x) and scale * sigmoid(-x), to the bit as torch's logsigmoid and its backward pass do.

    >>> log_sigmoid_and_slope(torch.zeros(1), 2.0)
    (tensor([-0.6931]), tensor([1.]))
    """
    value, buffer = torch.ops.aten.log_sigmoid_forward.default(x)
    return value, torch.ops.aten.log_sigmoid_backward.default(torch.full_like(x, scale), x, buffer)
