"""Batches of any shape: inputs apart from labels, on the model's device, in a fixed order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

LABEL_KEYS = ("labels", "label", "label_ids", "target", "targets", "y")
PLAIN_SAMPLERS = (RandomSampler, SequentialSampler, DistributedSampler)


def split_batch(batch: Any) -> tuple[Any, Any]:
    """(inputs, labels) of a pair or of a dictionary with the key labels, label, label_ids, target, targets or y."""
    if isinstance(batch, Mapping):
        for key in LABEL_KEYS:
            if key in batch:
                return {name: value for name, value in batch.items() if name != key}, batch[key]
        raise ValueError(f"batch: has the keys {', '.join(map(str, batch))}, none of {', '.join(LABEL_KEYS)}")
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        return batch[0], batch[1]
    size = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
    raise ValueError(
        f"batch: expected (inputs, labels) or a dictionary with labels, got {type(batch).__name__}{size}; "
        "pass split=, a function from a batch to (inputs, labels)"
    )


def move(value: Any, device: torch.device) -> Any:
    """Tensors, also inside dictionaries and sequences, on a device."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {name: move(item, device) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        items = [move(item, device) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def call(model: Any, inputs: Any) -> Any:
    """Call a model with one input, with several, or with named ones."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


def plain_order(loader: Any, samples: int | None = None, seed: int = 0, rank: int = 0, size: int = 1) -> Iterable[Any]:
    """The same data in its own order, each sample once: all of it, or `samples` of it drawn by `seed`.

    A DataLoader over a map-style data set that shuffles, drops or shards is read past its sampler; with `size`
    processes each gets its share. Any other iterable is returned as it is and cannot be subsampled.
    """
    if samples is not None and samples < 1:
        raise ValueError(f"samples: expected at least 1, got {samples}")
    if not isinstance(loader, Iterable) or isinstance(loader, Iterator):
        raise TypeError(
            f"loader: expected a DataLoader or a list of batches, which can be gone through again, "
            f"got {type(loader).__name__}"
        )
    source = _find_source(loader)
    if source is None:
        if samples is not None:
            raise ValueError(
                f"samples: only a DataLoader over a data set with a length, without a sampler of its own, can be "
                f"subsampled; got {type(loader).__name__}"
            )
        return loader
    dataset: Any = source.dataset
    count = len(dataset)
    order = torch.arange(count)
    if samples is not None and samples < count:
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:samples].sort().values
    return DataLoader(
        dataset,
        batch_size=source.batch_size or 256,
        sampler=order[rank::size].tolist(),
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


def _find_source(loader: Any) -> DataLoader[Any] | None:
    """The loader itself, where its data set can be read past its sampler."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    grouped = type(loader.batch_sampler).__name__ in ("BatchSampler", "BatchSamplerShard")  # the latter: accelerate's
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    return loader if grouped and hasattr(loader.dataset, "__len__") and isinstance(sampler, PLAIN_SAMPLERS) else None
