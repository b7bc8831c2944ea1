"""What is measured at the end of an epoch: every split, and the certified gap of the training set."""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ncollapse.runs.epoch_snapshots import BINS, samples_per_class
from ncollapse.theory import Certificate, certify_if_known
from ncollapse.train.divergence import Diverged, describe_checkpoint
from ncollapse.train.evaluate import describe_split, measure_split, shorten
from ncollapse.train.schedule import rate_at

if TYPE_CHECKING:
    from ncollapse.train.setup import Training

BOUNDS = tuple(name for item in fields(Certificate) if (name := item.name).endswith("_bound") and name != "lower_bound")
"""What the certified gap implies for the geometry; kept beside it."""


@dataclass(frozen=True)
class Extracted:
    """The features and labels of every split, and the head, as they are at the end of an epoch."""

    epoch: int
    splits: dict[str, tuple[Tensor, Tensor]]
    head: nn.Module

    @property
    def bytes(self) -> int:
        """The memory that the features take."""
        return sum(features.nbytes for features, _ in self.splits.values())


def extract_splits(run: Training) -> Extracted:
    """Pass every split through the network; training on does not change what is returned."""
    run.world.broadcast(dict(run.model.named_buffers()))  # batch norm's, where each process has its own
    splits = {name: run.extract(batches) for name, batches in run.loaders.measured.items()}
    return Extracted(run.epoch, splits, copy.deepcopy(run.model.head))


def measure_splits(run: Training, extracted: Extracted, arrays: dict[str, Tensor] | None = None) -> dict[str, Any]:
    """Measure every split, and certify the gap on the training set.

    The arrays behind the figures of this epoch are added to `arrays`, if it is given.
    """
    record: dict[str, Any] = {"certificate": None}
    for name, (features, labels) in extracted.splits.items():
        if not all_finite(features):
            raise Diverged(
                f"the features of the {name} split are no longer finite after step {run.loaders.train.steps} of epoch "
                f"{extracted.epoch}, with learning rate {rate_at(run.recipe, extracted.epoch):g}; "
                f"{describe_checkpoint(run.folder)}"
            )
        if run.world.first:
            whole = features, labels, extracted.head, run.problem
            if arrays is None or name == "validation":
                found = measure_split(*whole)
            else:
                keep = samples_per_class(run.loaders.num_classes)
                found, figures = describe_split(name, *whole, bins=BINS, keep=keep)
                arrays |= figures
            record[name] = shorten(found)
            if name == "train":
                record["certificate"] = certify_split(run, features, labels, extracted.head)
    return run.world.share(lambda: record)


def all_finite(features: Tensor) -> bool:
    """Whether every value is finite: a finite sum says so, at a thirtieth of the time of looking at each on a CPU."""
    return bool(features.sum().isfinite()) or bool(features.isfinite().all())


def certify_split(run: Training, features: Tensor, labels: Tensor, head: nn.Module) -> dict[str, float] | None:
    """The certified gap and what follows from it, None where theory knows no problem."""
    found = certify_if_known(features, labels, head, run.problem)
    names = ("gap", "relative_gap", "lower_bound", "objective", *BOUNDS)
    return None if found is None else {name: getattr(found, name) for name in names}
