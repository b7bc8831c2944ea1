"""Self-attention of queries, keys and values that one product made: fused for short sequences in bfloat16 on a GPU."""

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op
from torch.nn import functional as F

from ncollapse.models import norm

LONGEST = 128
"""Tokens whose scores one program can hold."""


def attend(qkv: Tensor, heads: int) -> Tensor:
    """softmax(Q K^T / sqrt(d)) V, head by head, of qkv [B, N, 3 width] with the heads side by side in each third.

    >>> attend(torch.zeros(2, 5, 3 * 8), heads=2).shape
    torch.Size([2, 5, 8])
    """
    if can_fuse_attention(qkv, heads):
        return fused_attention(qkv, heads)  # type: ignore[no-any-return]
    images, tokens, triple = qkv.shape
    q, k, v = qkv.view(images, tokens, 3, heads, triple // 3 // heads).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q, k, v)
    return mixed.transpose(1, 2).reshape(images, tokens, triple // 3)


def can_fuse_attention(qkv: Tensor, heads: int) -> bool:
    """Whether the fused kernels know this case."""
    known = norm.has_kernels() and qkv.is_cuda and qkv.dtype == torch.bfloat16 and qkv.is_contiguous()
    return known and knows_attention(qkv.shape[1], qkv.shape[2] // 3 // heads)


def knows_attention(tokens: int, dim: int) -> bool:
    """Whether the fused kernels know heads of this dimension over so many tokens."""
    return tokens <= LONGEST and dim in (16, 32, 64)


@custom_op("ncollapse::attend", mutates_args=(), device_types="cuda")
def fused_attention(qkv: Tensor, heads: int) -> Tensor:
    """`attend` in one kernel."""
    from ncollapse.models.fused_attention import compute_attention

    with torch.cuda.device(qkv.device):  # Triton launches on the current one
        return compute_attention(qkv, heads)


@custom_op("ncollapse::attend_backward", mutates_args=(), device_types="cuda")
def fused_attention_backward(d_out: Tensor, qkv: Tensor, heads: int) -> Tensor:
    """The gradient of qkv in one kernel."""
    from ncollapse.models.fused_attention import differentiate_attention

    with torch.cuda.device(qkv.device):
        return differentiate_attention(d_out, qkv, heads)


@fused_attention.register_fake
def _(qkv: Tensor, heads: int) -> Tensor:
    return qkv.new_empty(qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3)


@fused_attention_backward.register_fake
def _(d_out: Tensor, qkv: Tensor, heads: int) -> Tensor:
    return torch.empty_like(qkv)


def _keep(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
    qkv, ctx.heads = inputs
    ctx.save_for_backward(qkv)


def _differentiate(ctx: Any, d_out: Tensor) -> tuple[Tensor, None]:
    (qkv,) = ctx.saved_tensors
    return fused_attention_backward(d_out.to(qkv.dtype).contiguous(), qkv, ctx.heads), None


fused_attention.register_autograd(_differentiate, setup_context=_keep)
