"""The classifier's last layer, z = W h - b: as plain tensors, as a trainable layer, as a fixed frame.

The bias is a threshold, as in the BCE paper. torch.nn.Linear adds its bias; `Head.from_linear` flips the sign. No other
code does.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncollapse.frames import simplex_etf

TWO_OUTPUTS = (
    "two classes are measured by two outputs, with the weights -w/2 and w/2 and the thresholds -b/2 and b/2 for a "
    "single logit w h - b"
)
"""What to do with a classifier of one output."""


@dataclass(frozen=True, eq=False)
class Head:
    """A weight [K, d] and a threshold bias [K] (None: no bias), tensors or arrays.

    >>> import torch
    >>> Head(torch.eye(2), torch.tensor([1.0, 0.0])).logits(torch.tensor([[3.0, 4.0]])).tolist()
    [[2.0, 4.0]]
    """

    weight: Tensor
    bias: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", torch.as_tensor(self.weight))
        if self.bias is not None:
            object.__setattr__(self, "bias", torch.as_tensor(self.bias))
        if self.weight.ndim != 2:
            raise ValueError(f"weight: expected the shape [K, d], got {list(self.weight.shape)}")
        if self.bias is not None and tuple(self.bias.shape) != (len(self.weight),):
            raise ValueError(
                f"bias: expected the shape [{len(self.weight)}] to fit weight, got {list(self.bias.shape)}"
            )

    @classmethod
    def from_linear(cls, linear: nn.Linear) -> Head:
        """Return a torch.nn.Linear's head, detached: the same weight, the bias with its sign flipped.

        >>> import torch
        >>> linear = torch.nn.Linear(3, 2)
        >>> torch.equal(Head.from_linear(linear).bias, -linear.bias)
        True
        """
        return cls(linear.weight.detach(), None if linear.bias is None else -linear.bias.detach())

    @classmethod
    def of(cls, source: object) -> Head:
        """Return the detached head of a Head, LinearHead, ETFHead, torch.nn.Linear or pair (weight, threshold)."""
        if isinstance(source, nn.Linear):
            return cls.from_linear(source)
        if isinstance(source, Head | LinearHead | ETFHead):
            weight, bias = source.weight, source.bias
        elif isinstance(source, tuple | list) and len(source) == 2:
            pair = cls(*source)
            weight, bias = pair.weight, pair.bias
        else:
            raise TypeError(
                "head: expected a Head, LinearHead, ETFHead, torch.nn.Linear or a pair (weight, bias), "
                f"got {type(source).__name__}"
            )
        return cls(weight.detach(), None if bias is None else bias.detach())

    @property
    def num_classes(self) -> int:
        """K, the number of rows of the weight."""
        return int(self.weight.shape[0])

    @property
    def dim(self) -> int:
        """d, the dimension of the features."""
        return int(self.weight.shape[1])

    def logits(self, features: Tensor) -> Tensor:
        """Return W h - b for features [..., d]."""
        return F.linear(features, self.weight, None if self.bias is None else -self.bias)


class LinearHead(nn.Module):
    """Trainable z = W h - b; weight and bias start uniform in +-1/sqrt(d), as in torch.nn.Linear.

    Args:
        dim: d, the dimension of the features.
        num_classes: K.
        bias: False leaves the bias out.
        bias_init: a number is added to the uniform start (the mean of the initial bias, bce-vs-ce Sec. 4); K numbers
            replace it; {"prior": counts} sets the thresholds at which zero features give the class frequencies
            pi: log((1 - pi_k)/pi_k) for sigmoids, -log pi_k if the loss of `problem` is a softmax; "theory"
            sets the optimal bias that theory predicts for `problem`, with fewer dimensions than classes as a minimiser
            finds it.
        problem: what `ncollapse.predict` takes; needed for "theory".

    >>> import torch
    >>> LinearHead(3, 2, bias_init=[1.0, 2.0]).bias.tolist()
    [1.0, 2.0]
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        bias: bool = True,
        bias_init: float | str | Sequence[float] | Tensor | Mapping[str, Any] = 0.0,
        problem: Any = None,
    ) -> None:
        super().__init__()
        _check_size("dim", dim, 1)
        _check_size("num_classes", num_classes, 2)
        _check_start(bias, bias_init)
        bound = 1.0 / math.sqrt(dim)
        self.weight = nn.Parameter(torch.empty(num_classes, dim).uniform_(-bound, bound))
        if bias:
            start = torch.empty(num_classes).uniform_(-bound, bound)
            self.bias = nn.Parameter(_start_bias(start, bias_init, problem, dim))
        else:
            self.register_parameter("bias", None)

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight, None if self.bias is None else -self.bias)

    def extra_repr(self) -> str:
        return f"dim={self.weight.shape[1]}, num_classes={self.weight.shape[0]}, bias={self.bias is not None}"


class ETFHead(nn.Module):
    """Fixed head for any d >= K - 1: W = scale times a simplex ETF of unit vectors, turned at random (torch's seed).

    `learnable_scale` makes the scale a parameter; `bias` adds a trainable threshold, initially 0. `bias_init` and
    `problem` are LinearHead's; a number is where all thresholds start.

    >>> ETFHead(5, 4, scale=2.0).weight.norm(dim=1).round(decimals=4).tolist()
    [2.0, 2.0, 2.0, 2.0]
    """

    frame: Tensor
    scale: Tensor
    bias: nn.Parameter | None

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        scale: float = 1.0,
        learnable_scale: bool = False,
        bias: bool = False,
        bias_init: float | str | Sequence[float] | Tensor | Mapping[str, Any] = 0.0,
        problem: Any = None,
    ) -> None:
        super().__init__()
        _check_size("dim", dim, 1)
        _check_size("num_classes", num_classes, 2)
        _check_start(bias, bias_init)
        if not (math.isfinite(scale) and scale > 0.0):
            raise ValueError(f"scale: expected a finite number > 0, got {scale!r}")
        dtype = torch.get_default_dtype()
        self.register_buffer("frame", simplex_etf(num_classes, dim, generator=torch.default_generator, dtype=dtype))
        size = torch.tensor(float(scale), dtype=dtype)
        if learnable_scale:
            self.scale = nn.Parameter(size)
        else:
            self.register_buffer("scale", size)
        start = _start_bias(torch.zeros(num_classes), bias_init, problem) if bias else None
        self.register_parameter("bias", None if start is None else nn.Parameter(start))

    @property
    def weight(self) -> Tensor:
        """The weight [K, d], scale times the frame."""
        return self.scale * self.frame

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight, None if self.bias is None else -self.bias)

    def extra_repr(self) -> str:
        learnable = isinstance(self.scale, nn.Parameter)
        return f"dim={self.frame.shape[1]}, num_classes={self.frame.shape[0]}, learnable_scale={learnable}"


def decay(
    head: Head | LinearHead | ETFHead | nn.Linear,
    features: Tensor | None = None,
    weight_decay: float = 0.0,
    feature_decay: float = 0.0,
    bias_decay: float = 0.0,
) -> Tensor:
    """Return lambda_W/2 |W|^2 + lambda_H/2 |H|^2 + lambda_b/2 |b|^2 (bce-vs-ce Eq. 3), to add to the loss.

    The feature term sums over the batch, so that it acts as n = batch/K samples a class. In float32 at least, also
    under autocast.

    >>> import torch
    >>> decay(Head(torch.eye(2)), torch.ones(3, 2), weight_decay=0.1, feature_decay=0.01)
    tensor(0.1300)
    """
    if isinstance(head, Tensor):
        raise TypeError("head: expected a Head, LinearHead, ETFHead or torch.nn.Linear, got Tensor")
    if feature_decay and features is None:
        raise ValueError(f"features are needed for feature_decay={feature_decay}")
    for name, value in (("weight", weight_decay), ("feature", feature_decay), ("bias", bias_decay)):
        if not 0 <= value < math.inf:
            raise ValueError(f"{name}_decay: expected a finite number >= 0, got {value!r}")
    total = torch.zeros((), device=head.weight.device)
    for strength, part in ((weight_decay, head.weight), (feature_decay, features), (bias_decay, head.bias)):
        if strength and part is not None:
            wide = part.float() if part.dtype in (torch.float16, torch.bfloat16) else part
            total = total + 0.5 * strength * wide.square().sum()
    return total


_BIAS_RULES: dict[str, Callable[[Any], float]] = {}


def register_bias_rule(name: str, rule: Callable[[Any], float]) -> None:
    """Make `bias_init=name` start all thresholds at `rule(problem)`. `ncollapse.theory` registers "theory".

    The rule is handed in from above because heads do not import the theory, which imports them.
    """
    _BIAS_RULES[name] = rule


def _check_size(name: str, value: Any, least: int) -> None:
    try:
        fits = operator.index(value) >= least
    except TypeError:
        raise TypeError(f"{name}: expected a whole number, got {value!r}") from None
    if not fits:
        raise ValueError(f"{name}: expected at least {least}, got {value}")


def _check_start(bias: bool, bias_init: Any) -> None:
    if not bias and not (isinstance(bias_init, int | float) and bias_init == 0):
        raise ValueError(f"bias_init={bias_init!r} needs a bias, but bias=False")


def _start_bias(start: Tensor, bias_init: Any, problem: Any, dim: int | None = None) -> Tensor:
    """Return the initial thresholds [K]; see `LinearHead`. `dim` is that of the head where its rows are free."""
    if problem is not None and not hasattr(problem, "loss"):
        raise TypeError(f"problem: expected a Problem, got {type(problem).__name__}")
    if bias_init is None:
        raise ValueError("bias_init: expected a number, K numbers, {'prior': counts} or 'theory', got None")
    if isinstance(bias_init, int | float):
        if not math.isfinite(bias_init):
            raise ValueError(f"bias_init: expected a finite number, got {bias_init}")
        return start + float(bias_init)
    if isinstance(bias_init, str):
        if bias_init != "theory" and bias_init not in _BIAS_RULES:
            raise ValueError(
                f"bias_init: expected a number, K numbers, {{'prior': counts}} or 'theory', got {bias_init!r}"
            )
        if problem is None:
            raise ValueError(f"bias_init={bias_init!r} needs a problem: the loss, the classes and the decays")
        if problem.num_classes != len(start):
            raise ValueError(f"problem has num_classes={problem.num_classes}, but the head num_classes={len(start)}")
        if problem.dim is None and dim is not None and dim < len(start):
            problem = problem.replace(dim=dim)
        return torch.full_like(start, float(_BIAS_RULES[bias_init](problem)))
    if isinstance(bias_init, Mapping):
        if set(bias_init) != {"prior"}:
            raise ValueError(f"bias_init: expected {{'prior': counts}}, got keys {sorted(bias_init)}")
        counts = torch.as_tensor(bias_init["prior"], dtype=torch.float64)
        if counts.shape != start.shape or not bool((counts.isfinite() & (counts > 0)).all()):
            raise ValueError(f"bias_init: expected {len(start)} numbers > 0 as the prior, got {counts.tolist()}")
        share = counts / counts.sum()
        softmax = problem is not None and problem.loss.contrastive
        return (-share.log() if softmax else -share.logit()).to(start)
    values = torch.as_tensor(bias_init, dtype=start.dtype)
    if values.ndim and values.shape != start.shape:
        raise ValueError(f"bias_init: expected one number for each of {len(start)} classes, got {list(values.shape)}")
    if not bool(values.isfinite().all()):
        raise ValueError(f"bias_init: expected finite numbers, got {values.tolist()}")
    return values.clone() if values.ndim else start + values
