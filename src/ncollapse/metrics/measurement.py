"""`Measurement`: every number of the papers about one last layer, and its comparison with a prediction."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from .fields import FIELDS
from .scores import Spread

NAN = math.nan
NO_SPREAD = Spread()
ROUNDING = 1e-12  # predicted values below it are zeros of float64 arithmetic


class Deviation(NamedTuple):
    """One field, measured against predicted."""

    measured: float
    predicted: float
    deviation: float  # measured - predicted
    relative: float  # deviation / |predicted|, NaN where the prediction is 0 up to rounding


class Comparison(dict[str, Deviation]):
    """Field name -> `Deviation`, for every field that both sides know.

    >>> Measurement(nc1=0.25).compare({"nc1": 0.2})["nc1"].deviation
    0.04999999999999999
    """

    def to_dict(self) -> dict[str, dict[str, float]]:
        """Plain nested dictionaries."""
        return {name: item._asdict() for name, item in self.items()}


@dataclass(frozen=True)
class Measurement:
    """The result of `measure`. Undefined is NaN: fields that need a classifier, a problem or a request not given.

    docs/metrics.md has the formula, paper and equation of every field. Rates are fractions in [0, 1].
    """

    nc1: float = NAN
    nc1_balanced: float = NAN
    nc1_quotient: float = NAN
    cdnv: float = NAN
    numerical_rank: float = NAN
    nc2: float = NAN
    nc2_uncentred: float = NAN
    nc2_means: float = NAN
    nc2_rank: float = NAN
    equinorm_means: float = NAN
    equinorm_weights: float = NAN
    equiangle_means: float = NAN
    equiangle_weights: float = NAN
    nc3: float = NAN
    nc3_centred: float = NAN
    nc3_distance: float = NAN
    nc4: float = NAN
    nearest_mean_accuracy: float = NAN
    accuracy: float = NAN
    uniform_accuracy: float = NAN
    uniform_threshold: float = NAN
    uniform_accuracy_grid: float = NAN
    class_accuracy: tuple[float, ...] = ()
    cosine_margin: Spread = NO_SPREAD
    compactness: float = NAN
    compactness_uncentred: float = NAN
    distinctiveness: float = NAN
    distinctiveness_centred: float = NAN
    positive_score: Spread = NO_SPREAD
    negative_score: Spread = NO_SPREAD
    bias: Spread = NO_SPREAD
    weight_energy: float = NAN
    feature_energy: float = NAN
    bias_residual: float = NAN
    bias_residual_printed: float = NAN
    nc2_relu: float = NAN
    nc3_relu: float = NAN
    weight_norms: tuple[float, ...] = ()
    mean_norms: tuple[float, ...] = ()
    weight_cosines: Spread = NO_SPREAD
    mean_cosines: Spread = NO_SPREAD
    mean_orthogonality: float = NAN
    num_samples: int = 0
    num_classes: int = 0
    present_classes: int = 0
    dim: int = 0
    counts: tuple[int, ...] = ()
    empty_classes: tuple[int, ...] = ()
    means_rank: int | None = None
    means_smallest_singular_value: float = NAN
    scores_concentrated: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values: spreads as dictionaries, per-class values as lists."""
        plain = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Measurement:
        """The inverse of `to_dict`; null (as JSON writes NaN) becomes NaN again, keys left out their default."""
        known = {item.name: item for item in dataclasses.fields(cls)}
        unknown = sorted(set(plain) - set(known))
        if unknown:
            raise ValueError(f"measurement: no field {', '.join(unknown)}")
        return cls(**{name: _restore(known[name].default, value) for name, value in plain.items()})

    def to_json(self) -> str:
        """One JSON object, NaN as null."""
        return json.dumps(_without_nan(self.to_dict()), allow_nan=False)

    def compare(self, prediction: Any) -> Comparison:
        """The deviation from a prediction (or a dictionary of one), field by field.

        A spread counts by its mean, values by class by the class that deviates most.
        """
        if not isinstance(prediction, dict) and not any(hasattr(prediction, row.name) for row in FIELDS):
            raise TypeError(f"prediction must be a Prediction, or a dictionary of one, not {prediction!r}")
        classes = _get(prediction, "num_classes") or _get(_get(prediction, "problem"), "num_classes")
        if classes and self.num_classes and classes != self.num_classes:
            raise ValueError(f"prediction is for {classes} classes, but {self.num_classes} were measured")
        result = Comparison()
        for row in FIELDS:
            if row.group == "diagnostics":
                continue
            found, expected = _pair(getattr(self, row.name), _get(prediction, row.name))
            if expected is None or found is None or math.isnan(expected):
                continue
            gap = found - expected
            relative = gap / abs(expected) if abs(expected) > ROUNDING else NAN
            result[row.name] = Deviation(found, expected, gap, relative)
        return result


def _get(source: Any, name: str) -> Any:
    return source.get(name) if isinstance(source, dict) else getattr(source, name, None)


def _pair(found: Any, expected: Any) -> tuple[float | None, float | None]:
    if isinstance(found, tuple):
        if not found or not isinstance(expected, (tuple, list)) or len(expected) != len(found):
            return None, None
        gaps = [abs(left - right) for left, right in zip(found, expected)]
        worst = max(range(len(gaps)), key=lambda index: -1.0 if math.isnan(gaps[index]) else gaps[index])
        found, expected = found[worst], expected[worst]
    return _number(found), _number(expected)


def _number(value: Any) -> float | None:
    if isinstance(value, Spread):
        return value.mean
    if isinstance(value, dict):
        return _number(value.get("mean"))
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _restore(default: Any, value: Any) -> Any:
    if isinstance(default, Spread):
        restored: dict[str, Any] = {name: NAN if item is None else item for name, item in value.items()}
        return Spread(**restored)
    if isinstance(default, tuple):
        return tuple(NAN if item is None else item for item in value)
    return NAN if value is None and isinstance(default, float) else value
