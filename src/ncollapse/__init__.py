"""Measure, predict and steer neural collapse in PyTorch classifiers.

A classifier's last layer is a triple (W, H, b) with logits z = W h - b, and everything here is a function of it.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "losses": ("BCELoss", "BinaryLoss", "CELoss", "FocalLoss", "LabelSmoothingLoss", "Loss", "MSELoss", "make_loss"),
    "heads": ("ETFHead", "Head", "LinearHead", "decay"),
    "metrics": ("ClassStatistics", "Measurement", "Spread", "measure"),
    "metrics.streaming": ("NeuralCollapse",),
    "theory": ("Certificate", "Prediction", "Problem", "certify", "landscape", "predict", "solve"),
    "monitoring": ("monitor",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'ncollapse' has no attribute {name!r}")
    return getattr(import_module(f"ncollapse.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
