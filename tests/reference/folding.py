"""Folded batch norms by their definitions: what cuDNN's fused kernels and ours compute."""

import torch
from torch.nn import functional as F

from ncollapse.models import densenet, folded, resnet
from reference.windows import define_windows


def define_folding(layer, shift=None, dtype=torch.bfloat16, kernel_dtype=torch.bfloat16):
    """Weights and bias of the convolution that includes its norm."""
    conv, norm = layer
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    bias = norm.bias - norm.running_mean * scale
    kernel = conv.weight * scale[:, None, None, None]
    return kernel.to(kernel_dtype), (bias if shift is None else bias + shift).to(dtype)


def convolve_relu(x, kernel, bias, stride, padding, dilation, groups):
    return F.relu(F.conv2d(x, kernel, bias, stride, padding, dilation, groups))


def convolve_add_relu(x, kernel, residual, alpha, bias, stride, padding, dilation, groups):
    return F.relu(F.conv2d(x, kernel, bias, stride, padding, dilation, groups) + alpha * residual)


def fold_on_cpu(monkeypatch, dtype, can_fold=lambda: True):
    """Fold norms on the CPU, with maps of this dtype; returns a list that grows by the name of each call."""
    called = []

    def watch(name, function):
        def call(*args):
            called.append(name)
            return function(*args)

        return call

    def fold(layer, shift=None, **_):
        return define_folding(layer, shift, dtype, dtype)

    monkeypatch.setattr(torch, "cudnn_convolution_relu", watch("relu", convolve_relu))
    monkeypatch.setattr(torch, "cudnn_convolution_add_relu", watch("add", convolve_add_relu))
    monkeypatch.setattr(torch, "_addmm_activation", watch("product", torch._addmm_activation))
    monkeypatch.setattr(folded, "fold_norm", fold)
    monkeypatch.setattr(folded, "call_operator", lambda _, x: define_windows(x).to(dtype))
    for module in (resnet, densenet):
        monkeypatch.setattr(module, "can_fold", lambda _, *layers: can_fold() and not layers[0][1].training)
    monkeypatch.setattr(resnet, "can_fold_stem", lambda layer, _: can_fold() and not layer[1].training)
    return called
