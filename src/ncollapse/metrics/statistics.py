"""`ClassStatistics`: counts, class means and within-class scatter, one batch at a time, mergeable, always float64."""

from __future__ import annotations

from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .batches import check_features, check_labels, check_shape, name_rows, to_float64
from .collapse import Moments, finish_moments, span_means, take_moments
from .presence import Presence, check_count, find_present, refuse_few
from .rows import ONE_HOT_CLASSES, square_norms
from .transfer import choose_site, copy_together

STATE = ("counts", "means", "scatter", "squares", "refused")


def check_sizes(num_classes: int, dim: int) -> tuple[int, int]:
    """Refuse statistics of no class or no dimension."""
    return check_count("num_classes", num_classes), check_count("dim", dim)


class ClassStatistics:
    """Running class statistics by the update of Chan, Golub and LeVeque: centred, so that nothing cancels.

    One pass over the data and a d x d scatter, where `measure` on arrays takes two passes and no d x d matrix. Any
    split into batches, any order and any tree of merges give the same numbers up to float64 rounding. On a GPU `update`
    does not wait for the device: wrong labels and NaN are then noticed when the statistics are read.

    >>> import torch
    >>> statistics = ClassStatistics(num_classes=2, dim=2)
    >>> statistics.update(torch.eye(2), torch.tensor([0, 1])).counts.tolist()
    [1, 1]
    """

    def __init__(self, num_classes: int, dim: int, device: str | torch.device = "cpu") -> None:
        self.num_classes, self.dim = check_sizes(num_classes, dim)
        self.state = make_state(self.num_classes, self.dim, device)

    @classmethod
    def of(cls, state: dict[str, Tensor]) -> ClassStatistics:
        """The statistics that have this state."""
        made = cls.__new__(cls)
        made.num_classes, made.dim = state["means"].shape
        made.state = state
        return made

    def update(self, features: Tensor | np.ndarray[Any, Any], labels: Any) -> ClassStatistics:
        """Add a batch: features [B, d], integer labels [B]; returns itself."""
        check_features(features)
        if features.shape[1] != self.dim:
            raise ValueError(f"features: expected [B, {self.dim}], got {tuple(features.shape)}")
        device = self.state["means"].device
        rows = to_float64(features).to(device)
        waits = device.type == "cpu"
        if waits or not isinstance(labels, Tensor) or labels.device != device:
            index = check_labels(labels, len(rows)).to(device)
        else:
            index = check_shape(labels, len(rows))
        if waits:
            refuse(rows, index, self.num_classes)
        self.state = absorb(self.state, rows, index)
        return self

    def merge(self, other: ClassStatistics) -> ClassStatistics:
        """Add another's samples; returns itself."""
        if not isinstance(other, ClassStatistics):
            raise TypeError(f"other: expected ClassStatistics, got {type(other).__name__}")
        if (self.num_classes, self.dim) != (other.num_classes, other.dim):
            raise ValueError(
                f"other: statistics of {other.num_classes} classes in dimension {other.dim} do not fit "
                f"{self.num_classes} classes in dimension {self.dim}"
            )
        device = self.state["means"].device
        self.state = combine(self.state, {name: value.to(device) for name, value in other.state.items()})
        return self

    @property
    def counts(self) -> Tensor:
        """Samples in each class [K], int64."""
        self.check()
        return self.state["counts"].to(torch.int64)

    @property
    def means(self) -> Tensor:
        """Class means [K, d]; NaN for a class without a sample."""
        self.check()
        return torch.where(self.state["counts"][:, None] > 0, self.state["means"], torch.nan)

    @property
    def scatter(self) -> Tensor:
        """Sum over samples of (h - class mean)(h - class mean)^T [d, d]: N times Sigma_W of bce-vs-ce Eq. 25."""
        self.check()
        return self.state["scatter"].clone()

    def check(self, refused: Tensor | None = None) -> None:
        """Raise ValueError if samples were refused, here or, as `refused` [2] says, elsewhere.

        Batches on a GPU are judged here.
        """
        labels, values = (int(count) for count in (self.state["refused"] if refused is None else refused).tolist())
        if labels:
            raise ValueError(f"labels: {labels} samples had labels outside 0..{self.num_classes - 1}")
        if values:
            raise ValueError(f"features: {values} samples held NaN or Inf")

    def at_site(self) -> ClassStatistics:
        """These statistics where work on class means of their size is done: of few classes, on the host."""
        site = choose_site(self.state["means"].device, self.num_classes, self.dim)
        return ClassStatistics.of(dict(zip(self.state, copy_together(list(self.state.values()), site))))

    def moments(self, *, strict: bool = False, min_count: int = 1) -> tuple[Moments, Presence]:
        """What the collapse metrics take: moments of the classes with samples, and which these are.

        Classes with fewer than `min_count` samples are left out, and the scatter with them, which is that of all.
        """
        self.check()
        counted = self.state["counts"]
        presence = find_present(counted, strict=strict, min_count=min_count)
        if not bool(counted.any()):
            raise ValueError("statistics: no samples (N = 0); update them first")
        refuse_few(int(counted.max()), min_count)
        counts, means, squares = (presence.take(self.state[name]) for name in ("counts", "means", "squares"))
        anchor = means[int(counts.argmax())]  # a class mean: offsets are exact for features that share a large offset
        offsets, variances = means - anchor, squares / counts
        energies = square_norms(offsets) + variances
        moments = span_means(take_moments(counts, offsets, anchor, energies))
        if not torch.equal(presence.counts, counted):
            return finish_moments(moments, variances, None), presence
        scatter = self.state["scatter"]
        inside = scatter if moments.basis is None else moments.basis.T @ scatter @ moments.basis
        return finish_moments(moments, variances, inside), presence

    def save(self, path: str | PathLike[str]) -> None:
        """Write to a safetensors file."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        self.check()
        try:
            save_file({name: value.cpu().contiguous() for name, value in self.state.items()}, str(path))
        except SafetensorError as error:
            raise OSError(f"{path}: cannot be written ({error})") from None

    @classmethod
    def load(cls, path: str | PathLike[str], device: str | torch.device = "cpu") -> ClassStatistics:
        """Read what `save` wrote."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            state = load_file(str(path), device=str(device))
        except FileNotFoundError:
            raise
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path}: not a readable .safetensors file ({error})") from None
        if set(state) != set(STATE) or state["means"].ndim != 2:
            raise ValueError(f"{path}: not class statistics; expected the tensors {', '.join(STATE)}")
        classes, dim = state["means"].shape
        made = cls(classes, dim, device)
        for name, value in made.state.items():
            if state[name].shape != value.shape or state[name].dtype != torch.float64:
                raise ValueError(f"{path}: {name}: expected float64 of shape {tuple(value.shape)}")
        made.state = {name: state[name] for name in STATE}
        try:
            made.check()
        except ValueError as error:  # `save` writes none that fail
            raise ValueError(f"{path}: {error}") from None
        return made


def make_state(num_classes: int, dim: int, device: str | torch.device = "cpu") -> dict[str, Tensor]:
    """The state of no samples."""
    options: dict[str, Any] = {"dtype": torch.float64, "device": torch.device(device)}
    return {
        "counts": torch.zeros(num_classes, **options),
        "means": torch.zeros(num_classes, dim, **options),
        "scatter": torch.zeros(dim, dim, **options),  # summed over classes
        "squares": torch.zeros(num_classes, **options),  # sum of |h - mean|^2 by class
        "refused": torch.zeros(2, **options),  # samples with a wrong label, samples with NaN or Inf
    }


def clean_batch(rows: Tensor, index: Tensor, num_classes: int, keep: Tensor | None) -> tuple[Tensor, ...]:
    """Rows, index and weight of each sample, and how many are refused for their label and for NaN or Inf.

    A sample that is refused, or where `keep` [B] is False, becomes a zero row of weight 0 in class 0.
    """
    known = (index >= 0) & (index < num_classes)
    finite = torch.isfinite(rows).all(1)
    wrong = torch.stack([~known, ~finite])
    good = known & finite
    if keep is not None:
        wrong, good = wrong & keep, good & keep
    rows = torch.where(good[:, None], rows, 0.0)
    return rows, torch.where(good, index, 0), good.to(torch.float64), wrong.sum(1).to(torch.float64)


def summarise(rows: Tensor, index: Tensor, num_classes: int, keep: Tensor | None = None) -> dict[str, Tensor]:
    """The state of one batch: float64 rows [B, d], int64 index [B]; nothing waits for the device.

    Samples with a wrong label, NaN or Inf are counted as refused and left out; where `keep` [B] is False they are left
    out silently.
    """
    rows, index, weight, refused = clean_batch(rows, index, num_classes, keep)
    marks = torch.zeros(len(rows), num_classes, dtype=torch.float64, device=rows.device)
    marks.scatter_(1, index[:, None], weight[:, None])
    counts = marks.sum(0)
    base = rows[:1]  # what all samples have in common adds no rounding
    gaps = marks.T @ ((rows - base) * weight[:, None]) / counts.clamp_min(1.0)[:, None]
    means = torch.where(counts[:, None] > 0, base + gaps, 0.0)
    residuals = (rows - marks @ means) * weight[:, None]
    return {
        "counts": counts,
        "means": means,
        "scatter": residuals.T @ residuals,
        "squares": marks.T @ residuals.square().sum(1),
        "refused": refused,
    }


def absorb(state: dict[str, Tensor], rows: Tensor, index: Tensor, keep: Tensor | None = None) -> dict[str, Tensor]:
    """The state with one batch added; for many classes the tensors of `state` themselves are changed.

    With many classes a batch touches few of them: they are updated in place, in O(B d + B d^2), without a wait for the
    device. Each class of the batch gets a slot among B; slots that stay unused add zeros to class 0.
    """
    num_classes = len(state["counts"])
    if not len(rows):
        return state
    if num_classes <= ONE_HOT_CLASSES:
        return combine(state, summarise(rows, index, num_classes, keep))
    rows, index, weight, refused = clean_batch(rows, index, num_classes, keep)
    ordered, order = index.sort(stable=True)
    rows, weight = rows[order], weight[order]
    slot = torch.cat([ordered.new_zeros(1), (ordered[1:] != ordered[:-1]).to(torch.int64)]).cumsum(0)
    counts = torch.zeros_like(weight).index_add_(0, slot, weight)
    base = rows[:1]
    gaps = torch.zeros_like(rows).index_add_(0, slot, (rows - base) * weight[:, None]) / counts.clamp_min(1.0)[:, None]
    owner = torch.zeros_like(ordered).index_copy_(0, slot, ordered)  # the class of a slot
    residuals = (rows - base - gaps[slot]) * weight[:, None]
    squares = torch.zeros_like(weight).index_add_(0, slot, square_norms(residuals))
    before, used = state["counts"][owner], counts > 0
    share = counts / (before + counts).clamp_min(1.0)
    steps = torch.where(used[:, None], base + gaps - state["means"][owner], 0.0)
    lifted = (before * share).sqrt()[:, None] * steps
    state["scatter"] += residuals.T @ residuals + lifted.T @ lifted
    state["squares"].index_add_(0, owner, squares + square_norms(lifted))
    state["means"].index_add_(0, owner, share[:, None] * steps)
    state["counts"].index_add_(0, owner, counts)
    state["refused"] += refused
    return state


def combine(left: dict[str, Tensor], right: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state of two sets of samples together."""
    counts = left["counts"] + right["counts"]
    share = right["counts"] / counts.clamp_min(1.0)
    gaps = right["means"] - left["means"]
    pull = left["counts"] * share  # n_l n_r / (n_l + n_r)
    lifted = pull.sqrt()[:, None] * gaps
    return {
        "counts": counts,
        "means": left["means"] + share[:, None] * gaps,
        "scatter": left["scatter"] + right["scatter"] + lifted.T @ lifted,
        "squares": left["squares"] + right["squares"] + lifted.square().sum(1),
        "refused": left["refused"] + right["refused"],
    }


def refuse(rows: Tensor, index: Tensor, num_classes: int, keep: Tensor | None = None) -> None:
    """Raise for labels out of range, NaN and Inf; rows where `keep` is False are not looked at."""
    wrong = torch.stack([(index < 0) | (index >= num_classes), ~torch.isfinite(rows).all(1)])
    if keep is not None:
        wrong &= keep
    if not bool(wrong.any()):
        return
    unknown, broken = (part.nonzero().flatten().tolist() for part in wrong)
    if unknown:
        row = unknown[0]
        raise ValueError(f"labels: expected integers 0..{num_classes - 1}, got {int(index[row])} in row {row}")
    if broken:
        raise ValueError(f"features: NaN or Inf in {name_rows(broken)} of the batch (counted from 0)")
