"""Numerically accurate pieces of the softmax that cross-entropy and focal loss share."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ncollapse.losses.special import expit

Array = NDArray[np.float64]


def lead_of(z: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lead a = z_k - log sum_{j != k} e^{z_j} [B, 1] of the classes k [B, 1], and their mask [B, K].

    p_k = sigmoid(a). `log_softmax` rounds p to 1 at a lead of 17 in float32, and with it the loss and its gradient to
    0. logsigmoid(a) and logsigmoid(-a) keep log p and log(1 - p), and their gradients, to full relative precision.
    """
    mask = torch.zeros_like(z, dtype=torch.bool).scatter(1, index, True)
    # Not -inf: where every z_j is -inf, their logsumexp has the gradient NaN, and the lead is infinite.
    rest = z.masked_fill(mask, torch.finfo(z.dtype).min)
    # The largest is taken out first: a logsumexp near 10^4 is rounded to 1e-3 in float32, and the lead with it.
    top = rest.detach().amax(1, keepdim=True)
    return z.gather(1, index) - top - (rest - top).logsumexp(1, keepdim=True), mask


def log_probabilities(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p and log(1 - p) [B, K] of every class; only the largest p can be near 1, and it has its lead."""
    top = z.argmax(1, keepdim=True)
    lead, mask = lead_of(z, top)
    # The 0 is z_max - z_max: as a difference, its gradient 1 - 1 would round away the small rest of the gradient.
    log_p = (z - z.gather(1, top)).masked_fill(mask, 0.0) + F.logsigmoid(lead)
    # The stand-in -1 keeps log1p differentiable where p rounds to 1.
    log_rest = torch.where(mask, F.logsigmoid(-lead), torch.log1p(-log_p.masked_fill(mask, -1.0).exp()))
    return log_p, log_rest


def group_leads(z: Array, sizes: Array) -> tuple[Array, Array]:
    """Return the lead [...] of the first group of equal logits z [..., G], and the groups' shares of the others' sum.

    The groups have `sizes` [G] members, the first is the target class alone. The shares [..., G] are
    size_g e^{z_g} / sum_{h > 0} size_h e^{z_h}, and -1 for the first group: minus the gradient of the lead.
    """
    counted = np.where(sizes[1:] > 0, z[..., 1:], -np.inf)
    top = counted.max(axis=-1, keepdims=True)
    terms = sizes[1:] * np.exp(counted - top)
    total = terms.sum(axis=-1, keepdims=True)
    lead = z[..., :1] - top - np.log(total)
    shares = np.concatenate([-np.ones_like(lead), terms / total], axis=-1)
    return lead[..., 0], shares


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x) in float64."""
    return np.asarray(expit(x))
