"""Build what a recipe describes: the splits of its data, the loaders and the network."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ncollapse import data
from ncollapse.data.catalogue import Samples, list_files
from ncollapse.data.normalisation import choose_normalisation
from ncollapse.models import Network, create
from ncollapse.plugins import is_plugin
from ncollapse.theory import Problem
from ncollapse.train.distributed import World
from ncollapse.train.evaluate import Batches, split_evenly
from ncollapse.train.recipe import Recipe

_seeding = threading.Lock()


def load_splits(recipe: Recipe, root: str | Path | None) -> dict[str, Samples]:
    """Read the data, hold out the validation share, take the subset and shuffle labels, in this order and seeded.

    If the user's arrays or image folders have no test split, a fifth of each class is held out as one, the same for
    every run.
    """
    spec = recipe.data
    train, splits = load(spec.name, root, "train"), {}
    with suppress(data.MissingSplit):
        splits["test"] = load(spec.name, root, "test")
    if not splits:
        train, splits["test"] = data.hold_out_test(train, spec.name)
    if spec.validation:
        with naming(f"data.validation = {spec.validation:g}"):
            train, splits["validation"] = data.validation_split(train, spec.validation, seed=spec.seed)
    for subset in (data.samples_per_class, data.per_class_counts, data.step_imbalance, data.long_tail):
        wanted = getattr(spec, subset.__name__)
        if wanted is not None:
            with naming(f"data.{subset.__name__} = {wanted}"):
                train = subset(train, wanted, seed=spec.seed if spec.draw == "random" else None)
    if spec.random_labels:
        train = data.random_labels(train, seed=spec.seed)
    return {"train": train, **splits}


@contextmanager
def naming(key: str) -> Iterator[None]:
    """Prefix a ValueError raised in this block with the key of the recipe that caused it."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


def require_data_files(recipe: Recipe, root: str | Path | None) -> None:
    """Raise the error that reading would raise if files of the data set are missing; otherwise read nothing."""
    files = list_files(recipe.data.name, root)
    if not all(file.exists() or Path(str(file).removesuffix(".gz")).exists() for file in files):
        load_splits(recipe, root)


def load(name: str, root: str | Path | None, split: str) -> Any:
    """`data.load` with a loose type, since a subset of either kind of data set has the kind of the whole."""
    return data.load(name, root, split)


@dataclass(frozen=True)
class Loaders:
    """The training batches, and the batches of every split in order for measuring."""

    train: data.DeviceLoader | data.FolderLoader
    measured: Mapping[str, Batches]
    counts: tuple[int, ...]
    num_classes: int
    shape: tuple[int, ...]
    classes: tuple[str, ...] = ()
    """The names of the classes."""


def make_loaders(recipe: Recipe, splits: dict[str, Samples], world: World) -> Loaders:
    """Make the loaders, in the precision and memory layout of the network; samples that fit stay on the device."""
    cuda = world.device.type == "cuda"
    form: dict[str, Any] = {
        "normalise": choose_normalisation(recipe.data.normalise, recipe.data.name)[:2],
        "image_size": recipe.data.image_size,
        "channels": recipe.data.channels,
        "device": world.device,
        "dtype": torch.bfloat16 if cuda and recipe.precision == "bf16" else torch.float32,
        "channels_last": cuda,
        "rank": world.rank,
        "world_size": world.size,
    }
    train = splits["train"]
    counts = train.counts()
    if isinstance(train, data.Dataset):
        splits = {**splits, "train": train.to(world.device)}  # one copy for training and measuring
    loader = data.train_loader(
        splits["train"], recipe.optim.batch_size, augment=recipe.augment, seed=recipe.seed, drop_last=False, **form
    )
    measured = {name: data.eval_loader(part, split_evenly(len(part)), **form) for name, part in splits.items()}
    return Loaders(loader, measured, counts, train.num_classes, loader.shape, train.classes)


def build_model(recipe: Recipe, loaders: Loaders, world: World) -> tuple[Network, Problem | None]:
    """Make the seeded network on its device, and the theory's problem that its training solves, if there is one."""
    spec = recipe.model
    if len(loaders.shape) != 3 and not (spec.name.startswith("mlp") or is_plugin(spec.name)):
        raise ValueError(
            f"model.name = {spec.name!r} takes images, but a sample of data.name = {recipe.data.name!r} has the shape "
            f"{list(loaders.shape)}: use an mlp"
        )
    counts = {"num_classes": loaders.num_classes, "class_counts": loaders.counts}
    channels, *sides = loaders.shape
    theory = naming("model.bias_init = 'theory'") if spec.bias_init == "theory" else nullcontext()
    with theory, _seeding, torch.random.fork_rng(devices=[]):  # the global generator belongs to the whole process
        torch.default_generator.manual_seed(recipe.seed)  # torch.manual_seed would set the GPUs' too, for good
        model = create(
            spec.name,
            loaders.num_classes,
            in_channels=channels,
            image_size=sides or 1,
            feature_dim=spec.feature_dim,
            feature_dim_linear=spec.feature_dim_linear,
            head=spec.head,
            bias=spec.bias,
            bias_init=spec.bias_init,
            problem=recipe.problem(**counts),  # type: ignore[arg-type]
            stem=spec.stem,
            weights=spec.weights,
        )
    if world.device.type == "cuda":
        model.to(world.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if world.size > 1:
            model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    return model, recipe.problem(**counts, features=model.feature_kind, dim=model.num_features)  # type: ignore[arg-type]
