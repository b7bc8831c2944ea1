"""Which samples of a loader are measured: all of them once, a fixed subset with every class, one process's share."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)
from torch.utils.data.distributed import DistributedSampler

from ncollapse.features.batches import count_samples

PLAIN_SAMPLERS = (RandomSampler, SequentialSampler, DistributedSampler)
LABEL_ATTRIBUTES = ("targets", "labels", "label", "y")


class Share(NamedTuple):
    """The batches of one process.

    limit: only so many samples count; the last ones repeat others, so that all processes run equally many batches.
    divided: whether the other processes have the rest of the data.
    """

    batches: Iterable[Any]
    limit: int | None
    divided: bool


class FirstSamples:
    """The batches of a stream up to a number of samples; the last batch may hold more."""

    def __init__(self, batches: Iterable[Any], samples: int) -> None:
        self.batches, self.samples = batches, samples

    def __iter__(self) -> Iterator[Any]:
        seen = 0
        for batch in self.batches:
            yield batch
            seen += count_samples(batch)
            if seen >= self.samples:
                return


def plain_order(loader: Any, samples: int | None = None, seed: int = 0) -> Iterable[Any]:
    """The same data in its own order, each sample once: all of it, or `samples` of it (see `divide`)."""
    return divide(loader, samples, seed).batches


def divide(loader: Any, samples: int | None = None, seed: int = 0, rank: int = 0, size: int = 1) -> Share:
    """One process's share of a loader's data, each sample once.

    A DataLoader over a data set with a length is read past its sampler where that shuffles, drops or shards; each of
    `size` processes gets its share. `samples` draws a subset by `seed`, in which every class keeps its share and has at
    least two samples where that is possible. Any other iterable is returned as it is, or cut after `samples`.
    """
    if samples is not None and samples < 1:
        raise ValueError(f"samples: expected at least 1, got {samples}")
    if not isinstance(loader, Iterable) or isinstance(loader, Iterator):
        raise TypeError(
            f"loader: expected a DataLoader or a list of batches, which can be gone through again, "
            f"got {type(loader).__name__}"
        )
    if not _can_reorder(loader):
        if samples is None:
            return Share(loader, None, False)
        if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
            raise ValueError(
                "samples: expected a DataLoader without a sampler of its own, got "
                f"{type(loader.batch_sampler or loader.sampler).__name__} and "
                f"{type(loader.sampler).__name__}; give a loader over the subset"
            )
        return Share(FirstSamples(loader, samples), samples, False)
    assert isinstance(loader, DataLoader)
    source: DataLoader[Any] = loader
    order = _choose(source.dataset, samples, seed)
    own = order[rank::size].tolist()
    if len(order) < size:
        raise ValueError(f"loader: {len(order)} samples for {size} processes; expected at least one for each")
    padded = own + order[: -(-len(order) // size) - len(own)].tolist()
    again = DataLoader(
        source.dataset,
        batch_size=source.batch_size or 256,
        sampler=padded,
        num_workers=source.num_workers,
        collate_fn=source.collate_fn,
        pin_memory=source.pin_memory,
        timeout=source.timeout,
        worker_init_fn=source.worker_init_fn,
        multiprocessing_context=source.multiprocessing_context,
        prefetch_factor=source.prefetch_factor,
        persistent_workers=source.persistent_workers,
        generator=torch.Generator().manual_seed(seed),
    )
    return Share(again, len(own) if len(padded) > len(own) else None, True)


def find_labels(dataset: Any) -> Tensor | None:
    """The labels [N] of a data set that says them without loading its samples; None if it does not.

    >>> find_labels(TensorDataset(torch.zeros(2, 5), torch.tensor([1, 0])))
    tensor([1, 0])
    """
    if isinstance(dataset, Subset):
        whole = find_labels(dataset.dataset)
        return None if whole is None else whole[torch.as_tensor(dataset.indices)]
    if isinstance(dataset, ConcatDataset):
        parts = [find_labels(part) for part in dataset.datasets]
        return torch.cat([part for part in parts if part is not None]) if None not in parts else None
    candidates: list[Any] = [getattr(dataset, name, None) for name in LABEL_ATTRIBUTES]
    if isinstance(dataset, TensorDataset):
        candidates.append(dataset.tensors[-1])
    columns = getattr(dataset, "column_names", None)  # Hugging Face's data sets
    candidates += [dataset[name] for name in LABEL_ATTRIBUTES if isinstance(columns, list) and name in columns]
    for candidate in candidates:
        if isinstance(candidate, (Tensor, np.ndarray, list, tuple)) and len(candidate) == len(dataset):
            found = np.asarray(candidate)
            if found.ndim == 1 and found.dtype.kind in "iu":
                return torch.from_numpy(found.astype(np.int64))
    return None


def draw_stratified(labels: Tensor, samples: int, seed: int) -> Tensor:
    """Sorted indices of `samples` of the labels: each class by its share, with at least two of each where possible.

    >>> labels = torch.tensor([0] * 90 + [1] * 9 + [2])
    >>> labels[draw_stratified(labels, 20, seed=0)].bincount()
    tensor([16,  3,  1])
    """
    found = np.unique(labels.numpy(), return_inverse=True, return_counts=True)
    index, counts = torch.from_numpy(found[1]), torch.from_numpy(found[2])
    least = min(2, samples // len(counts))
    quota = counts.clamp(max=least)
    spare = counts - quota
    ideal = (samples - quota.sum()) * spare / spare.sum().clamp_min(1)
    quota += ideal.floor().long()
    left = samples - int(quota.sum())
    quota[(ideal - ideal.floor()).argsort(descending=True, stable=True)[:left]] += 1
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    by_class = shuffled[index[shuffled].argsort(stable=True)]
    starts = counts.cumsum(0) - counts
    place = torch.arange(len(labels)) - starts.repeat_interleave(counts)
    return by_class[place < quota.repeat_interleave(counts)].sort().values


def _choose(dataset: Any, samples: int | None, seed: int) -> Tensor:
    count = len(dataset)
    if samples is None or samples >= count:
        return torch.arange(count)
    labels = find_labels(dataset)
    if labels is not None:
        return draw_stratified(labels, samples, seed)
    warnings.warn(
        f"samples: {type(dataset).__name__} does not say its labels without loading every sample, so the subset is not "
        f"stratified and may leave classes out; give the data set an attribute `targets` with one integer a sample",
        stacklevel=5,
    )
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:samples].sort().values


def _can_reorder(loader: Any) -> bool:
    """Whether a loader's data set can be read past its sampler."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return False
    grouped = type(loader.batch_sampler).__name__ in ("BatchSampler", "BatchSamplerShard")  # the latter: accelerate's
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    return grouped and hasattr(loader.dataset, "__len__") and isinstance(sampler, PLAIN_SAMPLERS)
