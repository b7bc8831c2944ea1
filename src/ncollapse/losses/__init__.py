"""Classification losses with one signature, each summed over the classes and averaged over the samples.

One file a loss: its function, its Module, its parameters and the forms that the theory uses. `base.register` makes a
loss known by name; this module imports the built-in ones.
"""

# ruff: noqa: I001  (the order of these imports is the order of LOSS_NAMES)
from ncollapse.losses.base import LOSS_NAMES, Loss, ScalarLoss, is_loss_name, make_loss, register
from ncollapse.losses.cross_entropy import CELoss
from ncollapse.losses.binary_cross_entropy import BCELoss
from ncollapse.losses.focal import FocalLoss
from ncollapse.losses.label_smoothing import LabelSmoothingLoss
from ncollapse.losses.mse import MSELoss
from ncollapse.losses.one_logit import BinaryLoss
from ncollapse.losses.forms import ContrastiveForm, ConvexForm, SeparableForm, Transition
from ncollapse.losses.contrastive_check import ContrastiveCheck, check_contrastive
from ncollapse.losses import functional

__all__ = [
    "LOSS_NAMES",
    "BCELoss",
    "BinaryLoss",
    "CELoss",
    "ContrastiveCheck",
    "ContrastiveForm",
    "ConvexForm",
    "FocalLoss",
    "LabelSmoothingLoss",
    "Loss",
    "MSELoss",
    "ScalarLoss",
    "SeparableForm",
    "Transition",
    "check_contrastive",
    "functional",
    "is_loss_name",
    "make_loss",
    "register",
]
