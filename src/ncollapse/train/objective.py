"""What a step minimises: the mean loss of a batch, plus the decays of the last layer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ncollapse.heads import ETFHead, LinearHead, decay
from ncollapse.losses import Loss
from ncollapse.models import Network
from ncollapse.train.last_layer import can_fuse_last_layer, fuse_last_layer
from ncollapse.train.recipe import DecaySpec


class Objective(nn.Module):
    """mean_B L(W h - b, y) + weight/2 |W|^2 + feature/2 |H_B|^2 + bias/2 |b|^2, of a whole batch spread over processes.

    Called with a share of the batch and the size of all of it, and averaged over `world` processes, the shares' values
    and gradients are those of the whole: means are weighted by the shares' sizes, and the feature decay, which sums
    over the batch, is multiplied by `world`. The trunk runs in `precision`, head and loss in float32.
    """

    def __init__(
        self,
        model: Network,
        loss: Loss,
        decays: DecaySpec,
        *,
        precision: str = "fp32",
        weight_decay: float = 0.0,
        world: int = 1,
    ) -> None:
        super().__init__()
        self.model, self.loss = model, loss
        self.precision, self.weight_decay, self.world = precision, weight_decay, world
        self.features: Callable[[Tensor], Tensor] = model.features
        self.set_decays(decays)

    def set_decays(self, decays: DecaySpec) -> None:
        """Add these decays to the loss from now on."""
        self.decays = decays
        self.decayed = decays.weight > 0 or decays.feature > 0 or decays.bias > 0

    def forward(self, x: Tensor, y: Tensor, size: int | None = None) -> tuple[Tensor, Tensor]:
        """(objective, mean loss) of this share of a batch of `size` samples."""
        try:
            with autocast(x.device, self.precision):
                features = self.features(x)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise ValueError(
                f"batch norm cannot train on a batch of {len(x)} sample: the last batch of an epoch is what "
                "optim.batch_size leaves of the samples; another optim.batch_size helps"
            ) from error
        features = features.float()
        share = 1.0 if size is None else len(x) * self.world / size
        whole = share == 1.0 and self.world == 1 and not self.weight_decay
        if whole and can_fuse_last_layer(self.model.head, self.loss, features, y):
            return fuse_last_layer(self.model.head, self.loss, self.decays, features, y)  # type: ignore[arg-type]
        logits = self.model.head(features)
        loss: Tensor = self.loss(logits, y)
        require_mean(self.loss, loss)
        if share != 1.0:
            loss = loss * share if share else logits.sum()
        total = loss
        if self.decayed:
            total = total + self.decay(features, self.model.head)
        if self.weight_decay:
            trainable = [p for p in self.model.parameters() if p.requires_grad]
            total = total + 0.5 * self.weight_decay * torch.stack([p.square().sum() for p in trainable]).sum()
        return total, loss.detach()

    def decay(self, features: Tensor, head: LinearHead | ETFHead) -> Tensor:
        """The decays of the last layer."""
        return decay(
            head,
            features,
            weight_decay=self.decays.weight,
            feature_decay=self.decays.feature * self.world,
            bias_decay=self.decays.bias,
        )


def require_mean(loss: Loss, value: Any) -> None:
    """Raise unless a loss, perhaps one of the user's own, returned a single number."""
    if not isinstance(value, Tensor) or value.ndim:
        found = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"loss: expected the mean of {loss.name} over the batch as a tensor of shape [], got {found}")


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """bfloat16 for the trunk where the recipe says so. Weights are cast at every use: a cache would outlive a graph."""
    if precision != "bf16" and not torch.is_autocast_enabled(device.type):
        return nullcontext()  # entering torch's takes as long as a layer of a small network
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)
