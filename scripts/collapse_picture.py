"""Make docs/figures/collapse.svg: the features of three digits while a small network trains, drawn in their own plane.

    python scripts/collapse_picture.py

Three classes and two feature dimensions are the smallest case in which the simplex can be seen: the network is trained
for real, and the numbers under each panel come from `nc.measure`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import ncollapse as nc

TARGET = Path(__file__).resolve().parent.parent / "docs" / "figures" / "collapse.svg"
DIGITS = (2, 3, 8)
EPOCHS = (0, 5, 25, 4000)
DECAY = 2e-2
SIZE, GAP, FOOT = 200, 12, 64
COLOURS = ("#0072B2", "#D55E00", "#009E73")
SHOWN = 60


def train() -> list[tuple[int, Tensor, Tensor, nc.Measurement]]:
    """Train on the three digits; return epoch, features, weight and measurement at each of `EPOCHS`."""
    torch.manual_seed(1)
    images, labels = load_digits(return_X_y=True)
    chosen = [i for i, label in enumerate(labels) if label in DIGITS]
    x = torch.tensor(images[chosen] / 16, dtype=torch.float32)
    y = torch.tensor([DIGITS.index(label) for label in labels[chosen]])
    trunk = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
    head = nn.Linear(2, len(DIGITS), bias=False)
    loss = nc.CELoss()
    optimizer = torch.optim.Adam([*trunk.parameters(), *head.parameters()], lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(EPOCHS))
    kept = []
    for epoch in range(max(EPOCHS) + 1):
        features = trunk(x)
        if epoch in EPOCHS:
            weight = head.weight.detach().clone()
            kept.append((epoch, features.detach().clone(), weight, nc.measure(features.detach(), y, weight)))
        optimizer.zero_grad()
        decayed = loss(head(features), y) + DECAY / 2 * (head.weight.square().sum() + features.square().sum(1).mean())
        decayed.backward()
        optimizer.step()
        schedule.step()
    return kept


def draw(stages: list[tuple[int, Tensor, Tensor, nc.Measurement]], labels: Tensor) -> str:
    """The panels side by side as SVG: dots are features, crosses class means, arrows the rows of the classifier."""
    width, height = len(stages) * (SIZE + GAP) - GAP, SIZE + FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12" role="img">',
        "<title>Features of three classes over training: they collapse onto their class means, a simplex</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#222222"/></marker></defs>',
    ]
    for place, (epoch, features, weight, measured) in enumerate(stages):
        left, middle = place * (SIZE + GAP), SIZE / 2
        centred = features - features.mean(0)
        scale = 0.42 * SIZE / centred.norm(dim=1).quantile(0.98).item()
        parts.append(f'<g transform="translate({left},0)">')
        parts.append(f'<rect x="0.5" y="0.5" width="{SIZE - 1}" height="{SIZE - 1}" fill="#fbfaf7" stroke="#d8d5cc"/>')
        for label, colour in enumerate(COLOURS):
            for point in centred[labels == label][:SHOWN]:
                x, y = (middle + scale * point[0].item(), middle - scale * point[1].item())
                if 3 < x < SIZE - 3 and 3 < y < SIZE - 3:
                    parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colour}" fill-opacity="0.45"/>')
        for row in weight / weight.norm(dim=1).max() * 0.33 * SIZE:
            x, y = middle + row[0].item(), middle - row[1].item()
            line = f'x1="{middle}" y1="{middle}" x2="{x:.1f}" y2="{y:.1f}"'
            parts.append(f'<line {line} stroke="#222222" stroke-width="1.6" marker-end="url(#tip)"/>')
        parts.append(f'<text x="{middle}" y="{SIZE + 17}" text-anchor="middle" font-weight="bold">epoch {epoch}</text>')
        numbers = f"NC1 {measured.nc1:.2g} · NC2 {measured.nc2:.2g} · NC3 {measured.nc3:.2g}"
        below = f'x="{middle}" text-anchor="middle" font-size="11" fill="#444444"'
        parts.append(f'<text y="{SIZE + 34}" {below}>{numbers}</text>')
        accuracy = f"accuracy {100 * measured.accuracy:.0f} %"
        parts.append(f'<text y="{SIZE + 51}" {below}>{accuracy}</text></g>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """Train, draw, write."""
    labels = load_digits(return_X_y=True)[1]
    y = torch.tensor([DIGITS.index(label) for label in labels if label in DIGITS])
    TARGET.write_text(draw(train(), y), encoding="utf-8")
    print(TARGET)


if __name__ == "__main__":
    main()
