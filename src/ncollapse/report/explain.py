"""Four small drawings of what neural collapse is, from scattered features to a simplex, as plain SVG."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

CLASSES = 3
SAMPLES = 12
SIZE = 120
DOT = 2.6


class Explanation(NamedTuple):
    """A drawing, what it is called, what it shows, and where to read more."""

    title: str
    text: str
    svg: str


def draw_explanations() -> tuple[Explanation, ...]:
    """The panels: features before training, NC1, NC2 and NC3, and what separates classes by one threshold."""
    simplex = [90 + 120 * k for k in range(CLASSES)]
    before = [70, 150, 300]
    return (
        Explanation(
            "Before",
            "Each dot is the feature h of a sample, each arrow a row w of the classifier. Classes are spread out.",
            _draw(before, 0.42, [60, 190, 310], 0.62),
        ),
        Explanation(
            "NC1: classes shrink",
            "The spread within a class falls against the spread between classes. Compactness rises with it.",
            _draw(before, 0.1, [60, 190, 310], 0.62),
        ),
        Explanation(
            "NC2: a simplex",
            "The class vectors become equally long and equally far apart. Distinctiveness measures how far.",
            _draw(simplex, 0.1, simplex, 0.62, turned=18),
        ),
        Explanation(
            "NC3 and NC4: one direction",
            "Classifier and class means align (NC3), so the nearest class mean is the prediction (NC4). If one "
            "threshold b then separates own from other scores, uniform accuracy is 100 %.",
            _draw(simplex, 0.03, simplex, 0.95),
        ),
    )


def _draw(angles: list[int], spread: float, arrows: list[int], length: float, turned: int = 0) -> str:
    """One panel: a cloud of points around each angle, and an arrow for each row of the classifier."""
    random = np.random.default_rng(3)
    middle, reach = SIZE / 2, 0.36 * SIZE
    parts = []
    for k, angle in enumerate(angles):
        at = np.array([math.cos(math.radians(angle)), -math.sin(math.radians(angle))])
        cloud = middle + reach * (at + spread * random.standard_normal((SAMPLES, 2)))
        for x, y in cloud.clip(DOT, SIZE - DOT):  # no dot is cut off at the edge
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{DOT}" style="fill:var(--class{(0, 4, 2)[k]})"/>')
    for angle in arrows:
        turn = math.radians(angle + turned)
        x, y = middle + length * reach * math.cos(turn), middle - length * reach * math.sin(turn)
        parts.append(f'<path d="M{middle} {middle}L{x:.1f} {y:.1f}" class="arrow"/>')
        for side in (2.6, -2.6):
            hx, hy = x - 6 * math.cos(turn + side + math.pi), y + 6 * math.sin(turn + side + math.pi)
            parts.append(f'<path d="M{x:.1f} {y:.1f}L{hx:.1f} {hy:.1f}" class="arrow"/>')
    return f'<svg viewBox="0 0 {SIZE} {SIZE}" aria-hidden="true">{"".join(parts)}</svg>'
