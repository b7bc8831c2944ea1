"""The two figures of mse-landscape that need no training: losses and gradients over norm and angle of one feature."""

from __future__ import annotations

from typing import Any

import numpy as np

CLASSES = 10
PANELS: dict[str, tuple[str, dict[str, float]]] = {
    "MSE": ("mse", {}),
    "CE": ("ce", {}),
    "MSE, alpha = 1, M = 5": ("mse", {"alpha": 1.0, "M": 5.0}),
    "MSE, alpha = 5, M = 5": ("mse", {"alpha": 5.0, "M": 5.0}),
}


def compute_panels(points: int = 40) -> dict[str, Any]:
    """The landscape of every panel: W a simplex ETF of K = 10 unit rows, 0 < s <= 6, 0 <= theta <= pi / 2."""
    from ncollapse.theory.landscape import landscape

    norms, angles = np.linspace(0.1, 6, points), np.linspace(0, np.pi / 2, points)
    return {
        name: landscape(loss, CLASSES, norms=norms, angles=angles, **params) for name, (loss, params) in PANELS.items()
    }


def share_of_angle(panel: Any) -> float:
    """How much of the descent goes into the angle: mean of |dL/dtheta / s| / |gradient| over 1 < s, theta < 1.5."""
    s, theta = np.meshgrid(panel.norms, panel.angles)
    radial, angular = np.abs(panel.d_norm), np.abs(panel.d_angle) / s
    region = (s > 1) & (theta < 1.5) & (theta > 0)
    return float(np.mean((angular / np.maximum(np.hypot(radial, angular), 1e-300))[region]))


def conclude() -> tuple[str, str]:
    """Reproduced if CE and both rescalings turn the descent towards the angle more than the plain MSE does."""
    plain, *others = compute_shares().values()
    verdict = "reproduced" if all(plain < other for other in others) else "not reproduced"
    return verdict, "computed, nothing is trained"


def compute_shares() -> dict[str, float]:
    """The share of the gradient along the angle, panel by panel."""
    return {name: share_of_angle(panel) for name, panel in compute_panels().items()}
