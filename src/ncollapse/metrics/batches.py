"""Features and labels as float64 chunks of bounded size, any number of times, whatever they came as."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from .presence import refuse_few
from .workspace import Workspace

Array: TypeAlias = Tensor | np.ndarray[Any, Any]
Labels: TypeAlias = Array | Sequence[int]
Batches: TypeAlias = Iterable[tuple[Array, Array]]
Chunk: TypeAlias = tuple[Tensor, Tensor]

CPU_NUMBERS = 1 << 19  # numbers a chunk of features: 4 MB in float64, so that a chunk stays in the cache
CUDA_NUMBERS = 1 << 27  # 1 GB: large products, and a few dozen launches for a million samples
CPU_ROWS = 4096  # a longer chunk of narrow features would lose digits in its sums
NUMBERED = "numpy.unique(labels, return_inverse=True)[1]"
INFERRED_CLASSES = 1 << 20  # a larger number of classes has to be given, not inferred from the largest label


class Reader(Protocol):
    """Reads in chunks."""

    def __call__(self, rows: int, room: Workspace | None = None) -> Iterator[Chunk]:
        """Chunks of at most `rows` samples; each overwrites the features of the one before, which are in `room`."""


@dataclass(frozen=True)
class Source:
    """Something that can be read in chunks of (float64 features [c, d], int64 labels [c]) as often as needed."""

    read: Reader
    dim: int
    device: torch.device
    num_classes: int | None  # largest label + 1 of arrays, None for batches, which may differ from pass to pass

    def rows(self, num_classes: int = 0) -> int:
        """Samples a chunk: its features, and two scores for each of `num_classes`, stay within a fixed size."""
        numbers = CUDA_NUMBERS if self.device.type == "cuda" else CPU_NUMBERS
        rows = max(64, numbers // max(self.dim, 2 * num_classes, 1))
        return rows if self.device.type == "cuda" else min(rows, CPU_ROWS)


def open_source(features: Any, labels: Any) -> Source:
    """Check features and labels and make them readable in chunks.

    `features` is a tensor or array [N, d] with `labels` [N], or, with `labels` left out, an iterable of
    (features, labels) batches that can be gone through more than once.
    """
    if isinstance(features, (Tensor, np.ndarray)):
        if labels is None:
            raise ValueError(
                "labels: missing; pass an integer for each row of features, or batches of (features, labels) alone"
            )
        return _open_arrays(features, labels)
    if isinstance(features, torch.nn.Module):
        raise TypeError(
            f"features: expected a tensor or array [N, d], got {type(features).__name__}; "
            "ncollapse.features.extract(model, batches) gives the features, labels and head of a model"
        )
    if isinstance(features, str | os.PathLike):
        raise TypeError(f"features: expected a tensor or array [N, d], got {features!r}; ncollapse measure reads files")
    if labels is not None:
        raise ValueError(
            f"features: expected a tensor or array [N, d] beside labels, got {type(features).__name__}; "
            "numpy.asarray(features) makes one; batches of (features, labels) go in alone, with labels left out"
        )
    return _open_batches(features)


def _open_arrays(features: Array, labels: Any) -> Source:
    check_features(features)
    count = features.shape[0]
    if count == 0:
        raise ValueError("features: no samples (N = 0); at least one is needed")
    device = _choose_device(features)
    index = check_shape(labels, count)
    least, largest = (int(edge) for edge in torch.stack(torch.aminmax(index)).tolist())
    if least < 0:
        refuse_negative(index)
    index = index.to(device)

    def read(rows: int, room: Workspace | None = None) -> Iterator[Chunk]:
        buffer = (room or Workspace(device)).take("chunk", min(rows, count), features.shape[1])
        for start in range(0, count, rows):
            stop = min(start + rows, count)
            yield fill(buffer[: stop - start], features[start:stop]), index[start:stop]

    return Source(read, features.shape[1], device, largest + 1)


def _open_batches(batches: Any) -> Source:
    if not isinstance(batches, Iterable):
        raise TypeError(
            f"features: expected a tensor, an array or batches of (features, labels), got {type(batches).__name__}"
        )
    if iter(batches) is batches:
        raise TypeError(
            f"features: a {type(batches).__name__} can be read only once, but is gone through several times; pass a "
            "list, a DataLoader or any object whose __iter__ starts again, or feed ncollapse.ClassStatistics batch by "
            "batch"
        )
    first = next((_check_batch(batch) for batch in batches), None)
    if first is None:
        raise ValueError("features: no batches (N = 0); at least one sample is needed")
    dim = first[0].shape[1]
    device = _choose_device(first[0])

    def read(rows: int, room: Workspace | None = None) -> Iterator[Chunk]:
        # batches are cut and joined into full chunks: the work does not depend on how they came
        buffer = (room or Workspace(device)).take("chunk", rows, dim)
        held: list[Tensor] = []
        size = 0
        for batch in batches:
            features, labels = _check_batch(batch, dim)
            start = 0
            while start < len(labels):
                stop = min(start + rows - size, len(labels))
                fill(buffer[size : size + stop - start], features[start:stop])
                held.append(labels[start:stop].to(device))
                size += stop - start
                start = stop
                if size == rows:
                    yield buffer, torch.cat(held)
                    held, size = [], 0
        if size:
            yield buffer[:size], torch.cat(held)

    return Source(read, dim, device, None)


def leave_out_rare(source: Source, min_count: int) -> Source:
    """A source without the samples of classes that have fewer than `min_count`; the labels are counted first."""
    counts = torch.zeros(0, dtype=torch.int64, device=source.device)
    for _, labels in source.read(source.rows()):
        refuse_inferred(int(labels.max()) if source.num_classes is None else 0)
        found = torch.bincount(labels, minlength=len(counts))
        counts = found.index_add_(0, torch.arange(len(counts), device=found.device), counts)
    refuse_few(int(counts.max()), min_count)

    def read(rows: int, room: Workspace | None = None) -> Iterator[Chunk]:
        for features, labels in source.read(rows, room):
            kept = counts[labels] >= min_count
            if bool(kept.any()):
                yield (features, labels) if bool(kept.all()) else (features[kept], labels[kept])

    return Source(read, source.dim, source.device, source.num_classes)


def _check_batch(batch: Any, dim: int | None = None) -> tuple[Array, Tensor]:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise ValueError(f"features: each batch must be a pair (features, labels), got {type(batch).__name__}")
    features, labels = batch
    if not isinstance(features, (Tensor, np.ndarray)):
        raise ValueError(f"features: a batch holds {type(features).__name__}, not a tensor or array [B, d]")
    check_features(features)
    if dim is not None and features.shape[1] != dim:
        raise ValueError(f"features: a batch has {features.shape[1]} columns, the first one had {dim}")
    return features, check_labels(labels, features.shape[0])


def check_features(features: Array) -> None:
    """Refuse what is not a real matrix [N, d]."""
    if not isinstance(features, (Tensor, np.ndarray)):
        raise TypeError(f"features: expected a tensor or array [N, d], got {type(features).__name__}")
    if features.ndim != 2:
        raise ValueError(f"features: expected a matrix [N, d], got shape {tuple(features.shape)}")
    if features.shape[1] == 0:
        raise ValueError("features: expected d >= 1 columns, got 0")
    check_real("features", features)


def check_real(name: str, values: Array) -> None:
    """Refuse sparse tensors, complex numbers, objects, texts, and masked arrays, whose mask would be lost."""
    if isinstance(values, Tensor):
        if values.layout != torch.strided:
            raise ValueError(f"{name}: expected a dense tensor, got a sparse one")
        unfit = values.is_complex()
    else:
        refuse_masked(name, values)
        unfit = values.dtype.kind not in "fiub"
    if unfit:
        raise ValueError(f"{name}: expected real numbers, got {values.dtype}")


def refuse_masked(name: str, values: Any) -> None:
    """Raise for a masked array with hidden entries: they would be measured like the others."""
    hidden = int(np.ma.getmaskarray(values).sum()) if isinstance(values, np.ma.MaskedArray) else 0
    if hidden:
        raise ValueError(f"{name}: expected plain numbers, got a masked array with {hidden} masked; drop those samples")


def refuse_inferred(largest: int) -> None:
    """Raise for a label so large that the number of classes inferred from it is probably a mistake."""
    if largest >= INFERRED_CLASSES:
        raise ValueError(
            f"labels: expected integers below {INFERRED_CLASSES} where num_classes is not given, got {largest}; pass "
            f"num_classes={largest + 1} if there are so many classes"
        )


def check_labels(labels: Any, count: int) -> Tensor:
    """Labels as int64 [count]; float, one-hot, negative or too few labels are refused."""
    index = check_shape(labels, count)
    if count and int(index.min()) < 0:
        refuse_negative(index)
    return index


def refuse_negative(labels: Tensor) -> None:
    """Raise for the first negative label."""
    row = int((labels < 0).nonzero()[0])
    raise ValueError(f"labels: expected integers 0..K-1, got {int(labels[row])} in row {row}")


def check_shape(labels: Any, count: int) -> Tensor:
    """Labels as int64 [count], judged by their shape and type alone: their values stay on the device."""
    index = labels if isinstance(labels, Tensor) else _read_labels(labels)
    if index.ndim != 1:
        hint = ""
        if index.ndim == 2:
            column = index.shape[1] == 1
            hint = "; " + (
                "one column: pass labels.squeeze(1)" if column else "one-hot or soft labels: pass labels.argmax(1)"
            )
        raise ValueError(f"labels: expected one integer a sample, shape [{count}], got {tuple(index.shape)}{hint}")
    if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
        hint = "convert them with labels.long(), or labels.astype(int) of an array"
        raise ValueError(f"labels: expected integers 0..K-1, got {str(index.dtype).removeprefix('torch.')}; {hint}")
    if index.shape[0] != count:
        raise ValueError(f"labels: {index.shape[0]} labels for {count} rows of features")
    return index.detach().to(torch.int64)


def check_mask(mask: Any, count: int) -> Tensor:
    """A mask as a tensor, bool [count]."""
    found = mask if isinstance(mask, Tensor) else np.asarray(mask)
    if tuple(found.shape) != (count,) or found.dtype not in (torch.bool, np.bool_):
        raise ValueError(f"mask: expected bool [{count}], got {found.dtype} {list(found.shape)}")
    return torch.as_tensor(found)


def _read_labels(labels: Any) -> Tensor:
    refuse_masked("labels", labels)
    found = np.array(labels)
    if found.dtype.kind not in "iufbc":
        raise ValueError(f"labels: expected integers 0..K-1, got {found.dtype}; {NUMBERED} numbers the classes")
    return torch.from_numpy(found.astype(found.dtype.newbyteorder("="), copy=False))


def to_float64(features: Array) -> Tensor:
    """A detached float64 tensor."""
    if isinstance(features, Tensor):
        return features.detach().to(torch.float64)
    return torch.from_numpy(np.array(features, dtype=np.float64))


def fill(buffer: Tensor, features: Array) -> Tensor:
    """Write features into float64 memory; of memory-mapped arrays only these rows are read."""
    if isinstance(features, Tensor):
        return buffer.copy_(features.detach().to(buffer.device))
    if buffer.device.type == "cpu":
        np.copyto(buffer.numpy(), features)
        return buffer
    return buffer.copy_(to_float64(features))


def _choose_device(features: Array) -> torch.device:
    """Where the features are, unless that device has no float64."""
    if isinstance(features, Tensor) and features.device.type != "mps":
        return features.device
    return torch.device("cpu")


def refuse_non_finite(source: Source, rows: int) -> None:
    """Raise with the numbers of the first rows that hold NaN or Inf, if any do."""
    bad: list[int] = []
    start = 0
    for features, labels in source.read(rows):
        wrong = (~torch.isfinite(features).all(dim=1)).nonzero().flatten()
        bad += [start + int(row) for row in wrong[: 6 - len(bad)]]
        start += len(labels)
        if len(bad) > 5:
            break
    if bad:
        raise ValueError(f"features: NaN or Inf in {name_rows(bad)} (counted from 0)")


def name_rows(rows: list[int]) -> str:
    """The first five of some rows, in words.

    >>> name_rows([3, 9])
    'rows 3, 9'
    """
    named = ", ".join(str(row) for row in rows[:5]) + (", ..." if len(rows) > 5 else "")
    return f"row{'s' if len(rows) > 1 else ''} {named}"
