"""The kernels between the products of a transformer by their definitions, in the precision of what they are given."""

import torch
from torch.nn import functional as F

from reference.norm_ops import widen


def compute_attention(qkv, heads):
    images, tokens, triple = qkv.shape
    q, k, v = qkv.view(images, tokens, 3, heads, triple // 3 // heads).permute(2, 0, 3, 1, 4)
    weights = torch.softmax(q @ k.transpose(2, 3) / q.shape[3] ** 0.5, -1)
    return (weights @ v).transpose(1, 2).reshape(images, tokens, triple // 3)


def differentiate_attention(d_out, qkv, heads, sums=None):
    with torch.enable_grad():
        leaf = qkv.detach().requires_grad_()
        (d_qkv,) = torch.autograd.grad(compute_attention(leaf, heads), leaf, d_out)
    if sums is not None:
        sums.copy_(d_qkv.sum(1))
    return d_qkv


def add_norm(x, y, weight, bias, eps, dtype):
    total = x if y is None else x + y
    return total, F.layer_norm(total, weight.shape, weight, bias, eps).to(dtype)


def differentiate_add_norm(dh, d_total, x, weight, eps, partial, dtype, every=1):
    variance, mean = torch.var_mean(x, 1, correction=0, keepdim=True)
    invstd = 1 / (variance + eps).sqrt()
    xhat, g = (x - mean) * invstd, widen(dh) * weight
    dx = invstd * (g - g.mean(1, keepdim=True) - xhat * (g * xhat).mean(1, keepdim=True))
    if d_total is not None:
        dx[::every] += d_total
    sums = [(widen(dh) * xhat).sum(0), widen(dh).sum(0)]
    sums += [] if dtype is None else [dx.sum(0)]
    spread(torch.cat(sums), partial)
    return dx, dx if dtype is None else dx.to(dtype)


def compute_gelu(u):
    return F.gelu(u)


def differentiate_gelu(dg, u, partial):
    value = widen(u)
    density = torch.exp(-value.square() / 2) / (2 * torch.pi) ** 0.5
    du = widen(dg) * (torch.special.ndtr(value) + value * density)
    spread(du.sum(0), partial)
    return du.to(u.dtype)


def count_blocks(rows):
    return 3, 2


def spread(sums, partial):
    """Blocks of these sums."""
    partial.copy_(torch.outer(torch.linspace(0, 2, len(partial), dtype=sums.dtype) / len(partial), sums))


def add_blocks(partial):
    return partial.sum(0)


def add_positions(y, token, position, images):
    tokens = torch.cat([token.expand(images, -1, -1), y.view(images, position.shape[1] - 1, -1)], 1)
    return tokens + position


def differentiate_positions(dx, dtype):
    return dx[:, 1:].flatten(0, 1).to(dtype), dx.sum(0)
