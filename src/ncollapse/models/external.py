"""Networks of timm and torchvision, their classifier taken off and ours put on."""

from __future__ import annotations

from importlib import import_module

import torch
from torch import nn

from ncollapse.models.network import FeatureKind

HOMES = ("fc", "classifier", "head", "heads")


def build_external(
    name: str, *, in_channels: int, image_size: int, feature_dim: int | None
) -> tuple[nn.Module, int, FeatureKind]:
    """The trunk of "timm:NAME" or "torchvision:NAME", without pretrained weights."""
    library, _, model = name.partition(":")
    if feature_dim is not None:
        raise ValueError(f"feature_dim cannot change {name}; ask for feature_dim_linear")
    try:
        if library == "timm":
            module = import_module("timm").create_model(model, pretrained=False, in_chans=in_channels)
        else:
            module = import_module("torchvision.models").get_model(model, weights=None)
    except ImportError as error:
        raise ImportError(f"{name} needs {library}: pip install 'ncollapse[vision]'") from error
    return take_trunk(module, in_channels, image_size)


def take_trunk(module: nn.Module, in_channels: int, image_size: int) -> tuple[nn.Module, int, FeatureKind]:
    """Replace a network's last linear layer by the identity, so that its output is the feature vector.

    The layer is what `get_classifier()` returns (timm), or the last linear layer of fc, classifier, head or heads
    (torchvision). Features count as "relu" if none is negative on a probe.
    """
    where, linear = _find_classifier(module)
    parent, _, leaf = where.rpartition(".")
    setattr(module.get_submodule(parent), leaf, nn.Identity())
    probe = torch.linspace(-2, 2, 2 * in_channels * image_size**2).reshape(2, in_channels, image_size, image_size)
    training = module.training
    with torch.no_grad():
        features = module.eval()(probe)
    module.train(training)
    if features.shape != (2, linear.in_features):
        raise ValueError(
            f"{type(module).__name__} without {where} gives {list(features.shape)}, not [2, {linear.in_features}]"
        )
    return module, linear.in_features, "relu" if bool((features >= 0).all()) else "free"


def _find_classifier(module: nn.Module) -> tuple[str, nn.Linear]:
    modules = dict(module.named_modules())
    if callable(getattr(module, "get_classifier", None)):
        found = module.get_classifier()  # type: ignore[operator]
        for name, candidate in modules.items():
            if candidate is found and isinstance(candidate, nn.Linear):
                return name, candidate
    inside = [
        (name, candidate)
        for name, candidate in modules.items()
        if isinstance(candidate, nn.Linear) and name.split(".")[0] in HOMES
    ]
    if not inside:
        raise ValueError(f"{type(module).__name__} has no linear classifier in any of {', '.join(HOMES)}")
    return inside[-1]
