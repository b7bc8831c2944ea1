"""`NeuralCollapse`: the collapse metrics as a torchmetrics metric, one pass, any number of processes."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from .batches import Batches, check_features, check_labels, check_mask, check_shape
from .classifier import HeadLike
from .curves import draw_curves
from .decay_fields import Decays
from .fields import FIELDS
from .flattening import flatten
from .measurement import Measurement
from .measuring import measure
from .presence import check_min_count
from .rows import ONE_HOT_CLASSES
from .scores import Spread
from .selection import check_fields
from .shards import Shards
from .statistics import ClassStatistics, absorb, check_sizes, combine, make_state, refuse

BUFFERED_NUMBERS = 1 << 21  # 16 MB of features wait for one update of the statistics: few launches a batch on a GPU
COUNTERS = frozenset(("_computed", "_update_count"))  # torchmetrics sets them at every update: not a module's slow way
SIZES = ("num_classes", "dim")
PARTS = tuple(item.name for item in dataclasses.fields(Spread) if item.name != "count")
# what one pass gives, NaN where it is undefined for these samples
FROM_MEANS = (
    *("nc1", "nc1_balanced", "nc1_quotient", "cdnv", "nc2_means", "equinorm_means", "equiangle_means"),
    *("mean_orthogonality", "means_rank", "means_smallest_singular_value", "feature_energy"),
    *(f"mean_cosines.{part}" for part in PARTS),
)
FROM_HEAD = (
    *("nc2", "nc2_uncentred", "nc2_rank", "equinorm_weights", "equiangle_weights", "weight_energy"),
    *("nc3", "nc3_centred", "nc3_distance", "nc2_relu", "positive_score.mean", "negative_score.mean"),
    *(f"{name}.{part}" for name in ("bias", "weight_cosines") for part in PARTS),
)


Kind: TypeAlias = tuple[torch.Size, torch.dtype, torch.Size]


class OnePass(dict[str, Tensor]):
    """Field name -> value; a field that one pass cannot give says so when it is asked for."""

    def __missing__(self, name: str) -> Tensor:
        if f"{name}.mean" in self:
            raise KeyError(f"{name} is a spread: ask for {name}.mean")
        if name in FROM_HEAD or f"{name}.mean" in FROM_HEAD:
            raise KeyError(f"{name} needs the classifier: compute(head=...)")
        if name.partition(".")[0] in {row.name for row in FIELDS}:
            raise KeyError(
                f"{name} needs a second pass over the features: metric.second_pass(batches, head=...), or "
                "ncollapse.measure"
            )
        raise KeyError(name)


class NeuralCollapse(Metric):
    """Collapse metrics of features that come batch by batch, over `ClassStatistics` in float64.

    Any split into batches, any order and any number of processes give the same numbers. `update` does not wait for a
    GPU: wrong labels, NaN and Inf in tensors there are noticed by `compute`. `compute(head)` gives a dictionary of
    scalar tensors: all fields of `measure` that class means, scatter and classifier determine (spreads in parts, as
    "positive_score.mean"), NaN where they are undefined for these samples. `accuracy` and whatever else looks at single
    samples takes another pass over the features: `second_pass`.

    Args:
        num_classes: K.
        dim: d, the width of the features.
        shard_classes: whether each process of `process_group` holds the statistics of a slice of the classes only,
            ceil(K / P) of them, so that [K, d] numbers need not fit in one. Every `update` and `compute` is then a
            collective call: all processes take part in each, with their own batch, which may be of another size.
            `compute(head=...)` takes the rows of these classes, or a layer whose weight is a DTensor sharded by rows
            (FSDP, tensor parallel). `second_pass` is collective, too; in every round the processes exchange a chunk of
            samples each, and no rows. `merge_state` takes a metric of the same slice. `forward` is refused, and
            quantiles of cosines and of negative scores are those of bins, to one part in 2^11.
        kwargs: of `torchmetrics.Metric` (`process_group`, `dist_sync_on_step`, ...); results are never cached.

    >>> import torch
    >>> metric = NeuralCollapse(num_classes=3, dim=3)
    >>> for _ in range(4):
    ...     metric.update(torch.eye(3), torch.arange(3))
    >>> metric.compute(head=torch.nn.Linear(3, 3))["nc1"]
    tensor(0., dtype=torch.float64)
    """

    is_differentiable = False
    higher_is_better = None
    full_state_update = False
    _buffer: _Buffer | None = None
    _accepted: Kind | None = None
    _statistics: Tensor
    sizes: Tensor

    def __init__(self, num_classes: int, dim: int, *, shard_classes: bool = False, **kwargs: Any) -> None:
        num_classes, dim = check_sizes(num_classes, dim)
        alone = {"sync_on_compute": False} if shard_classes else {}
        super().__init__(**{**kwargs, **alone, "compute_with_cache": False})
        self.shards = Shards(num_classes, kwargs.get("process_group")) if shard_classes else None
        if self.shards is not None:
            start, stop = self.shards.bounds()
            self.all_classes, num_classes = num_classes, stop - start
        self.num_classes, self.dim = num_classes, dim  # of this process
        zeros = _pack(make_state(num_classes, dim))
        self.add_state("statistics", zeros, dist_reduce_fx=Merge(num_classes, dim), persistent=True)
        sizes = torch.tensor([num_classes, dim], dtype=torch.float64)
        self.add_state("sizes", sizes, dist_reduce_fx="max", persistent=True)

    def update(self, features: Tensor, labels: Tensor, mask: Any = None) -> None:
        """Add a batch: features [B, d], integer labels [B]; samples where `mask` [B] is False are not looked at.

        A distributed sampler repeats samples so that all ranks get as many; with S = len(dataset) samples, rank r of R
        masks its j-th sample by r + j * R < S.
        """
        if self.shards is not None:
            features, labels, mask = self.shards.exchange(*self._check(features, labels, mask))
        kind = _describe(features, labels) if mask is None else None
        if kind is None or kind != self._accepted:  # another batch like the last one needs no second look
            features, labels, mask = self._check(features, labels, mask)
            self._accepted = kind
        device = self._statistics.device
        if features.device != device:
            raise ValueError(
                f"features: on {features.device}, but the metric is on {device}; metric.to({str(features.device)!r}) "
                "moves it"
            )
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("update: cannot be part of a CUDA graph; call it after each replay, on its output")
        rows = features.detach() if torch.is_grad_enabled() else features
        if device.type == "cpu":
            refuse(rows, labels.to(device), self.num_classes, None if mask is None else mask.to(device))
        count = features.shape[0]
        capacity = max(1, BUFFERED_NUMBERS // max(self.dim, min(self.num_classes, ONE_HOT_CLASSES)))
        if self._buffer is None:
            with torch.inference_mode(False):  # else nothing could be added to it outside inference mode
                self._buffer = _Buffer(capacity, self.dim, device)
        if self._buffer.size + count > capacity:
            self._flush()
        if count > capacity:
            self._absorb(rows.to(torch.float64), labels.to(device), None if mask is None else mask.to(device))
        else:
            self._buffer.add(rows, labels, mask)

    def _check(self, features: Any, labels: Any, mask: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        """A batch as tensors: real [B, d], int64 [B] and, where given, bool [B]."""
        features = torch.as_tensor(features)
        check_features(features)
        if features.shape[1] != self.dim:
            raise ValueError(f"features: expected [B, {self.dim}], got {tuple(features.shape)}")
        check = check_shape if mask is not None or isinstance(labels, Tensor) else check_labels
        index = check(labels, len(features))
        return features, index, None if mask is None else check_mask(mask, len(index))

    def _flush(self) -> None:
        """Work off the buffer."""
        if self._buffer is not None and self._buffer.size:
            self._absorb(*self._buffer.take())

    def _absorb(self, rows: Tensor, index: Tensor, mask: Tensor | None) -> None:
        with torch.inference_mode(False), torch.no_grad():
            state = _unpack(self._statistics, self.num_classes, self.dim)
            added = absorb(state, rows, index, mask)
            if added is not state:  # else the views of the packed state were changed in place
                self._statistics = _pack(added)

    @property
    def statistics(self) -> Tensor:
        """The state: counts, squares, refused, means and scatter in one float64 vector, nothing left waiting."""
        self._flush()
        return self._statistics

    @statistics.setter
    def statistics(self, value: Tensor) -> None:
        _unpack(value, self.num_classes, self.dim)  # raises where it does not fit
        self._buffer = None
        self._statistics = value

    def class_statistics(self) -> ClassStatistics:
        """The samples of this process so far, to save or to hand to `measure`; later batches do not change it."""
        made = self._view_statistics()
        made.state = {name: value.clone() for name, value in made.state.items()}
        return made

    def _view_statistics(self) -> ClassStatistics:
        return ClassStatistics.of(_unpack(self.statistics, self.num_classes, self.dim))

    def compute(
        self, head: HeadLike | None = None, fields: str | Iterable[str] | None = None, min_count: int = 1
    ) -> OnePass:
        """The fields that one pass determines, as float64 scalars; with a `head`, also those about the classifier.

        `fields` chooses among them, and `min_count` leaves out classes with fewer samples, as in `measure`. If that
        leaves out any sample, `nc1` and `nc1_balanced` are NaN: one pass keeps the scatter of all classes together.
        `measure(batches, min_count=...)` has them.
        """
        try:
            found = self._measure(head, fields, check_min_count(min_count))
        except Exception:
            if self._is_synced and self._should_unsync:
                self.unsync()  # torchmetrics leaves the gathered state in place when compute raises
            raise
        device = self.statistics.device
        possible = FROM_MEANS if head is None else (*FROM_MEANS, *FROM_HEAD)
        if fields is not None and fields != "all":
            chosen = check_fields(fields)
            possible = tuple(name for name in possible if name.partition(".")[0] in chosen)
        values = dict.fromkeys(possible, math.nan)
        values |= {name: value for name, value in flatten(found.to_dict()).items() if name not in SIZES}
        numbers = torch.tensor(list(values.values()), dtype=torch.float64, device=device)
        return OnePass(zip(values, numbers.unbind()))

    def _measure(
        self, head: HeadLike | None, fields: str | Iterable[str] | None, min_count: int, batches: Batches | None = None
    ) -> Measurement:
        if self.shards is None:
            return measure(self._view_statistics(), head=head, fields=fields, min_count=min_count)
        from .sharded import measure_shards

        found, notes = measure_shards(self._view_statistics(), self.shards, head, fields, min_count, batches)
        for note in notes:
            warnings.warn(f"measure: {note}", stacklevel=3)
        return found

    def second_pass(
        self, batches: Batches, head: HeadLike | None = None, *, problem: Decays | None = None
    ) -> Measurement:
        """Every field, from the features again: a re-iterable of the (features, labels) batches seen here.

        Raises ValueError if they hold other samples a class than were seen. With `shard_classes` all processes call
        this together, each with its own batches and its rows of the classifier.
        """
        if self.shards is not None:
            if problem is not None:
                raise ValueError("problem: not available with shard_classes=True; leave it out")
            return self._measure(head, None, 1, batches)
        found = measure(batches, num_classes=self.num_classes, head=head, problem=problem)
        seen = tuple(self.class_statistics().counts.tolist())
        if found.counts != seen:
            raise ValueError(f"batches: hold {found.counts} samples a class, but this metric has seen {seen}")
        return found

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch and return its own values; of a batch without all classes most are NaN, without a warning."""
        if self.shards is not None:
            raise RuntimeError("forward: not available with shard_classes=True; call update, and compute when needed")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="measure: ")
            return super().forward(*args, **kwargs)

    def plot(self, val: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None) -> Any:
        """A plotly figure of one result of `compute`, or of several as curves; without them, of the current one."""
        results = self.compute() if val is None else val
        return draw_curves([results] if isinstance(results, Mapping) else results)

    def reset(self) -> None:
        """Forget all samples."""
        self._buffer = None
        super().reset()

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the samples of another metric, or of its state."""
        if not isinstance(incoming_state, (Metric, Mapping)):
            raise TypeError(f"incoming_state: expected a metric or its state, got {type(incoming_state).__name__}")
        state: dict[str, Any] = incoming_state.metric_state if isinstance(incoming_state, Metric) else incoming_state
        _check_state(state, self.num_classes, self.dim)
        super().merge_state(incoming_state if isinstance(incoming_state, Metric) else {"sizes": self.sizes, **state})
        self._update_count += incoming_state.update_count if isinstance(incoming_state, Metric) else 1

    def __setattr__(self, name: str, value: Any) -> None:
        if name in COUNTERS:
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> nn.Module:
        # A module that holds this metric may go to bfloat16: the statistics follow to its device, never to its dtype.
        def move(tensor: Tensor) -> Tensor:
            return tensor.to(fn(tensor.new_empty(0)).device) if tensor.dtype == torch.float64 else fn(tensor)

        moved: nn.Module = super()._apply(move, exclude_state)
        return moved

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        _check_state(state_dict, self.num_classes, self.dim, prefix)
        place, held = self._statistics.device, f"{prefix}statistics" in state_dict
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.statistics, self.sizes = self._statistics.to(place), self.sizes.to(place)
        if held:
            self._update_count = max(self._update_count, 1)  # else compute warns that nothing was seen

    def __getstate__(self) -> dict[str, Any]:
        self._flush()
        state: dict[str, Any] = super().__getstate__()
        return {**state, "_buffer": None}


class _Buffer:
    """Samples that wait for the next update of the statistics, copied: a network may overwrite its output."""

    def __init__(self, capacity: int, dim: int, device: torch.device) -> None:
        self.rows = torch.empty(capacity, dim, dtype=torch.float64, device=device)
        self.index = torch.empty(capacity, dtype=torch.int64, device=device)
        self.mask: Tensor | None = None
        self.size = 0

    def add(self, rows: Tensor, index: Tensor, mask: Tensor | None) -> None:
        count = rows.shape[0]
        self.rows.narrow(0, self.size, count).copy_(rows)
        index = index.clone() if index.device.type == "cpu" and index.is_pinned() else index  # the caller may reuse it
        self.index.narrow(0, self.size, count).copy_(index, non_blocking=True)
        if mask is not None and self.mask is None:
            with torch.inference_mode(False):
                self.mask = torch.ones(len(self.index), dtype=torch.bool, device=self.index.device)
        if self.mask is not None:
            self.mask[self.size : self.size + count] = True if mask is None else mask
        self.size += count

    def take(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """What waits; valid until the next `add`."""
        size, self.size = self.size, 0
        return self.rows[:size], self.index[:size], None if self.mask is None else self.mask[:size]


def _describe(features: Any, labels: Any) -> Kind | None:
    """All that is checked of a batch of tensors before its values are seen; None for one that has to be converted."""
    if not (isinstance(features, Tensor) and isinstance(labels, Tensor)) or labels.dtype != torch.int64:
        return None
    return features.shape, features.dtype, labels.shape


class Merge:
    """Chan's merge of packed states [P, S], one row a process; a class, so that metrics can be pickled."""

    def __init__(self, num_classes: int, dim: int) -> None:
        self.num_classes, self.dim = num_classes, dim

    def __call__(self, stack: Tensor) -> Tensor:
        total = _unpack(stack[0], self.num_classes, self.dim)
        for row in stack[1:]:
            total = combine(total, _unpack(row, self.num_classes, self.dim))
        return _pack(total)


def _sizes(num_classes: int, dim: int) -> dict[str, tuple[int, ...]]:
    return {
        "counts": (num_classes,),
        "squares": (num_classes,),
        "refused": (2,),
        "means": (num_classes, dim),
        "scatter": (dim, dim),
    }


def _pack(state: dict[str, Tensor]) -> Tensor:
    return torch.cat([state[name].reshape(-1) for name in ("counts", "squares", "refused", "means", "scatter")])


def _check_state(state: Mapping[str, Any], num_classes: int, dim: int, prefix: str = "") -> None:
    """Raise unless a state is of these sizes; one from before they were saved has to agree with itself in them."""
    packed, sizes = state.get(f"{prefix}statistics"), state.get(f"{prefix}sizes")
    if sizes is not None and sizes.tolist() != [num_classes, dim]:
        held = " classes in dimension ".join(f"{size:.0f}" for size in sizes.tolist())
        raise ValueError(f"statistics: {held} do not fit {num_classes} classes in dimension {dim}")
    if packed is not None:
        parts = _unpack(packed, num_classes, dim)
        within = float(parts["scatter"].trace()), float(parts["squares"].sum())
        if sizes is None and not math.isclose(*within, rel_tol=1e-6):
            raise ValueError(f"statistics: these numbers do not fit {num_classes} classes in dimension {dim}")


def _unpack(packed: Tensor, num_classes: int, dim: int) -> dict[str, Tensor]:
    if packed.dtype != torch.float64:
        raise TypeError(f"statistics: expected float64, got {packed.dtype}; lower precision has lost the numbers")
    shapes = _sizes(num_classes, dim)
    lengths = [math.prod(shape) for shape in shapes.values()]
    if packed.numel() != sum(lengths):
        raise ValueError(
            f"statistics: {packed.numel()} numbers do not fit {num_classes} classes in dimension {dim} ({sum(lengths)})"
        )
    parts = torch.split(packed, lengths)
    return {name: part.reshape(shape) for part, (name, shape) in zip(parts, shapes.items())}
