"""The base class of the losses, and the registry that finds them by name.

A loss is one file: a subclass of `Loss` with the decorator `register("name")`. It needs `name`, `contrastive` and
`forward`. It may add the forms of `ncollapse.losses.forms`, from which `predict` and `certify` take closed forms and
bounds; everything else works without them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from ncollapse.losses.calls import split_call
from ncollapse.losses.forms import ContrastiveForm, ConvexForm, SeparableForm, unreduced
from ncollapse.losses.inputs import check_reduction
from ncollapse.plugins import import_plugin, is_plugin

Scalar = float | NDArray[np.float64]
Array = NDArray[np.float64]


class ScalarLoss(NamedTuple):
    """A loss at (positive logit, common negative logit), with its two derivatives; floats, or arrays of one shape."""

    value: Scalar
    d_pos: Scalar
    d_neg: Scalar


class Loss(nn.Module):
    """Base of the losses: `loss(logits, target)` with the target as class indices [B] or soft [B, K].

    Args:
        weight: a weight for each class, [K]; a sample weighs sum_k y_k weight_k.
        reduction: "mean" (over the samples, weighted), "sum" or "none".

    Class attributes:
        name: how `make_loss`, recipes and the command line call the loss.
        contrastive: whether the loss depends on differences of logits alone.
    """

    name: ClassVar[str]
    contrastive: ClassVar[bool] = False
    weight: Tensor | None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not hasattr(cls, "name"):
            cls.name = cls.__name__  # until `register` gives another; without one, package.module:Class finds the loss

    def __init__(self, *, weight: Tensor | Sequence[float] | None = None, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction: str = check_reduction(reduction)
        if weight is not None:
            weight = torch.as_tensor(weight, dtype=torch.get_default_dtype())
            if weight.ndim != 1 or not bool((weight.isfinite() & (weight >= 0)).all()) or not bool(weight.any()):
                raise ValueError(f"weight: expected one finite number >= 0 a class, not all 0, got {weight.tolist()}")
        self.register_buffer("weight", weight)

    @property
    def convex(self) -> bool:
        """Whether the loss is convex in the logits."""
        return True

    def params(self) -> dict[str, Any]:
        """Return the parameters that distinguish this loss from others of its name."""
        return {}

    def value_and_gradient(self, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and its gradient [B, K] in the logits, both detached; the gradient of the sum for "none".

        This base method differentiates `forward`. A loss with a formula overrides it, because on a small batch
        autograd takes longer than the arithmetic.

        >>> from ncollapse import CELoss
        >>> CELoss().value_and_gradient(torch.zeros(1, 2), torch.tensor([0]))
        (tensor(0.6931), tensor([[-0.5000,  0.5000]]))
        """
        with torch.enable_grad():
            leaf = logits.detach().requires_grad_()
            value: Tensor = self(leaf, target)
            if not isinstance(value, Tensor):
                raise ValueError(f"loss: expected {self.name} to return a tensor, got {type(value).__name__}")
            (gradient,) = torch.autograd.grad(value.sum(), leaf)
        return value.detach(), gradient

    def at(self, pos: ArrayLike, neg: ArrayLike, num_classes: int) -> ScalarLoss:
        """Return the loss of one sample whose target logit is `pos` and whose K - 1 other logits all equal `neg`.

        The derivatives are those of the value as a function of the two numbers: `d_neg` is the total derivative, the
        sum over the K - 1 negative logits. Computed in float64; arrays broadcast. Class weights do not enter.
        """
        if num_classes < 2:
            raise ValueError(f"num_classes: expected at least 2, got {num_classes}")
        p, n = np.broadcast_arrays(np.asarray(pos, dtype=np.float64), np.asarray(neg, dtype=np.float64))
        value, slopes = self.evaluate_groups(np.stack([p, n], axis=-1), np.array([1.0, num_classes - 1.0]))
        parts = (value, slopes[..., 0], slopes[..., 1])
        return ScalarLoss(*(float(part) if p.ndim == 0 else np.asarray(part) for part in parts))

    def evaluate_groups(self, z: Array, sizes: Array) -> tuple[Array, Array]:
        """Return the loss of samples whose logits are equal within groups, and its total slope in each group.

        z [..., G] holds one logit for each group, `sizes` [G] the number of classes in it; the first group is the
        target class alone. This base method writes out all K logits and differentiates `forward`; a loss with a formula
        overrides it.
        """
        members = np.repeat(np.arange(len(sizes)), sizes.astype(int))
        flat = np.ascontiguousarray(z[..., members]).reshape(-1, len(members))
        target = torch.zeros(len(flat), dtype=torch.long)
        values, gradient = unreduced(self).value_and_gradient(torch.from_numpy(flat), target)
        slopes = gradient.numpy() @ np.eye(len(sizes))[members]
        return values.numpy().reshape(z.shape[:-1]), slopes.reshape(z.shape)

    def evaluate_labels(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses [B] at logits [B, K] and labels [B], without class weights, and their gradients [B, K].

        This base method differentiates `forward`; a loss with a formula overrides it.
        """
        return unreduced(self).value_and_gradient(logits, labels)

    def phi(self, t: ArrayLike, num_classes: int) -> Scalar:
        """Return the contrastive bound phi of all-losses Def. 1.

        L(z, y_k) >= phi(t) with t = sum_{j != k} (z_j - z_k), and equality only where all z_j, j != k, are equal.

        On such z the loss is a function of t alone, so phi(t) is the loss at pos - neg = -t/(K - 1).
        """
        if not self.contrastive:
            raise NotImplementedError(
                f"{self.name} has no contrastive bound: it depends on more than score differences"
            )
        return self.at(-np.asarray(t, dtype=np.float64) / (num_classes - 1), 0.0, num_classes).value

    def convex_form(self, targets: Array) -> ConvexForm | None:
        """Return the conjugate for groups of samples with the target rows [G, K], None if there is none."""
        return None

    def separable_form(self, num_classes: int) -> SeparableForm | None:
        """Return the inverse slopes if the loss is a sum over the logits, else None."""
        return None

    def contrastive_form(self, num_classes: int) -> ContrastiveForm | None:
        """Return the optimal logit gap if the loss depends on logit differences alone and is convex, else None."""
        return ContrastiveForm(self, num_classes) if self.contrastive and self.convex else None

    def extra_repr(self) -> str:
        """Show the parameters, and what differs from the defaults."""
        shown = [
            f"{name}={value:g}" if isinstance(value, int | float) else f"{name}={value!r}"
            for name, value in self.params().items()
        ]
        if self.weight is not None:
            shown.append(f"weight={self.weight.tolist()}")
        if self.reduction != "mean":
            shown.append(f"reduction={self.reduction!r}")
        return ", ".join(shown)


_LOSSES: dict[str, type[Loss]] = {}
LOSS_NAMES = _LOSSES.keys()  # a live view: losses registered later are in it
_Class = TypeVar("_Class", bound=type[Loss])


def register(name: str) -> Callable[[_Class], _Class]:
    """Class decorator: make a loss available under `name` to `make_loss`, recipes and the command line."""

    def add(cls: _Class) -> _Class:
        if name in _LOSSES and _LOSSES[name] is not cls:
            raise ValueError(f"name: expected a new one, got {name!r}, which is {_LOSSES[name].__name__}")
        cls.name = name
        _LOSSES[name] = cls
        return cls

    return add


def unregister(name: str) -> None:
    """Remove a registered loss; for tests and interactive work."""
    del _LOSSES[name]


def is_loss_name(name: object) -> bool:
    """Whether `make_loss` takes a name: that of a registered loss, or package.module:Class for one of your own.

    Parameters may follow in brackets.

    >>> is_loss_name("bce"), is_loss_name("my_losses:HingeLoss(margin=2)"), is_loss_name("hinge")
    (True, True, False)
    """
    if not isinstance(name, str):
        return False
    try:
        base, _ = split_call(name)
    except ValueError:
        return False
    return base in _LOSSES or is_plugin(base)


def make_loss(loss: str | Loss, **params: Any) -> Loss:
    """Return the loss of that name, or the loss object itself; parameters that are None take the loss's default.

    A loss that is not registered is named by its class, package.module:Class. A name may have parameters in brackets.

    >>> from ncollapse.losses import make_loss
    >>> make_loss("focal", gamma=2), make_loss("focal(gamma=2)")
    (FocalLoss(gamma=2), FocalLoss(gamma=2))
    """
    params = {name: value for name, value in params.items() if value is not None}
    if isinstance(loss, Loss):
        if params:
            raise TypeError(f"a loss object takes no further parameters, got {', '.join(params)}")
        return loss
    if not is_loss_name(loss):
        raise ValueError(
            f"loss: expected one of {', '.join(LOSS_NAMES)}, package.module:Class or a loss object, got {loss!r}"
        )
    loss, called = split_call(loss)
    if twice := ", ".join(called.keys() & params.keys()):
        raise TypeError(f"loss {loss!r}: {twice} given twice, in the name and beside it")
    params |= called
    kind = _LOSSES[loss] if loss in _LOSSES else import_plugin(loss, "loss")
    if not (isinstance(kind, type) and issubclass(kind, Loss)):
        raise TypeError(f"loss: expected a subclass of ncollapse.Loss, got {loss!r}, which is {kind!r}")
    try:
        return kind(**params)
    except TypeError as error:
        known = ", ".join(_parameters(kind)) or "no parameters"
        raise TypeError(f"loss {loss!r}: expected {known}; {_shorten(str(error))}") from None


def _shorten(message: str) -> str:
    """What Python says of the arguments of a call, without the name of the function.

    >>> _shorten("CELoss.__init__() got an unexpected keyword argument 'gamma'")
    'got gamma'
    """
    text = message.partition("() ")[2] or message
    return re.sub(r"got an unexpected keyword argument '(\w+)'.*", r"got \1", text)


def _parameters(kind: type[Loss]) -> list[str]:
    """The parameters of a loss by name, without those that every loss has."""
    common = inspect.signature(Loss).parameters
    own = inspect.signature(kind).parameters.values()
    return [item.name for item in own if item.kind is not item.VAR_KEYWORD and item.name not in common]
