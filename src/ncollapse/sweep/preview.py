"""What some runs are going to do: their recipe, their data, how long they take and how much they write."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ncollapse.grammar import UNEXPLAINED, count, describe_error
from ncollapse.runs.checkpoint import KEPT
from ncollapse.runs.record import read_run
from ncollapse.sweep.spawn import count_threads
from ncollapse.train.theory import BALANCED_UP_TO

if TYPE_CHECKING:
    from ncollapse.data import Samples
    from ncollapse.train import Recipe
    from ncollapse.train.setup import Training

TUNING = Path("tuning", "runs")
"""Where the runs of a tuning are, below a comparison's own."""
TIMED_STEPS, TIMED_SAMPLES = 4, 2048
COLLAPSE_RECIPE = "bce-vs-ce/setting-2"
SNAPSHOT_FEATURES = 100
"""Features a class and split that a finished run keeps for its figures."""


@dataclass(frozen=True)
class Preview:
    """The recipe and the data in words, the runs, and an estimate of their cost."""

    recipe: str
    settings: str
    data: str
    runs: int
    finished: int
    class_counts: dict[str, int]
    seconds: float | None
    """All unfinished runs, one at a time; None where nothing could be timed."""
    disk_bytes: int | None
    """What the finished runs take, and the checkpoints of one run; None where nothing could be timed."""
    untimed: str | None = None
    """Why nothing could be timed, where something went wrong."""

    def lines(self) -> list[str]:
        """Return the preview as plain lines."""
        cost = [f"runs: {self.runs}, {self.finished} finished"]
        if self.seconds is not None and self.runs > self.finished:
            cost.append(f"about {format_seconds(self.seconds)}, one run at a time")
        if self.disk_bytes is not None and self.runs > self.finished:
            cost.append(f"about {format_bytes(self.disk_bytes)} on disk")
        if self.untimed is not None:
            cost.append(f"time and disk could not be estimated ({self.untimed})")
        return [f"recipe: {self.recipe}", f"  {self.settings}", f"data: {self.data}", "; ".join(cost)]


def preview(
    recipes: Sequence[Recipe],
    out: str | Path,
    *,
    tuning: Sequence[Recipe] = (),
    data_root: str | Path | None = None,
    device: str | None = None,
    timed: bool = True,
) -> Preview:
    """Read the data of the runs, time a few training steps and describe what is about to happen.

    Wrong files and networks that cannot be built raise here, once, before any run starts; a device that fails (it may
    be out of memory) leaves the cost unknown. Nothing is read where every run is finished, and nothing is timed unless
    `timed`. `tuning` are the runs that come first, below OUT/tuning/runs.
    """
    from ncollapse.data.loader_factory import check_form
    from ncollapse.train.build import load_splits

    out = Path(out)
    planned = [(recipe, out) for recipe in recipes] + [(recipe, out / TUNING) for recipe in tuning]
    waiting = [recipe for recipe, home in planned if read_run(home / recipe.run_id).status != "finished"]
    read: dict[str, tuple[dict[str, Samples], float]] = {}
    for recipe in waiting:
        if _data_key(recipe) not in read:
            started = perf_counter()
            splits = load_splits(recipe, data_root)
            for part in splits.values():
                check_form(part, recipe.data.image_size, recipe.data.channels)
            read[_data_key(recipe)] = splits, perf_counter() - started
    costs: dict[str, Cost] = {}
    untimed = None
    try:
        for recipe in waiting if timed else ():
            if _cost_key(recipe) not in costs:
                with using_threads(count_threads(len(waiting))):
                    costs[_cost_key(recipe)] = time_run(recipe, read[_data_key(recipe)][0], device)
    except (RuntimeError, *UNEXPLAINED) as error:  # a mistake in a loss of the user's own fails its runs alone
        untimed = describe_error(error).splitlines()[0]
    seconds = disk = None
    if timed and untimed is None:
        each = [(costs[_cost_key(recipe)], read[_data_key(recipe)][1]) for recipe in waiting]
        seconds = sum(cost.seconds + reading for cost, reading in each)
        disk = sum(cost.kept_bytes for cost, _ in each)
        disk += max((cost.checkpoint_bytes for cost in costs.values()), default=0)
    first = recipes[0]
    splits = next((found for found, _ in read.values()), {})
    counts = dict(zip(splits["train"].classes, splits["train"].counts())) if splits else {}
    return Preview(
        name_recipe(first),
        describe_settings(first),
        describe_data(first, splits),
        len(planned),
        len(planned) - len(waiting),
        counts,
        seconds,
        disk,
        untimed,
    )


@dataclass(frozen=True)
class Cost:
    """The estimated cost of one run."""

    seconds: float
    kept_bytes: int
    checkpoint_bytes: int


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Have torch compute with this many threads, as the worker processes of the runs will."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(min(count, before))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def time_run(recipe: Recipe, splits: dict[str, Samples], device: str | None) -> Cost:
    """Estimate a run from a few steps on some of the samples, after one that is not counted."""
    from ncollapse.runs.folder import RunFolder
    from ncollapse.train.backend import own_stream, switches
    from ncollapse.train.distributed import World, find_device
    from ncollapse.train.setup import prepare

    batch = recipe.optim.batch_size
    few = {name: _take(part, max(TIMED_SAMPLES, (TIMED_STEPS + 1) * batch)) for name, part in splits.items()}
    world = World(0, 1, find_device(device))
    # a rate at which nothing diverges, and a start that needs no sample of every class
    calm = recipe.override(optim__lr=1e-6, model__bias_init=0.0)
    switched = switches(world.device, recipe.precision, deterministic=False)
    with TemporaryDirectory() as folder, warnings.catch_warnings(), switched, own_stream(world.device):
        warnings.simplefilter("ignore")  # the few samples may leave a class empty
        training = prepare(calm, RunFolder(Path(folder)), world, None, False, None, few)
        try:
            step, sample = time_training(training)
        except ValueError as error:  # a mistake in a loss: each run says it of itself
            raise RuntimeError(str(error)) from error
    samples = sum(len(part) for part in splits.values())
    steps = -(-len(splits["train"]) // batch)
    measured = -(-recipe.optim.epochs // recipe.measure_every) + (recipe.measure_every > 1)
    seconds = recipe.optim.epochs * steps * step + (measured + 1) * samples * sample
    return Cost(seconds, *_count_bytes(training, splits))


def time_training(training: Training) -> tuple[float, float]:
    """The seconds of a step, and of measuring a sample."""
    from ncollapse.train.evaluate import measure_split

    begun, steps = 0.0, 0
    for x, y in islice(training.loaders.train.epoch(1), TIMED_STEPS + 1):
        training.step(x, y, len(y))
        if not math.isfinite(float(training.tally.sum)):  # a GPU is behind until it is asked for a number
            raise RuntimeError("the loss of the first steps is not finite")
        steps += 1
        if steps == 1:
            begun = perf_counter()
    step = (perf_counter() - begun) / max(steps - 1, 1) if steps > 1 else 0.0
    begun = perf_counter()
    features, labels = training.extract(training.loaders.measured["train"])
    measure_split(features, labels, training.model.head, None)
    return step, (perf_counter() - begun) / max(len(labels), 1)


def _count_bytes(training: Training, splits: dict[str, Samples]) -> tuple[int, int]:
    """The bytes of a finished run, and of the checkpoints while it trains."""
    from ncollapse.train.state import tensors_of

    weights = _size(training.model.state_dict())
    features = sum(min(len(part), SNAPSHOT_FEATURES * part.num_classes) for part in splits.values())
    snapshot = 4 * training.model.num_features * (features + 4 * training.loaders.num_classes)
    state = _size(tensors_of(training.model, training.optimiser))
    return 2 * weights + snapshot, KEPT * (state + weights)


def _size(tensors: dict[str, Any]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _take(part: Samples, most: int) -> Samples:
    """Some of the samples, spread over the whole."""
    import torch

    if len(part) <= most:
        return part
    return part.select(torch.linspace(0, len(part) - 1, most).long())


def _data_key(recipe: Recipe) -> str:
    return json.dumps(asdict(recipe.data))


def _cost_key(recipe: Recipe) -> str:
    """What runs share if they cost the same: everything but loss and seed."""
    content = recipe.to_dict()
    return json.dumps({key: value for key, value in content.items() if key not in ("loss", "seed")}, sort_keys=True)


def name_recipe(recipe: Recipe) -> str:
    """Return the name of a recipe; where it was built to study collapse, also that of the usual one."""
    if recipe.name == COLLAPSE_RECIPE and not recipe.augment.spatial:
        other = "bce-vs-ce/setting-4"
        return f"{recipe.name} (built to study collapse; --recipe {other} augments and decays weights as usual)"
    return recipe.name


def describe_settings(recipe: Recipe) -> str:
    """Return the settings of a recipe that matter most, in a line.

    >>> from ncollapse.train import recipes
    >>> describe_settings(recipes.get("bce-vs-ce/setting-4"))
    'resnet18 from scratch; adamw, lr 0.001, batch 128, 100 epochs, cosine schedule, weight decay 0.05; crop 4, flip; \
bf16'
    """
    optim, decays = recipe.optim, recipe.decays
    start = f"from {recipe.model.weights}" if recipe.model.weights else "from scratch"
    if ":" in recipe.model.name and not recipe.model.name.startswith(("timm:", "torchvision:")):
        start = "as its factory makes it"
    training = [optim.name, f"lr {optim.lr:g}", f"batch {optim.batch_size}", count(optim.epochs, "epoch")]
    training += [] if recipe.schedule.name == "constant" else [f"{recipe.schedule.name} schedule"]
    training += [f"weight decay {optim.weight_decay:g}"] if optim.weight_decay else []
    parts = [f"{recipe.model.name} {start}", ", ".join(training)]
    named = {"W": decays.weight, "features": decays.feature, "b": decays.bias}
    if any(named.values()):
        parts.append("decays in the loss: " + ", ".join(f"{name} {value:g}" for name, value in named.items() if value))
        weak = decays.weak_epochs
        parts[-1] += f", times {decays.weak_share:g} in the first {count(weak, 'epoch')}" if weak else ""
    parts += [describe_augment(recipe), recipe.precision]
    return "; ".join(parts)


def describe_augment(recipe: Recipe) -> str:
    """Return the augmentation in words."""
    plain = type(recipe.augment)()
    values = {key: value for key, value in asdict(recipe.augment).items() if value != getattr(plain, key)}
    words = [key if value is True else f"{key} {value:g}" for key, value in values.items()]
    return ", ".join(words).replace("_", " ") or "no augmentation"


def describe_data(recipe: Recipe, splits: dict[str, Samples]) -> str:
    """Return the data set, its size, how its pixels are normalised, and its imbalance where there is one."""
    from ncollapse.data.normalisation import choose_normalisation

    name = recipe.data.name
    if not splits:
        return name
    train, test = splits["train"], splits["test"]
    parts = [f"{len(train)} training and {len(test)} test samples of {train.num_classes} classes"]
    if getattr(test, "record", ()) and name.startswith(("folder:", "npz:")):
        parts.append("a fifth of each class is held out for testing")
    parts.append(choose_normalisation(recipe.data.normalise, name).of(train).describe())
    counts = [number for number in train.counts() if number]
    if max(counts) > BALANCED_UP_TO * min(counts):
        parts.append(f"imbalanced: {max(counts)} to {min(counts)} training samples a class")
    return f"{name}: " + "; ".join(parts)


def format_seconds(seconds: float) -> str:
    """Return a duration in the unit that suits it.

    >>> format_seconds(42), format_seconds(600), format_seconds(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def format_bytes(size: int) -> str:
    """Return a number of bytes in the unit that suits it.

    >>> format_bytes(300), format_bytes(5_000_000), format_bytes(3 * 10**9)
    ('1 kB', '5 MB', '3.0 GB')
    """
    if size < 10**6:
        return f"{max(1, round(size / 1e3))} kB"
    return f"{size / 1e6:.0f} MB" if size < 10**9 else f"{size / 1e9:.1f} GB"
