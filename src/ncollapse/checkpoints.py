"""Measure a checkpoint: a network by name, a file of weights, a data set by name."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ncollapse import data
from ncollapse.data import EvalLoader, FolderEvalLoader, Samples
from ncollapse.data.normalisation import Normalisation, choose_normalisation
from ncollapse.features import run_model
from ncollapse.features.spool import FeatureSpool
from ncollapse.metrics import Measurement, measure
from ncollapse.models import Network, create
from ncollapse.models.factory import call_factory
from ncollapse.models.weights import read_weights, rename, strip_wrappers, tensors_of
from ncollapse.plugins import LIBRARIES

NAMED = 5


class Checkpoint(NamedTuple):
    """A measurement, the names in the file of weights that the network lacks, and how pixels were normalised."""

    measurement: Measurement
    unexpected: tuple[str, ...]
    normalisation: Normalisation


def measure_checkpoint(
    model: str,
    weights: str | os.PathLike[str],
    dataset: str,
    root: str | os.PathLike[str] | None = None,
    split: str | None = None,
    *,
    layer: str | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    normalise: str = "auto",
    device: str | torch.device | None = None,
) -> Checkpoint:
    """Measure a network with these weights on a data set, without augmentation.

    model: "package.module:factory" (called with num_classes if it takes that or any keyword), "timm:NAME",
    "torchvision:NAME" or one of `ncollapse.models.NAMES`. weights: safetensors, a state dict of torch's, or the index
    of their shards. split: "train" or "test"; by default the training set, or all samples of data without a test set.
    normalise: see `ncollapse.data.normalisation.choose_normalisation`; it has to be what the network
    was trained with.
    """
    samples = read_samples(dataset, root, split)
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))

    def read(chosen: Normalisation | None) -> EvalLoader | FolderEvalLoader:
        pixels = None if chosen is None else (chosen.mean, chosen.std)
        return data.eval_loader(samples, 512, normalise=pixels, image_size=image_size, channels=channels, device=place)

    chosen = None if normalise == "model" else choose_normalisation(normalise, dataset)
    batches = read(chosen)
    network = build(model, samples.num_classes, batches.shape)
    if chosen is None:
        chosen = choose_normalisation(normalise, dataset, network)
        batches = read(chosen)
    unexpected = fill(network, weights)
    spool = FeatureSpool(place)
    try:
        head, _ = run_model(network.to(place), batches, spool.take, layer=layer)
    except Exception as error:
        if isinstance(error, torch.OutOfMemoryError) or not in_forward(error):
            raise
        raise ValueError(
            f"model: {model} cannot be run on inputs of {dataset}, of shape {list(batches.shape)}: "
            f"{type(error).__name__}: {error}"
        ) from error
    with spool:
        return Checkpoint(measure(spool, head=head), unexpected, chosen.of(samples))


def read_samples(dataset: str, root: str | os.PathLike[str] | None, split: str | None) -> Samples:
    """A part of a data set; if it has no test set, the parts are those that training makes of it."""
    if split not in ("train", "test"):
        return data.load(dataset, root, split or "train")
    try:
        test = data.load(dataset, root, "test")
    except data.MissingSplit:
        whole: Any = data.load(dataset, root, "train")
        parts: tuple[Samples, Samples] = data.hold_out_test(whole, dataset)
        return parts[split == "test"]
    return test if split == "test" else data.load(dataset, root, "train")


def in_forward(error: Exception) -> bool:
    """Whether an error came out of a module's forward pass: not out of the data, nor out of our own checks."""
    call = nn.Module._call_impl.__code__
    return any(frame.f_code is call for frame, _ in traceback.walk_tb(error.__traceback__))


def build(model: str, num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    """The network of a name, for inputs of a shape; the working folder's modules can be imported."""
    if ":" in model and model.partition(":")[0] not in LIBRARIES:
        return call_factory(model, num_classes)
    return create(model, num_classes, in_channels=shape[0], image_size=shape[1:] or 1)


def fill(network: nn.Module, path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Load weights of exactly this network and return the names in the file that it does not have.

    What DistributedDataParallel, torch.compile or one outer module add to the names is taken off; of tensors that share
    their memory one is enough. A ValueError lists weights that are missing or have another shape: a network partly at
    random is not worth measuring.
    """
    own = tensors_of(network)
    state = read_weights(path)
    state = rename(state, own) if isinstance(network, Network) else strip_outer(strip_wrappers(state, own), own)
    filled = {place_of(own[name]) for name in own if name in state}
    absent = [name for name in own if name not in state and place_of(own[name]) not in filled]
    missing = [name for name in absent if not name.endswith("num_batches_tracked")]
    unexpected = tuple(name for name in state if name not in own)
    shapes = [
        f"{name} {list(state[name].shape)} instead of {list(own[name].shape)}"
        for name in own
        if name in state and state[name].shape != own[name].shape
    ]
    problems = {"missing": missing, "unexpected": unexpected, "of other shapes": shapes}
    if missing or shapes:
        found = "; ".join(f"{len(names)} {what}: {shorten(names)}" for what, names in problems.items() if names)
        raise ValueError(f"weights: {path} does not fit {type(network).__name__}: {found}")
    network.load_state_dict({name: value for name, value in state.items() if name in own}, strict=False)
    return unexpected


def strip_outer(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names without the module around the network (Lightning's "model.", say), where that is what keeps them apart."""
    outer = {name.partition(".")[0] for name in state if name not in own and name.partition(".")[2] in own}
    if len(outer) != 1 or any(name in own for name in state):
        return dict(state)
    prefix = f"{outer.pop()}."
    return {name.removeprefix(prefix): value for name, value in state.items()}


def place_of(tensor: Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    """Where a tensor lies in memory, and how: the same for tied weights."""
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def shorten(names: Sequence[str]) -> str:
    """The first few names and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
