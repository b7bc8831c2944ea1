"""One measurement of a model in training, and a table of several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ncollapse.metrics import Measurement
from ncollapse.metrics.flattening import flatten
from ncollapse.monitoring.layers import LayerProfile
from ncollapse.theory import Certificate, Prediction

PREDICTED = ("positive_score", "negative_score", "bias", "weight_energy", "feature_energy", "objective")
COLUMNS = ("nc1", "nc2", "nc3", "nc4", "accuracy")
SHOWN_ROWS = 12


@dataclass(frozen=True)
class Observation:
    """One measurement of a model in training.

    certificate: how far the last layer is from the global optimum; None without a problem, for a loss that is not
    convex, or where a class that the problem counts was not measured. prediction: that optimum; None without a problem
    or where no closed form is known. layers: the profile over depth, where layers were asked for. seconds: how long the
    measuring took.
    """

    epoch: int
    measurement: Measurement
    certificate: Certificate | None = None
    prediction: Prediction | None = None
    seconds: float = 0.0
    layers: LayerProfile | None = None

    def numbers(self, prefix: str = "") -> dict[str, float]:
        """All of it by name, for a logger: nc/nc1, nc/positive_score.mean, predicted/positive_score, certified/gap.

        Values of a layer are named layers/NAME/nc1. With a prefix every name starts with it: val/nc/nc1.
        """
        parts: dict[str, dict[str, Any]] = {"nc": self.measurement.to_dict()}
        if self.prediction is not None:
            parts["predicted"] = {name: getattr(self.prediction, name) for name in PREDICTED}
        if self.certificate is not None:
            parts["certified"] = self.certificate.to_dict()
        named = flatten(parts, "/")
        if self.layers is not None:
            for name, values in self.layers.items():
                named |= {f"layers/{name}/{field}": value for field, value in flatten(values.to_dict()).items()}
        return {f"{prefix}/{name}": value for name, value in named.items()} if prefix else named


def format_history(history: Sequence[Observation]) -> str:
    """A table of the main numbers over the epochs, and the last ones beside their prediction.

    >>> seen = [Observation(0, Measurement(nc1=2.0, accuracy=0.1)), Observation(1, Measurement(nc1=0.5))]
    >>> print(format_history(seen))
    epoch  nc1  nc2  nc3  nc4  accuracy
        0    2    -    -    -       0.1
        1  0.5    -    -    -         -
    """
    if not history:
        return "nothing measured yet"
    certified = any(seen.certificate is not None for seen in history)
    header = ["epoch", *COLUMNS, *(["gap"] if certified else [])]
    rows = [_format_row(seen, certified) for seen in _thin(history)]
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in (header, *rows)]
    return "\n".join([*lines, *_format_prediction(history[-1])])


def _format_row(seen: Observation, certified: bool) -> list[str]:
    values = [getattr(seen.measurement, name) for name in COLUMNS]
    values += [math.nan if seen.certificate is None else seen.certificate.gap] if certified else []
    return [str(seen.epoch), *("-" if math.isnan(value) else f"{value:.4g}" for value in values)]


def _thin(history: Sequence[Observation]) -> list[Observation]:
    """The first, the last and some between, evenly chosen."""
    if len(history) <= SHOWN_ROWS:
        return list(history)
    places = {round(place * (len(history) - 1) / (SHOWN_ROWS - 1)) for place in range(SHOWN_ROWS)}
    return [history[place] for place in sorted(places)]


def _format_prediction(seen: Observation) -> list[str]:
    if seen.prediction is None:
        return []
    rows = [
        (name, f"{row.measured:.4g}", f"{row.predicted:.4g}")
        for name, row in seen.measurement.compare(seen.prediction).items()
        if name in PREDICTED and not math.isnan(row.measured)  # `fields` may leave numbers out
    ]
    if not rows:
        return []
    cells = [(f"epoch {seen.epoch}", "measured", "predicted"), *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    return ["", *(f"{name:<{widths[0]}}  {found:>{widths[1]}}  {told:>{widths[2]}}" for name, found, told in cells)]
