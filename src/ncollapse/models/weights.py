"""Pretrained weights from a file, ours or torchvision's; nothing in it is executed."""

from __future__ import annotations

import json
import os
import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ncollapse.models.network import Network

WRAPPERS = ("module", "_orig_mod")
KEYS = ("state_dict", "model_state_dict", "model", "net")
CLASSIFIERS = ("fc.", "classifier.", "heads.head.", "head.fc.", "head.")


def load_weights(network: Network, path: str | os.PathLike[str]) -> None:
    """Fill a network from a file of its own names, or of torchvision's or timm's, whose z = W h + b has b = -bias.

    A classifier for another number of classes, or for a fixed one, is left out; all else must fit.
    """
    own = tensors_of(network)
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


def tensors_of(network: nn.Module) -> dict[str, Tensor]:
    """A network's state dict without the `_extra_state` of its modules, which can be anything."""
    return {name: value for name, value in network.state_dict().items() if not is_extra(name)}


def is_extra(name: str) -> bool:
    """Whether a name of a state dict is what a module's `get_extra_state` returned."""
    return name.rpartition(".")[2] == "_extra_state"


def read_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Names and tensors of a safetensors file, or of a torch file read with weights_only=True.

    A file cut into shards is read by its index (`*.index.json`), or by the folder that holds one. A warning names
    entries of `_extra_state`, which are left out.
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
            return _leave_extra(load_file(path), path)
        except SafetensorError as error:
            raise ValueError(f"{path} is not a readable safetensors file ({error})") from error
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, LookupError, ValueError, TypeError) as error:
        raise ValueError(
            f"{path} holds more than tensors, or is no file of torch's; nothing in it is executed. Save the state_dict "
            "alone, best as safetensors"
        ) from error
    for _ in KEYS:
        if isinstance(found, Mapping):
            found = next((found[key] for key in KEYS if isinstance(found.get(key), Mapping)), found)
    state = _leave_extra(found, path) if isinstance(found, Mapping) else {"": found}
    if not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"{path} holds no dictionary of tensors (nor one under {', '.join(map(repr, KEYS))})")
    return state


def _leave_extra(state: Mapping[Any, Any], path: Path) -> dict[str, Any]:
    kept = {str(name): value for name, value in state.items() if not is_extra(str(name))}
    if len(kept) < len(state):
        names = [str(name) for name in state if is_extra(str(name))]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        warnings.warn(f"weights: {path} holds {', '.join(names[:3])}{more}, which is not loaded", stacklevel=3)
    return kept


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


def strip_wrappers(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by their names without the parts that DistributedDataParallel and torch.compile add, at any depth.

    A part of that name stays where the network's `own` names have it.
    """
    prefix = find_prefix(state, own)
    inside = {name.removeprefix(prefix): state[name] for name in state if name.startswith(prefix)}
    state = {**{name: state[name] for name in state if not name.startswith(prefix)}, **inside}
    known = {strip(name): name for name in own}
    wrapped = {known.get(strip(name), strip(name)): state[name] for name in state if name not in own}
    return {**wrapped, **{name: state[name] for name in state if name in own}}


def find_prefix(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str:
    """What stands before every one of a network's own names in a file; nothing where it is not one thing."""
    needed = [name for name in own if not name.endswith("num_batches_tracked")]
    ends = [name.removesuffix(needed[0]) for name in state if f".{name}".endswith(f".{needed[0]}")] if needed else []
    prefixes = [end for end in ends if all(end + name in state for name in needed)]
    return prefixes[0] if len(prefixes) == 1 else ""


def strip(name: str) -> str:
    """A name without the parts of wrappers.

    >>> strip("module.net._orig_mod.weight")
    'net.weight'
    """
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def rename(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file of our names, or of torchvision's or timm's, by our names."""
    plain = strip_wrappers(state, own)
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
