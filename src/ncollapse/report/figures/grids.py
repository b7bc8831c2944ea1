"""Width x epochs grids: one heat map per loss where networks of several widths were trained for several lengths."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from ncollapse.compare.seeds import estimate
from ncollapse.compare.variants import LOSSES, Variant, measured
from ncollapse.report.numbers import compact_matrix
from ncollapse.report.panels import Figure, Panel, build, escape
from ncollapse.report.style import SEQUENTIAL

MEASURES = {
    "accuracy": ("test.accuracy", "test accuracy", "all-losses Figs. 3, 4, 7"),
    "nc1": ("train.nc1", "train NC1 (log10)", "all-losses Figs. 4, 7"),
}


def draw_grids(variants: Sequence[Variant]) -> list[Figure]:
    """Test accuracy and NC1 over width and training length, a panel per loss."""
    finished = [v for v in variants if v.finished]
    models = sorted({_model(v) for v in finished}, key=_width)
    lengths = sorted({_epochs(v) for v in finished} - {0})
    if len(models) < 2 or len(lengths) < 2:
        return []
    figures = []
    for name, (key, title, source) in MEASURES.items():
        panels = []
        for loss in dict.fromkeys(v.loss for v in finished):
            table = np.full((len(lengths), len(models)), np.nan)
            for variant in (v for v in finished if v.loss == loss):
                value = estimate([measured(r, key) for r in variant.finished]).mean
                cell = lengths.index(_epochs(variant)), models.index(_model(variant))
                table[cell] = np.log10(value) if name == "nc1" and value > 0 else value
            shown = np.char.mod("%.1f %%", 100 * table) if name == "accuracy" else np.char.mod("%.2f", table)
            text = np.where(np.isfinite(table), shown, "").tolist()
            trace = {
                "type": "heatmap",
                "z": compact_matrix(table, 4),
                "x": [escape(m) for m in models],
                "y": [str(e) for e in lengths],
                "text": text,
                "texttemplate": "%{text}",
                "coloraxis": "coloraxis",
                "hovertemplate": "%{x}, %{y} epochs: %{text}<extra></extra>",
            }
            axis = {"type": "category", "ticks": "", "showline": False}
            panels.append(
                Panel(LOSSES.get(loss, escape(loss)), [trace], axis, {"type": "category", "title": {"text": "epochs"}})
            )
        bar = {"thickness": 10, "outlinewidth": 0, "x": 1.01, **({"tickformat": ".1%"} if name == "accuracy" else {})}
        spec = build(
            panels,
            columns=min(4, len(panels)),
            row_height=60 + 46 * len(lengths),
            coloraxis={"colorscale": SEQUENTIAL, "reversescale": name == "nc1", "colorbar": bar},
            showlegend=False,
        )
        figures.append(
            Figure(
                f"grid-{name}",
                f"Width and training length: {title}",
                "Wider networks to the right, longer training upwards. Where every loss reaches the same corner value, "
                "the choice of loss matters little.",
                spec,
                source,
            )
        )
    return figures


def _model(variant: Variant) -> str:
    return str(variant.records[0].get("model.name", ""))


def _epochs(variant: Variant) -> int:
    epochs = variant.records[0].get("optim.epochs", 0)
    return epochs if isinstance(epochs, int) else 0


def _width(model: str) -> tuple[str, float]:
    found = re.search(r"-(\d+(?:\.\d+)?)$", model)
    return (re.sub(r"-\d+(?:\.\d+)?$", "", model), float(found.group(1)) if found else 0.0)
