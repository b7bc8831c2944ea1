"""Every loss with the twins it must agree with: the parameters of the contract suite."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

import ncollapse as nc
from ncollapse.losses import functional
from reference import losses as twin


@dataclass(frozen=True)
class Case:
    id: str
    cls: type
    function: Callable[..., Tensor]
    value: Callable[[list[float], list[float]], float]
    gradient: Callable[[list[float], list[float]], list[float]]
    params: dict[str, Any] = field(default_factory=dict)
    num_classes: int = 5

    def make(self, **kwargs):
        return self.cls(**self.params, **kwargs)

    def logits(self, z: Tensor) -> Tensor:
        """The loss's own input from logits [B, K]: the one-logit loss takes z_1 - z_0."""
        return z[:, 1] - z[:, 0] if self.cls is nc.BinaryLoss else z


def _case(id, cls, function, value, gradient, num_classes=5, **params):
    names = {"label_smoothing": "alpha"}
    twin_params = {names.get(name, name): v for name, v in params.items()}
    if cls is nc.MSELoss:
        return Case(id, cls, function, partial(value, **twin_params), gradient, params, num_classes)
    return Case(id, cls, function, partial(value, **twin_params), partial(gradient, **twin_params), params, num_classes)


CE = (nc.CELoss, functional.cross_entropy, twin.cross_entropy, twin.cross_entropy_gradient)
BCE = (nc.BCELoss, functional.binary_cross_entropy, twin.binary_cross_entropy, twin.binary_cross_entropy_gradient)
FOCAL = (nc.FocalLoss, functional.focal, twin.focal, twin.focal_gradient)
LS = (nc.LabelSmoothingLoss, functional.label_smoothing, twin.cross_entropy, twin.cross_entropy_gradient)
BINARY = (nc.BinaryLoss, functional.binary, twin.cross_entropy, twin.cross_entropy_gradient)


def _quadratic(positive, goal, negative):
    return partial(twin.quadratic_gradient, positive=positive, goal=goal, negative=negative)


CASES = [
    _case("ce", *CE),
    _case("ce-smoothed", *CE, label_smoothing=0.2),
    _case("bce", *BCE),
    _case("bce-smoothed", *BCE, label_smoothing=0.2),
    _case("focal-0", *FOCAL, gamma=0.0),
    _case("focal-0.3", *FOCAL, gamma=0.3),
    _case("focal-1", *FOCAL, gamma=1.0),
    _case("focal-3", *FOCAL, gamma=3.0),
    _case("ls", *LS, alpha=0.1),
    _case("mse", nc.MSELoss, functional.mse, twin.mse, _quadratic(1.0, 1.0, 1.0)),
    _case("mse-alpha", nc.MSELoss, functional.mse, twin.mse_alpha, _quadratic(5.0, 3.0, 1.0), alpha=5.0, M=3.0),
    _case("mse-kappa", nc.MSELoss, functional.mse, twin.mse_kappa, _quadratic(4.0, 15.0, 2.0), kappa=2.0, beta=15.0),
    _case(
        "mse-mean",
        nc.MSELoss,
        functional.mse,
        twin.mse_kappa,
        _quadratic(2.0 / 5, 15.0, 2.0 / 5),
        kappa=1.0,
        beta=15.0,
        class_reduction="mean",
    ),
    _case("binary", *BINARY, num_classes=2),
]


def make_batch(
    case: Case, batch: int = 7, *, scale: float = 3.0, soft: bool = False, dtype=torch.float64, seed: int = 0
):
    """Return logits [B, K], the target given to the loss, and the target as rows [B, K]."""
    generator = torch.Generator().manual_seed(seed)
    z = scale * torch.randn(batch, case.num_classes, generator=generator, dtype=dtype)
    if soft:
        rows = torch.rand(batch, case.num_classes, generator=generator, dtype=dtype)
        rows = rows / rows.sum(1, keepdim=True)
        return z, rows, rows
    index = torch.randint(case.num_classes, (batch,), generator=generator)
    return z, index, torch.nn.functional.one_hot(index, case.num_classes).to(dtype)
