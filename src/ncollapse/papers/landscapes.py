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

RAISED = 5.0
"""What M, or alpha, is raised to from 1: M is 5 in the panels."""
RAISED_ALONE = {
    "M": ("MSE, alpha = 1, M = 5", {"alpha": 1.0, "M": RAISED}),
    "alpha": ("MSE, alpha = 5, M = 1", {"alpha": RAISED, "M": 1.0}),
}


def compute_panels(points: int = 40) -> dict[str, Any]:
    """The landscape of every panel: W a simplex ETF of K = 10 unit rows, 0 < s <= 6, 0 <= theta <= pi / 2."""
    return {name: compute_panel(loss, params, points) for name, (loss, params) in PANELS.items()}


def compute_panel(loss: str, params: dict[str, float], points: int = 40) -> Any:
    """The landscape of one loss."""
    from ncollapse.theory.landscape import landscape

    norms, angles = np.linspace(0.1, 6, points), np.linspace(0, np.pi / 2, points)
    return landscape(loss, CLASSES, norms=norms, angles=angles, **params)


def share_towards_class(panel: Any) -> float:
    """How much of the descent reduces the angle: mean of (dL/dtheta / s) / |gradient| over 1 < s, theta < 1.5.

    A descent that raises the angle counts as negative.
    """
    angular = panel.d_angle / panel.norms
    return float(np.mean((angular / np.maximum(np.hypot(panel.d_norm, angular), 1e-300))[find_region(panel)]))


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
    """Figure 8: raising M or alpha alone aligns the descent of MSE with the direction in which theta falls."""
    plain = share_towards_class(compute_panel("mse", {}))
    threshold = "ours: the paper says neither by how much they are raised nor where"
    found = []
    for name, (_, params) in RAISED_ALONE.items():
        share = share_towards_class(compute_panel("mse", params))
        text = f"raising {name} from 1 to {RAISED:g} turns the descent of MSE towards smaller theta"
        detail = f"share of the descent {share:.3f} for {plain:.3f}"
        found.append(Claim(text, share > plain, detail, threshold))
    return found


def part_steeper_in_angle(panel: Any) -> float:
    """The part of the region s > 1, theta < 1.5 in which the loss is steeper in theta than in s."""
    return float(np.mean((np.abs(panel.d_angle) > np.abs(panel.d_norm))[find_region(panel)]))


def find_region(panel: Any) -> np.ndarray:
    """Where s > 1 and theta < 1.5, of which the paper speaks."""
    s, theta = np.meshgrid(panel.norms, panel.angles)
    return np.asarray((s > 1) & (theta < 1.5) & (theta > 0))


def compute_shares() -> dict[str, float]:
    """The share of the descent towards smaller theta, panel by panel, and with M or alpha raised alone."""
    raised = {name: compute_panel("mse", params) for name, params in RAISED_ALONE.values()}
    return {name: share_towards_class(panel) for name, panel in {**compute_panels(), **raised}.items()}
