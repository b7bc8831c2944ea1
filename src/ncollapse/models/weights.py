"""Pretrained weights from a file, ours or torchvision's; nothing in it is executed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ncollapse.models.network import Network

WRAPPERS = ("module.", "_orig_mod.")
CLASSIFIERS = ("fc.", "classifier.", "heads.head.", "head.fc.", "head.")


def load_weights(network: Network, path: str | os.PathLike[str]) -> None:
    """Fill a network from a file of its own names, or of torchvision's or timm's, whose z = W h + b has b = -bias.

    A classifier for another number of classes, or for a fixed one, is left out; all else must fit.
    """
    own = network.state_dict()
    state = _rename(read_weights(path), own)
    weight = state.get("head.weight")
    if weight is not None and ("head.weight" not in own or len(weight) != network.num_classes):
        state = {name: value for name, value in state.items() if not name.startswith("head.")}
    missing = [name for name in own if name not in state and not name.startswith("head.")]
    problems = {
        "lacks": [name for name in missing if not name.endswith("num_batches_tracked")],
        "has unknown": [name for name in state if name not in own],
        "has other shapes for": [name for name in state if name in own and own[name].shape != state[name].shape],
    }
    for what, names in problems.items():
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise ValueError(f"the weights {path} do not fit the network: the file {what} {', '.join(names[:3])}{more}")
    network.load_state_dict(state, strict=False)


def read_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Names and tensors of a safetensors file, or of a torch file read with weights_only=True."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file of weights at {path}")
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return dict(load_file(path))
    found = torch.load(path, map_location="cpu", weights_only=True)
    for key in ("state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ValueError(f"{path} holds no dictionary of tensors (nor one under 'state_dict' or 'model')")
    return {str(name): value for name, value in found.items()}


def _rename(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    plain = {}
    for full, value in state.items():
        name = full
        while name.startswith(WRAPPERS):
            name = name.split(".", 1)[1]
        plain[name] = value
    if any(name.startswith("trunk.") for name in plain):
        return plain
    renamed = {}
    for name, value in plain.items():
        if name.startswith(CLASSIFIERS):
            part = name.rsplit(".", 1)[1]
            if part == "weight" or "head.bias" in own:
                renamed[f"head.{part}"] = -value if part == "bias" else value
        else:
            # torchvision's first DenseNet files write norm.1 where the module is norm1
            modern = re.sub(r"\.(norm|conv)\.(\d)\.", r".\1\2.", name)
            kept = f"trunk.{modern}"
            renamed[kept if kept in own else f"trunk.{modern.removeprefix('features.')}"] = value
    return renamed
