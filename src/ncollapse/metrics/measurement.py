"""`Measurement`: every number of the papers about one last layer, and its comparison with a prediction."""

from __future__ import annotations

import dataclasses
import json
import math
import warnings
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .equality import same_value
from .fields import FIELDS
from .flattening import flatten
from .scores import Spread

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

NAN = math.nan
NO_SPREAD = Spread()
RENAMED = {"collapsed": "scores_concentrated"}  # in records of earlier versions
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


@dataclass(frozen=True, eq=False, repr=False)
class Measurement:
    """The result of `measure`. Undefined is NaN: fields that need a classifier, a problem or a request not given.

    docs/metrics.md has the formula, paper and equation of every field. Rates are fractions in [0, 1]. `print` shows a
    table. Two measurements are equal if all fields are, NaN being equal to NaN.
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

    @property
    def collapsed(self) -> bool | None:
        """Deprecated name of `scores_concentrated`."""
        warnings.warn(
            "Measurement.collapsed: renamed to scores_concentrated, which says what it tests; look at nc1 for collapse",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.scores_concentrated

    def __str__(self) -> str:
        from .table import make_table

        return "\n".join(line.text for line in make_table(self))

    def __repr__(self) -> str:
        measured = ", ".join(f"{name}={value:.6g}" for name, value in self.to_numbers().items() if "." not in name)
        return f"Measurement({measured})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Measurement):
            return NotImplemented
        return all(same_value(getattr(self, row.name), getattr(other, row.name)) for row in FIELDS)

    def __hash__(self) -> int:
        return hash((self.num_samples, self.num_classes, self.dim, self.counts))

    def to_numbers(self) -> dict[str, float]:
        """Every finite number by name, spreads in parts (`positive_score.mean`); values by class are left out.

        >>> Measurement(nc1=0.5, positive_score=Spread(mean=2.0)).to_numbers()["positive_score.mean"]
        2.0
        """
        return flatten(self.to_dict())

    def to_csv(self, path: str | PathLike[str] | None = None) -> str:
        """Two columns, field and value, of `to_numbers`; written to `path` where one is given.

        >>> Measurement(nc1=0.5, num_samples=8).to_csv().splitlines()[:2]
        ['field,value', 'nc1,0.5']
        """
        text = "field,value\n" + "".join(f"{name},{value!r}\n" for name, value in self.to_numbers().items())
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def to_frame(self) -> pandas.DataFrame:
        """One row of `to_numbers` as a pandas.DataFrame, to put below those of other measurements."""
        try:
            import pandas
        except ImportError:
            raise ImportError("to_frame: needs pandas (pip install pandas); to_csv does without it") from None
        return pandas.DataFrame([self.to_numbers()])

    def to_dict(self) -> dict[str, Any]:
        """Plain values: spreads as dictionaries, per-class values as lists."""
        plain = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Measurement:
        """The inverse of `to_dict`; null (as JSON writes NaN) becomes NaN again, keys left out their default."""
        known = {item.name: item for item in dataclasses.fields(cls)}
        plain = {RENAMED.get(name, name): value for name, value in plain.items()}
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
