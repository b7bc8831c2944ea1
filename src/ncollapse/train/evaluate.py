"""The features of whole splits, in eval mode and without augmentation, and what they measure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from ncollapse.heads import Head
from ncollapse.metrics import Measurement, collect, measure
from ncollapse.metrics.by_class import describe_classes
from ncollapse.metrics.scores import Spread
from ncollapse.models import Network, folded
from ncollapse.theory import Problem
from ncollapse.train.capture import Captured
from ncollapse.train.distributed import World
from ncollapse.train.objective import autocast
from ncollapse.train.verify_folding import FOLDED

if TYPE_CHECKING:
    from ncollapse.train.build import Loaders

EVAL_BATCH = 2048
TRIED = 10
"""Kernels of a convolution that are tried for the fastest: all of them, on such batches, take seconds."""


class Batches(Protocol):
    """Batches (x, y) that can be gone through again and again."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]: ...


class Extractor:
    """model.features over a split: [N, d] in float32 on the device, with the labels; captured in a graph on a GPU."""

    def __init__(self, model: Network, precision: str, world: World, *, pool: Any = None, compile: bool = False):
        self.model, self.precision, self.world, self.pool = model, precision, world, pool
        self.features: Callable[[Tensor], Tensor] = torch.compile(model.features) if compile else model.features
        self.graphs: dict[torch.Size, Captured] = {}

    @torch.no_grad()
    def __call__(self, batches: Batches) -> tuple[Tensor, Tensor]:
        training = self.model.training
        self.model.eval()
        features = [torch.zeros(0, self.model.num_features, device=self.world.device)]
        labels = [torch.zeros(0, dtype=torch.int64, device=self.world.device)]
        for x, y in batches:
            features.append(self.extract(x))
            labels.append(y)
        self.model.train(training)
        return self.world.gather(_join(features)), self.world.gather(_join(labels))

    def extract(self, x: Tensor) -> Tensor:
        """The features of one batch; a smaller one uses the graph of a larger one that was captured before."""
        if self.pool is None:
            return self._work(x)
        fitting = [size for size in self.graphs if size[1:] == x.shape[1:] and size[0] >= len(x)]
        if not fitting:
            self.graphs[x.shape] = self.capture(x)
        graph = self.graphs[min(fitting, default=x.shape)]
        return graph(x)[: len(x)].clone()  # type: ignore[no-any-return]

    def capture(self, x: Tensor) -> Captured:
        """A graph for batches of this shape; without folded norms if cuDNN has no kernels for them."""
        kernels = ("features", *(p.shape for p in self.model.parameters()))
        try:
            return Captured(self._work, (x.clone(),), self.pool, kernels=(*kernels, folded.FOLDS), search=TRIED)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if not (folded.FOLDS and isinstance(self.model.trunk, FOLDED)):
                raise
            folded.stop_folding(f"batches {list(x.shape)}", error)
            return self.capture(x)

    def _work(self, x: Tensor) -> Tensor:
        with autocast(x.device, self.precision):
            features = self.features(x)
        return features.float()


def _join(parts: list[Tensor]) -> Tensor:
    """The rows of all parts, the first of which is empty. On a CPU a single part is not copied: nothing changes it."""
    return parts[1] if len(parts) == 2 and parts[1].is_cpu else torch.cat(parts)


def split_evenly(samples: int) -> int:
    """A batch size near `EVAL_BATCH` that leaves the last batch no smaller than it must be."""
    return -(-samples // -(-samples // EVAL_BATCH))


def without_soft(problem: Problem | None) -> Problem | None:
    """The problem, unless its targets are mixed: the fields that need decays are defined for labels alone."""
    return None if problem is None or problem.soft else problem


def measure_split(features: Tensor, labels: Tensor, head: Any, problem: Problem | None) -> Measurement:
    """`measure` with the model's own head."""
    return measure(features, labels, head=Head.of(head), problem=without_soft(problem))


@torch.no_grad()
def find_correct(features: Tensor, labels: Tensor, head: Any) -> Tensor:
    """Which samples the head classifies correctly."""
    return head(features).argmax(1) == labels  # type: ignore[no-any-return]


def measure_correct(features: Tensor, labels: Tensor, head: Any) -> dict[str, Any]:
    """Compactness and distinctiveness of the correctly classified samples alone, as bce-vs-ce's Table 2 seems to print.

    None where a class has no such sample.
    """
    right = find_correct(features, labels, head)
    counts = torch.bincount(labels[right], minlength=Head.of(head).num_classes)
    found: dict[str, Any] = {"num_samples": int(counts.sum()), "compactness": None, "distinctiveness": None}
    if bool((counts > 0).all()):
        measured = measure(features[right], labels[right])
        found |= {"compactness": measured.compactness, "distinctiveness": measured.distinctiveness}
    return found


@torch.no_grad()
def measure_classes(features: Tensor, labels: Tensor, head: Any, loaders: Loaders) -> dict[str, Any]:
    """Every class's name, number of training samples, accuracy, precision and F1, and their means over classes."""
    found = describe_classes(head(features).argmax(1), labels, loaders.num_classes)
    return {"names": list(loaders.classes), "train_counts": list(loaders.counts), **found}


def shorten(measurement: Measurement) -> dict[str, Any]:
    """A measurement as plain values, without the values by class: one line of history stays one line.

    Like `measurement.to_dict`, but what is left out is not copied before.
    """
    values = ((item.name, getattr(measurement, item.name)) for item in fields(measurement))
    kept = ((name, value) for name, value in values if not isinstance(value, (list, tuple)))
    return {name: to_plain(value) if isinstance(value, Spread) else value for name, value in kept}


def to_plain(spread: Spread) -> dict[str, float]:
    """A spread as a dictionary."""
    return {item.name: getattr(spread, item.name) for item in fields(spread)}


def describe_split(
    split: str, features: Tensor, labels: Tensor, head: Any, problem: Problem | None, **options: Any
) -> tuple[Measurement, dict[str, Tensor]]:
    """The full measurement of a split, and what the figures need of it as named tensors.

    The tensors are `weight` and `bias`, the rest as `split.name`. `options` go to `collect`: how many features and bins
    to keep, and whether to measure the numerical rank.
    """
    snapshot = collect(features, labels, head=Head.of(head), problem=without_soft(problem), **options)
    tensors = snapshot.tensors()
    found = {name if name in ("weight", "bias") else f"{split}.{name}": tensor for name, tensor in tensors.items()}
    if Head.of(head).bias is None:
        found.pop("bias", None)
    return snapshot.measurement, found
