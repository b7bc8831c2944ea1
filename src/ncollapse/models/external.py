"""Networks of timm, torchvision and the user's own: their classifier is replaced by ours."""

from __future__ import annotations

import math
from importlib import import_module

import torch
from torch import nn

from ncollapse.models.factory import call_factory
from ncollapse.models.network import FeatureKind
from ncollapse.plugins import LIBRARIES

HOMES = ("fc", "classifier", "head", "heads")


def build_external(
    name: str, num_classes: int, *, in_channels: int, sides: tuple[int, int], feature_dim: int | None
) -> tuple[nn.Module, int, FeatureKind]:
    """Return the trunk of "timm:NAME" or "torchvision:NAME", not pretrained, or of "package.module:factory"."""
    library, _, model = name.partition(":")
    if feature_dim is not None:
        raise ValueError(f"feature_dim: cannot change {name}; use feature_dim_linear")
    if library not in LIBRARIES:
        return take_trunk(call_factory(name, num_classes), in_channels, sides, num_classes)
    try:
        if library == "timm":
            module = import_module("timm").create_model(model, pretrained=False, in_chans=in_channels)
        else:
            module = import_module("torchvision.models").get_model(model, weights=None)
    except ImportError as error:
        raise ImportError(f"{name} needs {library}: pip install 'ncollapse[vision]'") from error
    return take_trunk(module, in_channels, sides)


def take_trunk(
    module: nn.Module, in_channels: int, sides: tuple[int, int], num_classes: int | None = None
) -> tuple[nn.Module, int, FeatureKind]:
    """Replace a network's last linear layer by the identity, so that its output is the feature vector.

    The layer is what `get_classifier()` returns (timm), the last linear layer of fc, classifier, head or heads
    (torchvision), or else, where `num_classes` is given, the last linear layer with that many outputs. Features count
    as "relu" if none is negative on a probe: two images of these sides, or two vectors if both are 1.
    """
    kind = type(module).__name__
    where, linear = _find_classifier(module, num_classes)
    parent, _, leaf = where.rpartition(".")
    if where:
        setattr(module.get_submodule(parent), leaf, nn.Identity())
    else:  # a linear layer alone: a linear probe of features that are given
        module = nn.Identity()
    shape = (in_channels, *sides) if max(sides) > 1 else (in_channels,)
    probe = torch.linspace(-2, 2, 2 * math.prod(shape)).reshape(2, *shape)
    training = module.training
    try:
        with torch.no_grad():
            features = module.eval()(probe)
    except Exception as error:
        raise ValueError(f"model: {kind} cannot be run on inputs {list(shape)}: {error}") from error
    module.train(training)
    found = list(features.shape) if isinstance(features, torch.Tensor) else type(features).__name__
    if found != [2, linear.in_features]:
        without = f"without {where}" if where else "that is a single linear layer"
        raise ValueError(f"model: {kind} {without}: expected features [2, {linear.in_features}], got {found}")
    return module, linear.in_features, "relu" if bool((features >= 0).all()) else "free"


def _find_classifier(module: nn.Module, num_classes: int | None) -> tuple[str, nn.Linear]:
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
    if not inside and num_classes is not None:
        inside = [
            (name, layer)
            for name, layer in modules.items()
            if isinstance(layer, nn.Linear) and layer.out_features == num_classes
        ]
    if not inside:
        sized = "" if num_classes is None else f", nor one with {num_classes} outputs"
        kind = type(module).__name__
        raise ValueError(f"model: {kind} has no linear classifier in any of {', '.join(HOMES)}{sized}")
    return inside[-1]
