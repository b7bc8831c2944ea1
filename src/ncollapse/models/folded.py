"""Evaluation with batch norms folded into the convolutions before them, so that no pass over a map is left for a norm.

With running statistics, a norm multiplies each channel by a number and adds another. The former is multiplied into the
convolution's weights, the latter is its bias, and cuDNN has one kernel for convolution, bias, residual and ReLU. This
is done in captured graphs alone (`fusing()`), without gradients, under bfloat16 autocast on a GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ncollapse.models import norm as norms
from ncollapse.models.convolution import Conv2d
from ncollapse.models.operators import call_operator
from ncollapse.models.stem import COLUMNS, can_multiply, unfold_windows

Layer = tuple[nn.Conv2d, nn.BatchNorm2d]
"""A convolution and the norm of its output."""
FOLDS = True
"""Whether norms are folded at all; False once that has failed on this machine."""
SEARCHES = False
"""Whether cuDNN's search times the fused kernels, too. It builds all of them before, whatever its limit says."""
LARGEST_MAP = 2**31 - 1
"""Values of a map that cuDNN's kernels can address."""
ALIGNED = 8
"""Channels in bfloat16 that one load of 16 bytes reads; fused kernels may want multiples of them."""
log = logging.getLogger("ncollapse.models")


def stop_folding(what: str, fault: object) -> None:
    """Fold no norms from now on, and say why."""
    global FOLDS
    FOLDS = False
    log.warning("%s: batch norms are not folded into the convolutions on this GPU: %s", what, fault)


def can_fold(x: Tensor, *layers: Layer) -> bool:
    """Whether the norms of these layers, the first of which reads the map x, can be folded."""
    if not is_folding(x) or x.dtype != torch.bfloat16 or not x.is_contiguous(memory_format=torch.channels_last):
        return False
    channels = [count for conv, _ in layers for count in (conv.in_channels, conv.out_channels)]
    if any(count % ALIGNED for count in channels):
        return False
    return x.numel() // x.shape[1] * max(channels) <= LARGEST_MAP and all(map(is_plain, layers))


def can_fold_stem(layer: Layer, x: Tensor) -> bool:
    """Whether the network's first layer can be a matrix product with its norm folded in."""
    return is_folding(x) and can_multiply(layer[0], x) and is_plain(layer)


def is_folding(x: Tensor) -> bool:
    """Whether this thread now evaluates a network in a way for which norms are folded."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or not (FOLDS and norms.is_fusing()):
        return False
    if not (norms.has_kernels() and x.is_cuda) or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return False
    cudnn = torch.backends.cudnn
    if not cudnn.enabled or cudnn.deterministic or torch.are_deterministic_algorithms_enabled():
        return False  # torch does not tell the fused kernels to be deterministic
    return torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16


def is_plain(layer: Layer) -> bool:
    """Whether this is our convolution without bias or groups, and a BatchNorm2d with weights in eval mode."""
    conv, norm = layer
    if type(conv) is not Conv2d or type(norm) is not nn.BatchNorm2d or norm.training or not norm.track_running_stats:
        return False
    if any((m._forward_hooks or m._forward_pre_hooks) for m in layer):
        return False  # who looks at a module wants to see it called
    if conv.bias is not None or conv.groups != 1 or conv.dilation != (1, 1) or conv.padding_mode != "zeros":
        return False
    if isinstance(conv.padding, str) or norm.weight is None or norm.running_mean is None:
        return False
    single = conv.weight.dtype == norm.weight.dtype == norm.running_mean.dtype == torch.float32
    return single and conv.weight.is_contiguous(memory_format=torch.channels_last)


def convolve_relu(layer: Layer, x: Tensor, residual: Tensor | None = None, shift: Tensor | None = None) -> Tensor:
    """relu(norm(conv(x)) + residual + shift); `shift` [C] in float32 comes from `convolve_without_shift`."""
    conv = layer[0]
    kernel, bias = fold_norm(layer, shift)
    stride, padding = conv.stride, [int(size) for size in conv.padding]
    with _limit_search():
        if residual is None:
            return torch.cudnn_convolution_relu(x, kernel, bias, stride, padding, (1, 1), 1)
        return torch.cudnn_convolution_add_relu(x, kernel, residual, 1.0, bias, stride, padding, (1, 1), 1)


def convolve_without_shift(layer: Layer, x: Tensor) -> tuple[Tensor, Tensor]:
    """norm(conv(x)) as a map and what is to be added to each of its channels, which takes a pass of its own here."""
    kernel, shift = fold_norm(layer, dtype=torch.float32)
    return torch.conv2d(x, kernel, None, layer[0].stride, layer[0].padding), shift


def multiply_relu(layer: Layer, x: Tensor) -> Tensor:
    """relu(norm(conv(x))) of a network's input, with the 3 x 3 convolution as a matrix product (`stem`)."""
    images, _, height, width = x.shape
    kernel, bias = fold_norm(layer)
    rows = kernel.permute(0, 2, 3, 1).flatten(1)
    rows = F.pad(rows, (0, COLUMNS - rows.shape[1]))
    y = torch._addmm_activation(bias, call_operator(unfold_windows, x), rows.t())
    return y.view(images, height, width, -1).permute(0, 3, 1, 2)


def fold_norm(layer: Layer, shift: Tensor | None = None, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor]:
    """Weights in bfloat16 and bias in `dtype` of the convolution that does what the layer does, plus `shift`."""
    from ncollapse.models.fused_fold import scale_kernel

    conv, norm = layer
    given = norm.weight, norm.bias, norm.running_mean, norm.running_var
    with torch.cuda.device(conv.weight.device):  # Triton launches on the current one
        return scale_kernel(conv.weight, *given, shift, norm.eps, dtype)  # type: ignore[arg-type]


@contextmanager
def _limit_search() -> Iterator[None]:
    """Take the fused kernel that cuDNN thinks best, unless `SEARCHES`."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before and SEARCHES
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
