"""Measure, predict and steer neural collapse in PyTorch classifiers.

A classifier's last layer is a triple (W, H, b) with logits z = W h - b, and everything here is a function of it.

>>> import torch, ncollapse as nc
>>> nc.measure(torch.eye(3), torch.arange(3), weight=torch.eye(3)).nc1
0.0
>>> round(nc.predict("ce", num_classes=10, batch_size=128, weight_decay=5e-4, feature_decay=5e-4).positive_score, 2)
5.68
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ncollapse import compare as compare
    from ncollapse import data as data
    from ncollapse import features as features
    from ncollapse import frames as frames
    from ncollapse import heads as heads
    from ncollapse import losses as losses
    from ncollapse import metrics as metrics
    from ncollapse import models as models
    from ncollapse import papers as papers
    from ncollapse import report as report
    from ncollapse import runs as runs
    from ncollapse import sweep as sweep
    from ncollapse import theory as theory
    from ncollapse import train as train
    from ncollapse.heads import ETFHead, Head, LinearHead, decay
    from ncollapse.losses import (
        BCELoss,
        BinaryLoss,
        CELoss,
        FocalLoss,
        LabelSmoothingLoss,
        Loss,
        MSELoss,
        make_loss,
    )
    from ncollapse.metrics import ClassStatistics, Measurement, Spread, measure
    from ncollapse.metrics.streaming import NeuralCollapse
    from ncollapse.monitoring import Monitor, measure_layers, monitor
    from ncollapse.theory import Certificate, Prediction, Problem, certify, landscape, predict, solve

__version__ = "0.2.0"
__all__ = [
    "BCELoss",
    "BinaryLoss",
    "CELoss",
    "Certificate",
    "ClassStatistics",
    "ETFHead",
    "FocalLoss",
    "Head",
    "LabelSmoothingLoss",
    "LinearHead",
    "Loss",
    "MSELoss",
    "Measurement",
    "Monitor",
    "NeuralCollapse",
    "Prediction",
    "Problem",
    "Spread",
    "certify",
    "decay",
    "landscape",
    "make_loss",
    "measure",
    "measure_layers",
    "monitor",
    "predict",
    "solve",
]


# torch takes seconds to import: each name comes with its module, and the command line can be interrupted meanwhile
_LATER = {
    "ncollapse.heads": ("ETFHead", "Head", "LinearHead", "decay"),
    "ncollapse.losses": (
        *("BCELoss", "BinaryLoss", "CELoss", "FocalLoss", "LabelSmoothingLoss", "Loss", "MSELoss"),
        "make_loss",
    ),
    "ncollapse.metrics": ("ClassStatistics", "Measurement", "Spread", "measure"),
    "ncollapse.metrics.streaming": ("NeuralCollapse",),
    "ncollapse.monitoring": ("Monitor", "measure_layers", "monitor"),
    "ncollapse.theory": ("Certificate", "Prediction", "Problem", "certify", "landscape", "predict", "solve"),
}
_HOME = {name: home for home, names in _LATER.items() for name in names}
_PARTS = (
    *("compare", "data", "features", "frames", "heads", "losses", "metrics"),
    *("models", "papers", "report", "runs", "sweep", "theory", "train"),
)


if not TYPE_CHECKING:  # type checkers see the imports above, and refuse names that are not among them

    def __getattr__(name: str) -> Any:
        if name in _PARTS:
            return import_module(f"ncollapse.{name}")
        if name not in _HOME:
            raise AttributeError(f"module 'ncollapse' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOME[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PARTS})
