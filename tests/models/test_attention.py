"""Attention against its definition in float64; the fused kernels on a GPU or in Triton's interpreter."""

import math

import pytest
import torch
from torch import nn

from ncollapse.models import attention
from ncollapse.models.attention import attend, fused_attention, fused_attention_backward
from ncollapse.models.vit import HEADS, WIDTH, EncoderLayer
from reference.norm_ops import INTERPRETED

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
kernels = pytest.mark.skipif(
    not ON_GPU and not INTERPRETED, reason="the fused kernels need a GPU, or TRITON_INTERPRET=1"
)


def define(qkv, heads):
    """The definition, head by head."""
    width = qkv.shape[2] // 3
    dim, mixed = width // heads, []
    for head in range(heads):
        q, k, v = (qkv[..., i * width + head * dim : i * width + (head + 1) * dim] for i in range(3))
        mixed.append(torch.softmax(q @ k.transpose(1, 2) / math.sqrt(dim), -1) @ v)
    return torch.cat(mixed, -1)


def check(work, qkv, heads, tolerance):
    """Output and gradient against float64 autograd over the definition."""
    d_out = torch.randn_like(qkv[..., : qkv.shape[2] // 3])
    leaf, exact = qkv.detach().requires_grad_(), qkv.detach().double().requires_grad_()
    out, wanted = work(leaf, heads), define(exact, heads)
    out.backward(d_out)
    wanted.backward(d_out.double())
    for a, b in ((out, wanted), (leaf.grad, exact.grad)):
        assert ((a.double() - b).norm() / b.norm()).item() < tolerance


@pytest.mark.parametrize(("tokens", "heads"), [(1, 1), (5, 2), (65, 6)])
def test_composition_matches_the_definition(tokens, heads):
    torch.manual_seed(0)
    check(attend, torch.randn(3, tokens, 3 * heads * 16), heads, 1e-5)


@kernels
@pytest.mark.parametrize(
    ("tokens", "heads", "dim"), [(65, 6, 64), (5, 2, 16), (128, 1, 32), (64, 2, 64), (1, 1, 64), (100, 2, 32)]
)
def test_fused_kernels_match_the_definition(tokens, heads, dim):
    torch.manual_seed(0)
    images, dtype = (128, torch.bfloat16) if ON_GPU else (2, torch.float32)  # the interpreter has no bfloat16 products
    qkv = torch.randn(images, tokens, 3 * heads * dim, device=DEVICE, dtype=dtype)
    if not ON_GPU:
        from ncollapse.models import fused_attention as source

        fused_attention.register_kernel("cpu")(source.compute_attention)
        fused_attention_backward.register_kernel("cpu")(source.differentiate_attention)
    assert attention.can_fuse_attention(qkv, heads) or not ON_GPU
    check(fused_attention, qkv, heads, 1e-2 if ON_GPU else 1e-5)


def test_the_layer_is_torchs():
    torch.manual_seed(0)
    ours = EncoderLayer()
    torch.manual_seed(0)
    options = {"dropout": 0.0, "activation": "gelu", "layer_norm_eps": 1e-6, "batch_first": True, "norm_first": True}
    theirs = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, **options)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(ours.state_dict().values(), theirs.state_dict().values()))
    x = torch.randn(2, 9, WIDTH)
    found = []
    for layer in (ours, theirs):
        leaf = x.clone().requires_grad_()
        y = layer(leaf)
        y.square().sum().backward()
        found.append([y.detach(), leaf.grad, *(p.grad for p in layer.parameters())])
    for a, b in zip(*found):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
