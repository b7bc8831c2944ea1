"""The two figures of mse-landscape that need no training: losses and gradients over norm and angle of one feature."""

from __future__ import annotations

from typing import Any

import numpy as np

from ncollapse.papers.claims import Claim, Runs

CLASSES = 10
PANELS: dict[str, tuple[str, dict[str, float]]] = {
    "MSE": ("mse", {}),
    "CE": ("ce", {}),
    "MSE, alpha = 1, M = 5": ("mse", {"alpha": 1.0, "M": 5.0}),
    "MSE, alpha = 5, M = 5": ("mse", {"alpha": 5.0, "M": 5.0}),
}

STEPS = ((1.0, 1.0), (1.0, 5.0), (5.0, 1.0))
"""alpha and M of the plain MSE, and of each of them raised alone."""


def compute_panels(points: int = 40) -> dict[str, Any]:
    """The landscape of every panel: W a simplex ETF of K = 10 unit rows, 0 < s <= 6, 0 <= theta <= pi / 2."""
    return {name: compute_panel(loss, params, points) for name, (loss, params) in PANELS.items()}


def compute_panel(loss: str, params: dict[str, float], points: int = 40) -> Any:
    """The landscape of one loss."""
    from ncollapse.theory.landscape import landscape

    norms, angles = np.linspace(0.1, 6, points), np.linspace(0, np.pi / 2, points)
    return landscape(loss, CLASSES, norms=norms, angles=angles, **params)


def share_of_angle(panel: Any) -> float:
    """How much of the descent goes into the angle: mean of |dL/dtheta / s| / |gradient| over 1 < s, theta < 1.5."""
    radial, angular = np.abs(panel.d_norm), np.abs(panel.d_angle) / panel.norms
    return float(np.mean((angular / np.maximum(np.hypot(radial, angular), 1e-300))[find_region(panel)]))


def check_steepness(runs: Runs) -> list[Claim]:
    """Figure 2: MSE is steep in s and flat in theta; CE, and MSE when rescaled, are steeper in theta than in s."""
    found = []
    for name, panel in compute_panels().items():
        part = part_steeper_in_angle(panel)
        flat = name == "MSE"
        said = "is flat in theta and steep in s" if flat else "is steeper in theta than in s"
        threshold = "ours, for a large region: more than half of it"
        holds = part < 0.5 if flat else part > 0.5
        detail = f"steeper in theta in {100 * part:.0f} % of it"
        found.append(Claim(f"{name} {said} where s > 1 and theta < 1.5", holds, detail, threshold))
    return found


def check_directions(runs: Runs) -> list[Claim]:
    """Figure 8: raising M or alpha alone turns the gradient of MSE towards the angle."""
    shares = {params: share_of_angle(compute_panel("mse", dict(zip(("alpha", "M"), params)))) for params in STEPS}
    plain = shares[STEPS[0]]
    found = []
    for (alpha, _), share in list(shares.items())[1:]:
        text = f"raising {'alpha' if alpha > 1 else 'M'} from 1 to 5 turns the gradient of MSE towards the angle"
        found.append(Claim(text, share > plain, f"share along the angle {share:.3f} for {plain:.3f}"))
    return found


def part_steeper_in_angle(panel: Any) -> float:
    """The part of the region s > 1, theta < 1.5 in which the loss is steeper in theta than in s."""
    return float(np.mean((np.abs(panel.d_angle) > np.abs(panel.d_norm))[find_region(panel)]))


def find_region(panel: Any) -> np.ndarray:
    """Where s > 1 and theta < 1.5, of which the paper speaks."""
    s, theta = np.meshgrid(panel.norms, panel.angles)
    return np.asarray((s > 1) & (theta < 1.5) & (theta > 0))


def compute_shares() -> dict[str, float]:
    """The share of the gradient along the angle, panel by panel."""
    return {name: share_of_angle(panel) for name, panel in compute_panels().items()}
