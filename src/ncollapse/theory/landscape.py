"""The loss of one feature as a function of its norm and angle, and its gradients in scores and biases."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from ncollapse.losses import Loss
from ncollapse.losses.forms import unreduced
from ncollapse.metrics.batches import check_labels
from ncollapse.theory.problem import check_number, is_whole, make_class_loss

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Landscape:
    """The loss of a feature of class k at norms [S] and angles [T] to w_k: each field is [T, S].

    value: the loss; d_norm, d_angle: its derivatives in the norm s and the angle theta. The gradient in the plane has
    the components d_norm along the radius and d_angle / s across it.
    """

    norms: Array
    angles: Array
    value: Array
    d_norm: Array
    d_angle: Array


def landscape(
    loss: str | Loss,
    num_classes: int,
    *,
    norms: ArrayLike | None = None,
    angles: ArrayLike | None = None,
    scale: float = 1.0,
    bias: float = 0.0,
    **loss_params: Any,
) -> Landscape:
    """Evaluate the loss of one feature classified by a fixed simplex ETF (mse-landscape Figs. 2 and 8).

    The rows of W have norm `scale` and cosines -1/(K-1), the bias is `bias` in every class. The feature lies in the
    plane of w_k and another w_j, at norm s and angle theta from w_k towards w_j, so that with c = scale s
    (mse-landscape Eq. 29)

        z_k = c cos(theta) - b
        z_j = c (sqrt(K^2 - 2K) sin(theta) - cos(theta)) / (K - 1) - b
        z_l = -c (sqrt(K / (K - 2)) sin(theta) + cos(theta)) / (K - 1) - b      for the K - 2 other classes

    Values and derivatives are exact at this K: the limit that mse-landscape prints for cross-entropy (Eq. 35) is not
    the limit of its Eq. 32. For K = 2, w_j = -w_k and the plane is any that holds them. The defaults cover
    0 < s <= 10 and 0 <= theta <= pi.

    >>> field = landscape("ce", 10, norms=[2.0], angles=[0.0])
    >>> round(field.value.item(), 6), round(field.d_norm.item(), 6), abs(field.d_angle.item()) < 1e-12
    (0.680726, -0.548612, True)
    """
    if not is_whole(num_classes) or num_classes < 2:
        raise ValueError(f"num_classes is {num_classes!r}; a whole number of at least 2 is needed")
    if not (math.isfinite(check_number("scale", scale)) and scale > 0):
        raise ValueError(f"scale is {scale}; the rows of the frame need a positive norm")
    if not math.isfinite(check_number("bias", bias)):
        raise ValueError(f"bias: expected a finite number, the same for every class, got {bias}")
    s = _axis("norms", np.linspace(0.1, 10.0, 100) if norms is None else norms)
    theta = _axis("angles", np.linspace(0.0, math.pi, 91) if angles is None else angles)
    if (s < 0).any():
        raise ValueError(f"norms has the value {s.min():g}; a norm is at least 0")
    k = int(num_classes)
    # The logits are c (cosines cos(theta) + sines sin(theta)) - b in three groups: the class, its neighbour, the rest.
    cosines = np.array([1.0, -1.0 / (k - 1), -1.0 / (k - 1)])
    sines = np.array([0.0, math.sqrt(k * k - 2 * k), -math.sqrt(k / (k - 2)) if k > 2 else 0.0]) / (k - 1)
    sizes = np.array([1.0, 1.0, k - 2.0])
    along = np.cos(theta)[:, None] * cosines + np.sin(theta)[:, None] * sines
    across = -np.sin(theta)[:, None] * cosines + np.cos(theta)[:, None] * sines
    z = scale * s[None, :, None] * along[:, None, :] - bias
    value, slopes = make_class_loss(loss, **loss_params).evaluate_groups(z, sizes)
    d_norm = scale * (slopes * along[:, None, :]).sum(axis=-1)
    d_angle = scale * s * (slopes * across[:, None, :]).sum(axis=-1)
    return Landscape(s, theta, value, d_norm, d_angle)


def score_gradient(loss: str | Loss, logits: ArrayLike, labels: ArrayLike, **loss_params: Any) -> Array:
    """The derivatives of each sample's loss in its decision scores, [N, K] (bce-vs-ce Eqs. 18 and 19).

    Cross-entropy: softmax(z) - y, the same for all samples of equal probability whatever their scores. Binary
    cross-entropy: sigmoid(z) - y, entry by entry.

    >>> score_gradient("bce", [[0.0, 0.0]], [0]).tolist()
    [[-0.5, 0.5]]
    """
    z = np.asarray(logits, dtype=np.float64)
    if z.ndim != 2:
        raise ValueError(f"logits has shape {z.shape}; expected [N, K]")
    y = check_labels(labels, len(z)).numpy()
    if y.size and y.max() >= z.shape[1]:
        raise ValueError(f"labels: expected integers 0..{z.shape[1] - 1}, got {y.max()}")
    made = unreduced(make_class_loss(loss, **loss_params))
    return np.asarray(made.value_and_gradient(torch.from_numpy(z), torch.from_numpy(y))[1])


def bias_gradient(
    loss: str | Loss, logits: ArrayLike, labels: ArrayLike, bias: ArrayLike, *, bias_decay: float = 0.0, **params: Any
) -> Array:
    """The derivatives of the objective in the thresholds b, [K] (bce-vs-ce Eqs. 20 and 21).

    1/N (n_k - sum_i p_k(x_i)) + lb b_k, with p the softmax for cross-entropy and the sigmoid for binary cross-entropy.

    >>> bias_gradient("ce", [[0.0, 0.0], [0.0, 0.0]], [0, 1], [0.5, 0.5], bias_decay=0.1).tolist()
    [0.05, 0.05]
    """
    slope = score_gradient(loss, logits, labels, **params).mean(axis=0)
    return np.asarray(bias_decay * np.asarray(bias, dtype=np.float64) - slope)


def _axis(name: str, values: ArrayLike) -> Array:
    axis = np.asarray(values, dtype=np.float64)
    if axis.ndim != 1 or axis.size == 0 or not np.isfinite(axis).all():
        raise ValueError(f"{name}: expected a list of finite numbers, got the shape {axis.shape}")
    return axis
