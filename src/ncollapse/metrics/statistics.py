"""`ClassStatistics`: counts, class means and within-class scatter, one batch at a time, mergeable, always float64."""

from __future__ import annotations

from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .batches import check_features, check_labels, check_shape, name_rows, to_float64
from .collapse import Moments, span_means

STATE = ("counts", "means", "scatter", "squares", "refused")


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
        if num_classes < 1 or dim < 1:
            raise ValueError(f"num_classes and dim must be at least 1, got num_classes={num_classes}, dim={dim}")
        self.num_classes = num_classes
        self.dim = dim
        options: dict[str, Any] = {"dtype": torch.float64, "device": torch.device(device)}
        self.state: dict[str, Tensor] = {
            "counts": torch.zeros(num_classes, **options),
            "means": torch.zeros(num_classes, dim, **options),
            "scatter": torch.zeros(dim, dim, **options),  # summed over classes
            "squares": torch.zeros(num_classes, **options),  # sum of |h - mean|^2 by class
            "refused": torch.zeros(2, **options),  # samples with a wrong label, samples with NaN or Inf
        }

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
        self._combine(summarise(rows, index, self.num_classes))
        return self

    def merge(self, other: ClassStatistics) -> ClassStatistics:
        """Add another's samples; returns itself."""
        if (self.num_classes, self.dim) != (other.num_classes, other.dim):
            raise ValueError(
                f"other: statistics of {other.num_classes} classes in dimension {other.dim} do not fit "
                f"{self.num_classes} classes in dimension {self.dim}"
            )
        device = self.state["means"].device
        self._combine({name: value.to(device) for name, value in other.state.items()})
        return self

    def _combine(self, other: dict[str, Tensor]) -> None:
        self.state = combine(self.state, other)

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
        return self.state["scatter"]

    def check(self) -> None:
        """Raise ValueError if samples were refused; batches on a GPU are judged here."""
        labels, values = (int(count) for count in self.state["refused"].tolist())
        if labels:
            raise ValueError(f"labels: {labels} samples had labels outside 0..{self.num_classes - 1}")
        if values:
            raise ValueError(f"features: {values} samples held NaN or Inf")

    def moments(self) -> Moments:
        """What the collapse metrics take."""
        means, counts = self.means, self.state["counts"]
        total = counts.sum()
        if float(total) == 0:
            raise ValueError("statistics: no samples (N = 0); update them first")
        # around the first filled class: exact for features that share a large offset
        anchor = self.state["means"][int(counts.argmax())]
        offsets = self.state["means"] - anchor
        shift = (counts[:, None] * offsets).sum(0) / total
        centred = torch.where(counts[:, None] > 0, offsets - shift, torch.nan)
        basis = span_means(centred)
        inside = basis.T @ self.state["scatter"] @ basis
        variances = self.state["squares"] / counts
        return Moments(counts, means, anchor + shift, centred, variances, basis, inside)

    def save(self, path: str | PathLike[str]) -> None:
        """Write to a safetensors file."""
        from safetensors.torch import save_file

        self.check()
        save_file({name: value.cpu().contiguous() for name, value in self.state.items()}, str(path))

    @classmethod
    def load(cls, path: str | PathLike[str], device: str | torch.device = "cpu") -> ClassStatistics:
        """Read what `save` wrote."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            state = load_file(str(path), device=str(device))
        except SafetensorError as error:
            raise ValueError(f"{path}: not a readable .safetensors file ({error})") from None
        if set(state) != set(STATE) or state["means"].ndim != 2:
            raise ValueError(f"{path}: not class statistics; expected the tensors {', '.join(STATE)}")
        classes, dim = state["means"].shape
        made = cls(classes, dim, device)
        for name, value in made.state.items():
            if state[name].shape != value.shape or state[name].dtype != torch.float64:
                raise ValueError(f"{path}: {name} must be float64 of shape {tuple(value.shape)}")
        made.state = {name: state[name] for name in STATE}
        try:
            made.check()
        except ValueError as error:  # `save` writes none that fail
            raise ValueError(f"{path}: {error}") from None
        return made


def summarise(rows: Tensor, index: Tensor, num_classes: int, keep: Tensor | None = None) -> dict[str, Tensor]:
    """The state of one batch: float64 rows [B, d], int64 index [B]; nothing waits for the device.

    Samples with a wrong label, NaN or Inf are counted as refused and left out; where `keep` [B] is False they are left
    out silently.
    """
    known = (index >= 0) & (index < num_classes)
    finite = torch.isfinite(rows).all(1)
    wrong = torch.stack([~known, ~finite])
    good = known & finite
    if keep is not None:
        wrong, good = wrong & keep, good & keep
    good = good.to(torch.float64)[:, None]
    rows = torch.where(good > 0, rows, 0.0)
    marks = torch.zeros(len(rows), num_classes, dtype=torch.float64, device=rows.device)
    marks.scatter_(1, index.clamp(0, num_classes - 1)[:, None], good)
    counts = marks.sum(0)
    means = marks.T @ rows / counts.clamp_min(1.0)[:, None]
    residuals = rows - marks @ means
    return {
        "counts": counts,
        "means": means,
        "scatter": residuals.T @ residuals,
        "squares": marks.T @ residuals.square().sum(1),
        "refused": wrong.sum(1).to(torch.float64),
    }


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
