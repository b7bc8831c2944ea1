"""`Problem`: the objective whose minimum the theory describes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ncollapse.losses import Loss, make_loss
from ncollapse.theory.mixing import Mixing

FEATURES = ("free", "relu")
Array = NDArray[np.float64]
ADDED_LATER = ("targets", "target_counts", "logit_offset", "mixing")  # in the dictionary form only when set
MOST_GROUPS = 20_000  # target rows up to which a `Mixing` is written out
LEAST_DECAY, MOST_DECAY = 1e-200, 1e100  # beyond, ratios and derivatives leave the range of float64


class Groups(NamedTuple):
    """The samples of a problem, grouped by their target row. At an optimum the samples of a group share their feature.

    targets [G, K]: the target rows, one-hot for plain classes. counts [G]: the samples that the feature decay counts.
    shares [G]: the weights in the mean loss, which sum to 1. labels [G]: the classes of one-hot rows, else None.
    """

    targets: Array
    counts: Array
    shares: Array
    labels: NDArray[np.int64] | None


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Problem:
    """An unconstrained feature model: the last layer (W, H, b) alone, its features free or non-negative.

        f(W, H, b) = 1/N sum_ki L(W h_ki - b, k) + weight_decay/2 |W|^2 + feature_decay/2 |H|^2 + bias_decay/2 |b|^2

    (bce-vs-ce Eq. 3, all-losses Eq. 4, imbalanced-relu Eq. 4, mse-landscape Eq. 2), with L the loss of one sample,
    summed over classes. Give the number of samples one way: `per_class` (n for each class, may be fractional),
    `batch_size` (a feature decay that acts on batches of that size is the problem with n = batch/K), or `class_counts`.
    With `class_counts` and `batch_size` the counts are scaled to the batch; a count may be 0, and the logit of such a
    class remains. `features="relu"` means H >= 0, `dim=None` means d >= K, `bias=False` fixes b = 0 (and `bias_decay`
    then has no effect).

    Soft targets: `targets` [G, K] lists the target rows and `target_counts` [G] the number of samples with each,
    instead of `class_counts`. `mixing` is a law of target rows that treats all classes alike, as mixup and CutMix have
    it (`theory.mixing_law`), with `batch_size` or `per_class`. `logit_offset` [K] is added to the logits inside the
    loss (logit adjustment). Class weights are those of the loss object: `Problem(CELoss(weight=[...]), ...)`.

    >>> problem = Problem("bce", 10, batch_size=128, weight_decay=5e-4, feature_decay=5e-4, bias_decay=5e-4)
    >>> problem.per_class, round(problem.mu, 6)
    (12.8, 0.001789)
    """

    loss: Loss
    num_classes: int
    per_class: float
    batch_size: float | None
    class_counts: tuple[float, ...] | None
    dim: int | None
    weight_decay: float
    feature_decay: float
    bias_decay: float
    bias: bool
    features: str
    targets: tuple[tuple[float, ...], ...] | None
    target_counts: tuple[float, ...] | None
    logit_offset: tuple[float, ...] | None
    mixing: Mixing | None

    def __init__(
        self,
        loss: str | Loss = "ce",
        num_classes: int | None = None,
        *,
        weight_decay: float,
        feature_decay: float,
        bias_decay: float = 0.0,
        per_class: float | None = None,
        batch_size: float | None = None,
        class_counts: Sequence[float] | None = None,
        dim: int | None = None,
        bias: bool = True,
        features: str = "free",
        targets: Any = None,
        target_counts: Sequence[float] | None = None,
        logit_offset: Sequence[float] | None = None,
        mixing: Mixing | None = None,
        **loss_params: Any,
    ) -> None:
        counts = None if class_counts is None else _check_counts("class_counts", class_counts)
        rows, row_counts = _check_targets(targets, target_counts)
        if rows is not None and num_classes is None:
            num_classes = len(rows[0])
        if mixing is not None:
            num_classes = _check_mixing(mixing, num_classes, counts, rows, logit_offset)
        classes = _check_classes(num_classes, counts)
        if rows is not None and (counts is not None or per_class is not None or len(rows[0]) != classes):
            raise ValueError("targets: expected one column a class and target_counts instead of other counts")
        _check_sizes(per_class, batch_size, counts if rows is None else row_counts)
        if logit_offset is not None:
            logit_offset = tuple(float(value) for value in logit_offset)
            if len(logit_offset) != classes or not all(map(math.isfinite, logit_offset)):
                raise ValueError(f"logit_offset: expected {classes} finite numbers, got {logit_offset}")
        if dim is not None:
            dim = check_dim(dim, 1, " (or None for d >= K)")
        if features not in FEATURES:
            raise ValueError(f"features: expected one of {', '.join(FEATURES)}, got {features!r}")
        named = ", ".join(f"{name}={value!r}" for name, value in loss_params.items() if value is not None)
        if isinstance(loss, Loss) and named:
            raise TypeError(f"loss is {loss} already; to change it give its name too: loss={loss.name!r}, {named}")
        made = make_class_loss(loss, weighted=True, **loss_params)
        if made.weight is not None and len(made.weight) != classes:
            raise ValueError(f"loss has {len(made.weight)} class weights, but num_classes is {classes}")
        if type(bias).__name__ not in ("bool", "bool_"):  # Python's or numpy's; None and "no" are neither
            raise TypeError(f"bias: expected True or False, got {bias!r}")
        decays = {"weight_decay": weight_decay, "feature_decay": feature_decay, "bias_decay": bias_decay}
        for name, value in decays.items():
            if not math.isfinite(check_number(name, value)) or value < 0:
                raise ValueError(f"{name}: expected a finite number that is not negative, got {value}")
        for name in ("weight_decay", "feature_decay"):
            if decays[name] == 0:
                raise ValueError(
                    f"{name} is 0: the minimum is then reached only at infinity (shrinking the other factor costs "
                    f"nothing), so there is no optimum to predict; give a positive {name}"
                )
        for name, value in decays.items():
            check_range(name, value)
        if batch_size is not None:
            size = float(batch_size) / classes
        else:
            size = float(per_class) if per_class is not None else sum(counts or row_counts or ()) / classes
        values = {
            "loss": made,
            "num_classes": classes,
            "per_class": size,
            "batch_size": None if batch_size is None else float(batch_size),
            "class_counts": counts,
            "dim": dim,
            **{name: float(value) for name, value in decays.items()},
            "bias": bool(bias),
            "features": features,
            "targets": rows,
            "target_counts": row_counts,
            "logit_offset": logit_offset,
            "mixing": mixing,
        }
        for field, item in values.items():
            object.__setattr__(self, field, item)

    @property
    def leaves_bias_free(self) -> bool:
        """Whether the mean of the bias changes nothing, so that any is optimal: score differences alone, no decay."""
        return self.loss.contrastive and self.bias_decay == 0

    @property
    def mu(self) -> float:
        """sqrt(n weight_decay feature_decay), the one number through which n and the two decays act."""
        # the factors one by one: their product may underflow
        return math.sqrt(self.per_class) * math.sqrt(self.weight_decay) * math.sqrt(self.feature_decay)

    @property
    def balance(self) -> float:
        """sqrt(n feature_decay / weight_decay): W W^T is that times |Z| at the optimum, Z the class logits."""
        return math.sqrt(self.per_class) * math.sqrt(self.feature_decay) / math.sqrt(self.weight_decay)

    @cached_property
    def counts(self) -> tuple[float, ...]:
        """The number of samples of each class that the feature decay sees (of a batch, where `batch_size` is given)."""
        if self.class_counts is None:
            return (self.per_class,) * self.num_classes
        scale = self.per_class * self.num_classes / sum(self.class_counts)
        return tuple(count * scale for count in self.class_counts)

    @property
    def class_weights(self) -> NDArray[np.float64]:
        """The weights of the classes in the loss, [K]; 1 without."""
        if self.loss.weight is None:
            return np.ones(self.num_classes)
        return np.asarray(self.loss.weight.detach().double().cpu())

    def weigh(self, targets: Array) -> Array:
        """The weights [G] of samples with the target rows [G, K]: sum_k y_k weight_k, or 1 without class weights."""
        return np.ones(len(targets)) if self.loss.weight is None else np.asarray(targets @ self.class_weights)

    @property
    def shares(self) -> tuple[float, ...]:
        """The weights of the classes in the mean loss; they sum to 1."""
        weighted = np.asarray(self.counts) * self.class_weights
        return tuple((weighted / weighted.sum()).tolist())

    @cached_property
    def groups(self) -> Groups:
        """The samples grouped by target row; classes without samples have none."""
        if self.mixing is not None:
            if len(self.mixing.own) * self.num_classes**2 > MOST_GROUPS:
                raise ValueError(
                    f"mixing: {len(self.mixing.own)} levels of {self.num_classes} classes are too many target rows to "
                    "write out; predict(problem) solves them by symmetry"
                )
            targets, chances = self.mixing.enumerate()
            counts = chances * (self.per_class * self.num_classes)
            weighted = chances * self.weigh(targets)
            return Groups(targets, counts, weighted / weighted.sum(), None)
        if self.targets is not None and self.target_counts is not None:
            targets, counts = np.array(self.targets), np.array(self.target_counts)
            counts = counts * (self.per_class * self.num_classes / counts.sum())
            weighted = counts * self.weigh(targets)
            return Groups(targets, counts, weighted / weighted.sum(), None)
        labels = np.flatnonzero(self.counts)
        counts = np.array(self.counts)[labels]
        return Groups(np.eye(self.num_classes)[labels], counts, np.array(self.shares)[labels], labels)

    @cached_property
    def balanced(self) -> bool:
        """Whether every class has the same number of samples and the same weight in the loss."""
        plain = self.targets is None and self.logit_offset is None and self.mixing is None
        equal = self.class_counts is None or len(set(self.class_counts)) == 1
        return plain and equal and (self.loss.weight is None or len(set(self.class_weights.tolist())) == 1)

    @property
    def soft(self) -> bool:
        """Whether targets are rows rather than classes: labels alone then do not say what was minimised."""
        return self.targets is not None or self.mixing is not None

    @property
    def loss_params(self) -> dict[str, float]:
        """What distinguishes the loss from others of its name."""
        return dict(self.loss.params())

    def replace(self, **changes: Any) -> Problem:
        """The same problem with some arguments changed."""
        counted = ("batch_size", "class_counts", "targets", "target_counts")
        sizes: dict[str, Any] = {name: getattr(self, name) for name in counted}
        if self.batch_size is None and self.class_counts is None and self.targets is None:
            sizes = {"per_class": self.per_class}
        if changes.keys() & {"per_class", *counted}:
            sizes = {}
        decays = ("weight_decay", "feature_decay", "bias_decay")
        rest = (*decays, "dim", "bias", "features", "num_classes", "loss", "logit_offset", "mixing")
        return Problem(**{**{name: getattr(self, name) for name in rest}, **sizes, **changes})

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the loss as its name and parameters."""
        return {
            "loss": self.loss.name,
            "loss_params": self.loss_params,
            **({} if self.loss.weight is None else {"loss_weight": self.loss.weight.tolist()}),
            "num_classes": self.num_classes,
            "per_class": self.per_class,
            "batch_size": self.batch_size,
            "class_counts": self.class_counts,
            "dim": self.dim,
            "weight_decay": self.weight_decay,
            "feature_decay": self.feature_decay,
            "bias_decay": self.bias_decay,
            "bias": self.bias,
            "features": self.features,
            **{
                name: asdict(value) if isinstance(value, Mixing) else value
                for name in ADDED_LATER
                if (value := getattr(self, name)) is not None
            },
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(repr(self.to_dict()))

    def __repr__(self) -> str:
        return f"Problem({', '.join(f'{name}={value!r}' for name, value in self.to_dict().items())})"


def check_dim(dim: int, least: int, alternative: str = "") -> int:
    """A dimension as an int, if it is a whole number of at least `least`."""
    if not is_whole(dim) or dim < least:
        raise ValueError(f"dim: expected a whole number of at least {least}{alternative}, got {dim!r}")
    return int(dim)


def check_range(name: str, decay: float) -> None:
    """Refuse a decay, other than 0, so small or so large that float64 arithmetic fails."""
    if decay and not LEAST_DECAY <= decay <= MOST_DECAY:
        raise ValueError(f"{name}: expected a number between {LEAST_DECAY:g} and {MOST_DECAY:g}, got {decay:g}")


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number; text is none."""
    try:
        return not isinstance(value, str) and float(value).is_integer()
    except TypeError:
        return False


def check_number(name: str, value: float) -> float:
    """The size of a number; a TypeError with its name for anything else."""
    try:
        return math.fabs(value)
    except TypeError:
        raise TypeError(f"{name}: expected a number, got {value!r}") from None


def _check_mixing(mixing: Mixing, num_classes: int | None, *others: object) -> int:
    """The number of classes of a law of targets, if nothing else contradicts it."""
    if not isinstance(mixing, Mixing):
        raise TypeError(f"mixing: expected a Mixing, as theory.mixing_law returns, got {mixing!r}")
    if any(other is not None for other in others):
        raise ValueError("mixing: expected neither class_counts, targets nor logit_offset besides, got one of them")
    if num_classes is not None and num_classes != mixing.num_classes:
        raise ValueError(f"mixing: expected a law of {num_classes} classes, got one of {mixing.num_classes}")
    return mixing.num_classes


def _check_counts(name: str, values: Sequence[float]) -> tuple[float, ...]:
    try:
        counts = tuple(float(count) for count in values)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: expected numbers, one for each class, got {values!r}") from None
    for index, count in enumerate(counts):
        if not math.isfinite(count) or count < 0:
            raise ValueError(f"{name} must not be negative: class {index} has {count:g}")
    if not any(counts):
        raise ValueError(f"{name} must not all be 0")
    return counts


def _check_targets(
    targets: Any, counts: Sequence[float] | None
) -> tuple[tuple[tuple[float, ...], ...] | None, tuple[float, ...] | None]:
    """Target rows and their counts, equal rows put together; (None, None) without."""
    if (targets is None) != (counts is None):
        raise ValueError("targets and target_counts belong together: give both or none")
    if targets is None or counts is None:
        return None, None
    rows, sizes = np.asarray(targets, dtype=np.float64), np.asarray(_check_counts("target_counts", counts))
    if rows.ndim != 2 or len(rows) != len(sizes) or rows.shape[1] < 2:
        raise ValueError(f"targets: expected shape [G, K] with G = {len(sizes)} target_counts, got {list(rows.shape)}")
    if not (np.isfinite(rows).all() and (rows >= 0).all()):
        raise ValueError("targets: expected finite numbers that are not negative")
    kept, inverse = np.unique(rows, axis=0, return_inverse=True)
    merged = np.bincount(inverse.ravel(), weights=sizes)
    present = merged > 0
    return tuple(map(tuple, kept[present].tolist())), tuple(merged[present].tolist())


def _check_classes(num_classes: int | None, counts: tuple[float, ...] | None) -> int:
    if num_classes is None:
        if counts is None:
            raise ValueError("num_classes is missing: give it, or class_counts")
        num_classes = len(counts)
        if num_classes < 2:
            raise ValueError(f"class_counts: expected the samples of at least 2 classes, got {num_classes} entry")
    if not is_whole(num_classes) or num_classes < 2:
        raise ValueError(f"num_classes: expected a whole number of at least 2, got {num_classes!r}")
    if counts is not None and len(counts) != num_classes:
        raise ValueError(f"class_counts has {len(counts)} entries but num_classes is {num_classes}")
    return int(num_classes)


def make_class_loss(loss: str | Loss, *, weighted: bool = False, **params: Any) -> Loss:
    """The loss of that name, or the object itself, if it has one logit a class (and no class weights)."""
    made = make_loss(loss, **params)
    if made.name == "binary":
        raise ValueError("loss: expected one logit a class, got BinaryLoss, which has one for both")
    if made.weight is not None and not weighted:
        raise ValueError("loss: expected no class weights here, since the loss of a single sample has none")
    return made


def _check_sizes(per_class: float | None, batch_size: float | None, counts: tuple[float, ...] | None) -> None:
    for name, value in (("per_class", per_class), ("batch_size", batch_size)):
        if value is not None and (not math.isfinite(check_number(name, value)) or value <= 0):
            raise ValueError(f"{name}: expected a positive number, got {value}")
    if per_class is not None and (batch_size is not None or counts is not None):
        raise ValueError("per_class, batch_size and class_counts say the same thing: give one (or counts with a batch)")
    if per_class is None and batch_size is None and counts is None:
        raise ValueError("the number of samples is missing: give per_class, batch_size or class_counts")
