"""`monitor`: watch the collapse of any model while it trains, in a loop of your own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import nn

from ncollapse.features import Extracted, extract, plain_order, split_batch
from ncollapse.metrics import Measurement, measure
from ncollapse.metrics.curves import draw_curves
from ncollapse.metrics.flat import flatten
from ncollapse.theory import Certificate, Prediction, Problem, certify_if_known, predict_if_known

PREDICTED = ("positive_score", "negative_score", "bias", "weight_energy", "feature_energy", "objective")


@dataclass(frozen=True)
class Observation:
    """One measurement of a model in training.

    certificate: how far the last layer is from the global optimum; None without a problem, for a loss that is not
    convex, or where a class that the problem counts was not measured. prediction: that optimum; None without a problem
    or where no closed form is known. seconds: what the measuring took.
    """

    epoch: int
    measurement: Measurement
    certificate: Certificate | None = None
    prediction: Prediction | None = None
    seconds: float = 0.0

    def numbers(self) -> dict[str, float]:
        """All of it by name, for a logger: nc/nc1, nc/positive_score.mean, predicted/positive_score, certified/gap."""
        parts: dict[str, dict[str, Any]] = {"nc": self.measurement.to_dict()}
        if self.prediction is not None:
            parts["predicted"] = {name: getattr(self.prediction, name) for name in PREDICTED}
        if self.certificate is not None:
            parts["certified"] = self.certificate.to_dict()
        return flatten(parts, "/")


@dataclass
class Monitor:
    """See `monitor`."""

    model: nn.Module | Callable[..., Any]
    loader: Any
    every: int = 1
    problem: Problem | None = None
    samples: int | None = None
    seed: int = 0
    layer: str | None = None
    head: Any = None
    split: Callable[[Any], tuple[Any, Any]] = split_batch
    log: Callable[[dict[str, float], int], None] | None = None
    history: list[Observation] = field(default_factory=list)
    epoch: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.every, (int, np.integer)) or self.every < 1:
            raise ValueError(f"every: expected a whole number of at least 1, got {self.every!r}")
        if not isinstance(self.problem, Problem | None):
            raise TypeError(f"problem: expected an ncollapse.Problem, got {type(self.problem).__name__}")
        rank, size = _find_place()
        self.batches = plain_order(self.loader, self.samples, self.seed, rank, size)
        self.prediction = predict_if_known(self.problem)

    def __enter__(self) -> Monitor:
        """Measure the untrained model, so that what does not fit is known before an epoch is spent."""
        self.observe()
        return self

    def step(self) -> Measurement | None:
        """Call it after each epoch; every `every`-th time the model is measured and the measurement returned."""
        self.epoch += 1
        return self.observe().measurement if self.epoch % self.every == 0 else None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.finish()

    def finish(self) -> Observation | None:
        """Measure the last state, if the latest call of `step` did not; leaving the `with` block does this."""
        return self.observe() if not self.history or self.history[-1].epoch != self.epoch else None

    def observe(self) -> Observation:
        """Measure now, and add to `history`."""
        began = time.perf_counter()
        found = self.extract()
        measured = measure(found.features, found.labels, head=found.head, problem=self.problem)
        certificate = certify_if_known(found.features, found.labels, found.head, self.problem)
        seconds = time.perf_counter() - began
        self.history.append(Observation(self.epoch, measured, certificate, self.prediction, seconds))
        if self.log is not None:
            self.log(self.history[-1].numbers(), self.epoch)
        return self.history[-1]

    def extract(self) -> Extracted:
        """What `observe` measures: the features and labels, of all processes, and the classifier."""
        found = extract(self.model, self.batches, layer=self.layer, head=self.head, split=self.split)
        return found if self.batches is self.loader else _gather(found)

    @property
    def last(self) -> Measurement:
        """The latest measurement."""
        if not self.history:
            raise ValueError("nothing measured yet: use the monitor in a `with` block, or call observe()")
        return self.history[-1].measurement

    def plot(self) -> Any:
        """A plotly figure of all numbers over the epochs: .show() opens it, .write_html("nc.html") keeps it."""
        curves = [flatten(seen.measurement.to_dict()) for seen in self.history]
        return draw_curves(curves, [seen.epoch for seen in self.history])


def monitor(
    model: nn.Module | Callable[..., Any],
    loader: Any,
    every: int = 1,
    *,
    problem: Problem | None = None,
    samples: int | None = None,
    seed: int = 0,
    layer: str | None = None,
    head: Any = None,
    split: Callable[[Any], tuple[Any, Any]] = split_batch,
    log: Callable[[dict[str, float], int], None] | None = None,
) -> Monitor:
    """Watch a model while it trains; the training is left exactly as it would be without.

    Args:
        model: any module that ends in a linear layer, also inside DistributedDataParallel or torch.compile; or, with
            `head`, a module or function that returns the features.
        loader: what to measure on: best the training set without augmentation. A DataLoader is read in order, each
            sample once, whatever its sampler; or a list of (inputs, labels) batches.
        every: measure after every so many calls of `step`; the last state is always measured.
        problem: the loss and the decays of the training, for the predicted optimum (where it has a closed form) and the
            certified gap to it. The gap is that of the samples the problem counts, however many are measured.
        samples: measure on so many samples only, the same ones each time, drawn by `seed`.
        layer: the classifier's dotted name, where the model has several.
        head: the classifier (a torch.nn.Linear, LinearHead, ETFHead) of a model that returns features.
        split: a function from a batch to (inputs, labels), for batches that are neither pairs nor dictionaries.
        log: called with (numbers by name, epoch), to pass them on.

    In several processes (torch.distributed) each runs the model on its share of a DataLoader's data set, and all get
    the whole measurement; other batches each process measures as they are.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> with monitor(model, [(torch.randn(10, 4), torch.arange(10) % 2)]) as watch:
    ...     for epoch in range(3):
    ...         pass  # train here
    ...         measurement = watch.step()
    >>> [seen.epoch for seen in watch.history], watch.last.num_samples
    ([0, 1, 2, 3], 10)
    """
    return Monitor(model, loader, every, problem, samples, seed, layer, head, split, log)


def _find_place() -> tuple[int, int]:
    """Rank and number of processes."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def _gather(found: Extracted) -> Extracted:
    """The features and labels of all processes."""
    rank, size = _find_place()
    if size == 1:
        return found
    from ncollapse.train.distributed import World

    world = World(rank, size, found.features.device)
    return Extracted(world.gather(found.features), world.gather(found.labels), found.head, found.layer)
