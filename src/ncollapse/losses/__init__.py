"""Classification losses with one signature, each summed over the classes and averaged over the samples."""

from ncollapse.losses import functional
from ncollapse.losses.base import Loss, ScalarLoss
from ncollapse.losses.contrastive import ContrastiveCheck, check_contrastive
from ncollapse.losses.modules import (
    LOSS_NAMES,
    BCELoss,
    BinaryLoss,
    CELoss,
    FocalLoss,
    LabelSmoothingLoss,
    MSELoss,
    make_loss,
)

__all__ = [
    "LOSS_NAMES",
    "BCELoss",
    "BinaryLoss",
    "CELoss",
    "ContrastiveCheck",
    "FocalLoss",
    "LabelSmoothingLoss",
    "Loss",
    "MSELoss",
    "ScalarLoss",
    "check_contrastive",
    "functional",
    "make_loss",
]
