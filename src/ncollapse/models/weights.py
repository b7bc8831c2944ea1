"""Pretrained weights from a file, ours or torchvision's; nothing in it is executed."""

from __future__ import annotations

import json
import os
import pickle
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
    state = rename(read_weights(path), own)
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
    """Names and tensors of a safetensors file, or of a torch file read with weights_only=True.

    A file cut into shards is read by its index (`*.index.json`), or by the folder that holds one.
    """
    path = Path(path)
    if path.is_dir():
        path = _find_index(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file of weights at {path}")
    if path.suffix == ".json":
        shards = [path.parent / Path(name).name for name in _read_index(path)]
        return {name: value for shard in shards for name, value in read_weights(shard).items()}
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return dict(load_file(path))
        except SafetensorError as error:
            raise ValueError(f"{path} is not a readable safetensors file ({error})") from error
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, LookupError, ValueError, TypeError) as error:
        raise ValueError(
            f"{path} holds more than tensors, or is no file of torch's; nothing in it is executed. Save the state_dict "
            "alone, best as safetensors"
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ValueError(f"{path} holds no dictionary of tensors (nor one under 'state_dict' or 'model')")
    return {str(name): value for name, value in found.items()}


def _find_index(folder: Path) -> Path:
    for name in ("model.safetensors", "pytorch_model.bin"):
        for file in (folder / f"{name}.index.json", folder / name):
            if file.is_file():
                return file
    raise FileNotFoundError(f"no weights in {folder}: neither model.safetensors nor pytorch_model.bin, nor their index")


def _read_index(path: Path) -> list[str]:
    try:
        names = json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()
        return sorted({str(name) for name in names})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no index of shards: expected an object with the key weight_map") from error


def strip_wrappers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by their names without the parts that DistributedDataParallel and torch.compile add, at any depth."""
    return {".".join(part for part in name.split(".") if f"{part}." not in WRAPPERS): state[name] for name in state}


def rename(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file of our names, or of torchvision's or timm's, by our names."""
    plain = strip_wrappers(state)
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
