"""The layers of a vision transformer and its last norm in a captured step on a GPU: fused kernels between the products.

torch would add the residual, cast, normalise, and sum the gradient of every bias in kernels of their own. Here each sum
x + y is taken in the norm that follows it, and the gradients of biases and norms come out of passes that are made
anyway. The network's output is the class token, so that in the last layer nothing after the attention is done for the
other tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from ncollapse.models.attention import knows_attention
from ncollapse.models.norm import has_kernels, is_fusing
from ncollapse.models.overlap import Beside, find_beside

if TYPE_CHECKING:
    from ncollapse.models.vit import EncoderLayer


class Weights(NamedTuple):
    """The parameters of a layer."""

    norm1_weight: Tensor
    norm1_bias: Tensor
    qkv_weight: Tensor
    qkv_bias: Tensor
    mix_weight: Tensor
    mix_bias: Tensor
    norm2_weight: Tensor
    norm2_bias: Tensor
    up_weight: Tensor
    up_bias: Tensor
    down_weight: Tensor
    down_bias: Tensor


class Kept(NamedTuple):
    """What the backward pass of a layer needs; matrices with a row for each token."""

    x: Tensor
    h: Tensor
    qkv: Tensor
    mixed: Tensor
    x2: Tensor
    h2: Tensor
    up: Tensor
    active: Tensor


PARTS = len(Weights._fields)


class Encoder(torch.autograd.Function):
    """The normalised class tokens [B, C] of x [B, N, C]; `tensors` are the layers' parameters and the last norm's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, heads: int, eps: float, *tensors: Tensor) -> Tensor:
        kept: list[Kept] = []
        features, last = compute_encoder(x, heads, eps, tensors, kept)
        ctx.shape, ctx.heads, ctx.eps, ctx.beside = x.shape, heads, eps, find_beside()
        ctx.save_for_backward(last, *(tensor for layer in kept for tensor in layer), *tensors)
        return features

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, d_features: Tensor) -> tuple[Tensor | None, ...]:
        last, *rest = ctx.saved_tensors
        size = len(Kept._fields)
        count = (len(rest) - 2) // (size + PARTS)
        kept = [Kept(*rest[size * i : size * (i + 1)]) for i in range(count)]
        with torch.cuda.device(last.device):
            dx, grads = differentiate_encoder(
                d_features, last, kept, rest[size * count :], ctx.shape, ctx.heads, ctx.eps, ctx.beside
            )
        return dx.view(ctx.shape), None, None, *grads


class Sums:
    """Gradients that are sums over rows: kernels leave them by blocks of rows, and one kernel adds up all blocks."""

    def __init__(self, blocks: int, columns: int, like: Tensor) -> None:
        self.partial = torch.empty(blocks, columns, dtype=like.dtype, device=like.device)
        self.places: list[int] = []
        self.sizes: list[int] = []

    def take(self, columns: int, *places: int) -> Tensor:
        """Room for the blocks' sums of the gradients at these places, of so many columns each."""
        start = sum(self.sizes)
        self.places += places
        self.sizes += [columns] * len(places)
        return self.partial[:, start : start + columns * len(places)]

    def add_up(self, grads: list[Tensor | None]) -> None:
        """Put the gradients in their places."""
        from ncollapse.models.fused_transformer import add_blocks

        for place, grad in zip(self.places, torch.split(add_blocks(self.partial), self.sizes), strict=True):
            grads[place] = grad


def split_layers(tensors: Sequence[Tensor]) -> list[Weights]:
    """The parameters by layer."""
    return [Weights(*tensors[i : i + PARTS]) for i in range(0, len(tensors) - 2, PARTS)]


def cast_biases(layers: list[Weights]) -> list[list[Tensor]]:
    """The biases of each layer's products in the type of its matrices: all of them in one kernel."""
    biases = [[p.qkv_bias, p.mix_bias, p.up_bias, p.down_bias] for p in layers]
    copies = [[torch.empty_like(bias, dtype=p.qkv_weight.dtype) for bias in row] for p, row in zip(layers, biases)]
    torch._foreach_copy_([copy for row in copies for copy in row], [bias for row in biases for bias in row])
    return copies


def compute_encoder(
    x: Tensor, heads: int, eps: float, tensors: Sequence[Tensor], kept: list[Kept] | None
) -> tuple[Tensor, Tensor]:
    """The normalised class tokens, and what they are the norm of; what the backward pass needs is added to `kept`."""
    from ncollapse.models.fused_attention import compute_attention
    from ncollapse.models.fused_transformer import add_norm, compute_gelu

    images, tokens, width = x.shape
    layers, y = split_layers(tensors), None
    biases = cast_biases(layers)
    x = x.reshape(-1, width)
    for p, (qkv_bias, mix_bias, up_bias, down_bias) in zip(layers, biases):
        dtype = p.qkv_weight.dtype
        x, h = add_norm(x, y, p.norm1_weight, p.norm1_bias, eps, dtype)
        qkv = F.linear(h, p.qkv_weight, qkv_bias).view(images, tokens, 3 * width)
        mixed, stream = compute_attention(qkv, heads).view(-1, width), x
        if p is layers[-1]:
            mixed, stream = mixed[::tokens].contiguous(), x[::tokens]
        y = F.linear(mixed, p.mix_weight, mix_bias)
        x2, h2 = add_norm(stream, y, p.norm2_weight, p.norm2_bias, eps, dtype)
        up = F.linear(h2, p.up_weight, up_bias)
        active = compute_gelu(up)
        y = F.linear(active, p.down_weight, down_bias)
        if kept is not None:
            kept.append(Kept(x, h, qkv, mixed, x2, h2, up, active))
        x = x2
    last, features = add_norm(x, y, tensors[-2], tensors[-1], eps, x.dtype)
    return features, last


def differentiate_encoder(
    d_features: Tensor,
    last: Tensor,
    kept: list[Kept],
    tensors: Sequence[Tensor],
    shape: torch.Size,
    heads: int,
    eps: float,
    beside: Beside | None,
) -> tuple[Tensor, list[Tensor | None]]:
    """The gradients of x and of all parameters."""
    from ncollapse.models.fused_attention import differentiate_attention
    from ncollapse.models.fused_transformer import count_blocks, differentiate_add_norm, differentiate_gelu

    images, tokens, width = shape
    layers = split_layers(tensors)
    grads: list[Tensor | None] = [None] * len(tensors)
    dtype = layers[0].qkv_weight.dtype
    of_norms, of_gelus = count_blocks(images * tokens)
    inner = sum(p.up_bias.numel() for p in layers)
    columns = sum(tensor.numel() for tensor in tensors if tensor.ndim == 1)
    own = 3 * width * len(layers)  # of the attention's biases, which are summed by image
    sums, inner_sums = Sums(of_norms, columns - own - inner, last), Sums(of_gelus, inner, last)
    by_image = Sums(images, own, last)

    def find(i: int, name: str) -> int:
        return PARTS * i + Weights._fields.index(name)

    room = sums.take(width, len(tensors) - 2, len(tensors) - 1, find(len(layers) - 1, "down_bias"))
    dx, dy = differentiate_add_norm(d_features.contiguous(), None, last, tensors[-2], eps, room, dtype)
    for i in reversed(range(len(layers))):
        p, k, every = layers[i], kept[i], tokens if i == len(layers) - 1 else 1
        d_active, grads[find(i, "down_weight")] = differentiate_linear(dy, k.active, p.down_weight, beside)
        d_up = differentiate_gelu(d_active, k.up, inner_sums.take(k.up.shape[1], find(i, "up_bias")))
        dh, grads[find(i, "up_weight")] = differentiate_linear(d_up, k.h2, p.up_weight, beside)
        room = sums.take(width, *(find(i, name) for name in ("norm2_weight", "norm2_bias", "mix_bias")))
        dx, dy = differentiate_add_norm(dh, dx, k.x2, p.norm2_weight, eps, room, dtype)
        d_mixed, grads[find(i, "mix_weight")] = differentiate_linear(dy, k.mixed, p.mix_weight, beside)
        if every > 1:
            whole = torch.zeros(images * tokens, width, dtype=dtype, device=dx.device)
            whole[::every] = d_mixed
            d_mixed = whole
        room = by_image.take(3 * width, find(i, "qkv_bias"))
        d_qkv = differentiate_attention(d_mixed.view(shape), k.qkv, heads, room).view(-1, 3 * width)
        dh, grads[find(i, "qkv_weight")] = differentiate_linear(d_qkv, k.h, p.qkv_weight, beside)
        places = [find(i, "norm1_weight"), find(i, "norm1_bias"), *([find(i - 1, "down_bias")] if i else [])]
        room = sums.take(width, *places)
        dx, dy = differentiate_add_norm(dh, dx, k.x, p.norm1_weight, eps, room, dtype if i else None, every)
    for part in (sums, inner_sums, by_image):
        part.add_up(grads)
    return dx, grads


def differentiate_linear(dy: Tensor, x: Tensor, weight: Tensor, beside: Beside | None) -> tuple[Tensor, Tensor]:
    """The gradients of the input and of the weight; the latter `beside` the former where streams are given.

    Then the weight may be updated too: nothing may read it after this.
    """
    if beside is None:
        return dy @ weight, dy.t() @ x
    d_weight = beside.start(lambda: dy.t() @ x, dy, x)
    dx = dy @ weight
    beside.update(weight, d_weight)
    return dx, d_weight


def run_encoder(
    layers: Sequence[EncoderLayer], norm: nn.LayerNorm, x: Tensor, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """norm(layers(x)[:, 0]) with products in `dtype`."""
    heads = layers[0].self_attn.num_heads
    tensors: list[Tensor] = []
    for layer in layers:
        attention = layer.self_attn
        tensors += [layer.norm1.weight, layer.norm1.bias]
        tensors += [attention.in_proj_weight.to(dtype), attention.in_proj_bias]
        tensors += [attention.out_proj.weight.to(dtype), attention.out_proj.bias]
        tensors += [layer.norm2.weight, layer.norm2.bias]
        tensors += [layer.linear1.weight.to(dtype), layer.linear1.bias]
        tensors += [layer.linear2.weight.to(dtype), layer.linear2.bias]
    tensors += [norm.weight, norm.bias]
    with torch.cuda.device(x.device):  # Triton launches on the current one
        if torch.is_grad_enabled():
            return Encoder.apply(x, heads, norm.eps, *tensors)  # type: ignore[no-any-return, no-untyped-call]
        return compute_encoder(x, heads, norm.eps, tensors, None)[0]


def can_fuse_encoder(layers: nn.Sequential, norm: nn.LayerNorm, x: Tensor) -> bool:
    """Whether the fused kernels know this case."""
    return fuses_products(x) and x.dtype == torch.float32 and knows_layers(layers, norm, x.shape[1])


def fuses_products(x: Tensor) -> bool:
    """Whether kernels between products may be fused here: on a GPU, under bfloat16 autocast, and not compiled."""
    if torch.compiler.is_compiling() or not (is_fusing() and has_kernels() and x.is_cuda):
        return False
    return torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16


def knows_layers(layers: nn.Sequential, norm: nn.LayerNorm, tokens: int) -> bool:
    """Whether the kernels know these layers on so many tokens, and nobody looks at their parts."""
    parts = [part for module in (layers, norm) for part in module.modules()]
    if not len(layers) or any(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks for part in parts):
        return False
    width = norm.normalized_shape[0]
    third = width // 3
    if width % 3 or third < 4 or third & (third - 1):
        return False
    attention: Any = layers[0].self_attn
    known = all(knows_layer(layer, norm.eps, attention.num_heads) for layer in layers)
    return known and knows_norm(norm, norm.eps) and knows_attention(tokens, width // attention.num_heads)


def knows_layer(layer: Any, eps: float, heads: int) -> bool:
    """Whether the parts are torch's own and have the biases that the kernels expect; others may compute anything."""
    attention, products = layer.self_attn, (layer.self_attn.out_proj, layer.linear1, layer.linear2)
    if type(attention) is not nn.MultiheadAttention or attention.num_heads != heads:
        return False
    if any(type(part) not in (nn.Linear, NonDynamicallyQuantizableLinear) for part in products):
        return False
    biases = attention.in_proj_bias, *(part.bias for part in products)
    if any(bias is None or bias.dtype != torch.float32 for bias in biases):
        return False
    return knows_norm(layer.norm1, eps) and knows_norm(layer.norm2, eps)


def knows_norm(norm: nn.Module, eps: float) -> bool:
    """Whether it is torch's own with float32 parameters and this eps."""
    if type(norm) is not nn.LayerNorm or norm.eps != eps or norm.weight is None or norm.bias is None:
        return False
    return norm.weight.dtype == norm.bias.dtype == torch.float32
