"""Compare evaluation with folded batch norms (`models.folded`) with torch's own kernels before a run relies on it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ncollapse.models import Network, folded, norm
from ncollapse.models.densenet import DenseNet
from ncollapse.models.resnet import ResNet
from ncollapse.train.objective import autocast
from ncollapse.train.verify import (
    LARGER,
    SAMPLES,
    SLACK,
    describe_errors,
    exact_convolutions,
    measure_distances,
    name_fault,
    verify,
)

FOLDED = (ResNet, DenseNet)
"""The networks that have norms behind convolutions."""


def verify_folding(name: str, model: Network, x: Tensor, precision: str) -> None:
    """Fold no norms if that fails or disagrees on the first samples `x`; once per network and device."""
    if folded.FOLDS and precision == "bf16" and isinstance(model.trunk, FOLDED):
        facts = "folded", name, tuple(x.shape[1:])
        find = lambda: find_folding_fault(model, x[:SAMPLES].float())  # noqa: E731
        verify(f"model.name = {name!r}", facts, x.device, find, stop=folded.stop_folding)


def find_folding_fault(model: Network, x: Tensor) -> str | None:
    """What is wrong with folded norms on these samples; None where nothing is."""
    return describe_errors(lambda: compare_evaluations(model, x))


@torch.no_grad()
def compare_evaluations(model: Network, x: Tensor) -> str | None:
    """Features in eval mode with folded norms and with torch's own kernels, against float32."""
    with exact_convolutions():
        twin = randomise_norms(model, x)
        with norm.without_kernels():
            exact = twin.features(x)
            with autocast(x.device, "bf16"):
                plain = twin.features(x).float()
        with norm.fusing(), autocast(x.device, "bf16"), SoiledOutputs():
            found = twin.features(x).float()
    limits = [LARGER * distance + SLACK for distance in measure_distances([plain], [exact])]
    return name_fault([found], [exact], limits)


def randomise_norms(model: Network, x: Tensor) -> Network:
    """A copy in eval mode with the running statistics of these samples, and norms whose weights are not all alike."""
    twin = copy.deepcopy(model).train()
    generator = torch.Generator().manual_seed(0)
    for module in twin.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
            module.weight.copy_(torch.empty(module.num_features).uniform_(0.5, 1.5, generator=generator))
            module.bias.copy_(torch.empty(module.num_features).normal_(0.0, 0.2, generator=generator))
    with norm.without_kernels():
        twin.features(x)
    return twin.eval()


class SoiledOutputs(TorchFunctionMode):
    """Make torch's fused convolutions write their outputs over NaN.

    `torch.cudnn_convolution_relu` gives cuDNN its new output as a residual with the factor 0, which must not be read:
    0 times NaN is NaN.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.cudnn_convolution_relu:
            x, kernel, _, stride, padding = args[:5]
            shape = torch.conv2d(x.to("meta"), kernel.to("meta"), None, stride, padding).shape
            torch.full(shape, float("nan"), dtype=x.dtype, device=x.device)  # its memory is the next to be used
        return function(*args, **(kwargs or {}))
