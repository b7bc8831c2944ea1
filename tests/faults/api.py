"""The public functions with drawn arguments: equal to their slow twins, or refused with words.

Hypothesis draws the arguments; the seed of a case is the seed of its draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st

import ncollapse as nc
from faults.campaign import Family
from ncollapse import data
from ncollapse.compare.plan import plan
from ncollapse.sweep.sweep import take_share
from ncollapse.train import Recipe, recipes
from reference import metrics as twin
from reference.loss_cases import CASES

EXAMPLES = 10
"""Drawn arguments of one case."""
REFUSALS = (ValueError, TypeError, OSError, ImportError, OverflowError)
EXACT = ("nc1", "nc1_quotient", "cdnv", "nc2", "nc2_means", "nc3", "accuracy", "uniform_accuracy", "compactness")
EXACT += ("distinctiveness", "feature_energy", "weight_energy", "equinorm_means", "equiangle_weights")


def check_with(body: Callable[[Any], None]) -> Callable[[int, Path], str]:
    """A case that draws arguments from its seed."""

    def check(seed: int, folder: Path) -> str:
        @with_seed(seed)
        @settings(
            max_examples=EXAMPLES,
            database=None,
            deadline=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        @given(st.data())
        def run(source: Any) -> None:
            body(source)

        run()
        return ""

    return check


def compare_measurements(source: Any) -> None:
    """measure against plain loops over the definitions, over scales, offsets, dtypes and imbalance."""
    classes = source.draw(st.integers(2, 4))
    dim = source.draw(st.integers(1, 4))
    counts = [source.draw(st.integers(1, 4)) for _ in range(classes)]
    rng = np.random.default_rng(source.draw(st.integers(0, 2**32 - 1)))
    scale = 10.0 ** source.draw(st.integers(-12, 12))
    offset = source.draw(st.sampled_from([0.0, 1.0, 10.0]))
    dtype = source.draw(st.sampled_from([torch.float32, torch.float64]))
    labels = np.repeat(np.arange(classes), counts)
    means = rng.normal(size=(classes, dim)) + offset
    features = torch.tensor(scale * (means[labels] + 0.3 * rng.normal(size=(len(labels), dim))), dtype=dtype)
    weight, bias = torch.tensor(rng.normal(size=(classes, dim)), dtype=dtype), torch.tensor(rng.normal(size=classes))
    found = nc.measure(features, torch.tensor(labels), weight, bias.to(dtype))
    expected = twin.measure(features.double().numpy(), labels, weight.double().numpy(), bias.to(dtype).double().numpy())
    for name in EXACT:
        ours, theirs = float(getattr(found, name)), float(expected[name])
        close = math.isclose(ours, theirs, rel_tol=1e-6, abs_tol=1e-9) or (math.isnan(ours) and math.isnan(theirs))
        assert close, f"{name}: {ours!r}, by definition {theirs!r} (K = {classes}, d = {dim}, n = {counts}, {scale:g})"


def compare_losses(source: Any) -> None:
    """Every loss against its slow twin, for logits of any size."""
    case = source.draw(st.sampled_from(CASES))
    rows = source.draw(st.integers(1, 5))
    numbers = st.floats(-1e3, 1e3, allow_nan=False, width=32)
    z = [[source.draw(numbers) for _ in range(case.num_classes)] for _ in range(rows)]
    labels = [source.draw(st.integers(0, case.num_classes - 1)) for _ in range(rows)]
    logits = torch.tensor(z, dtype=torch.float64)
    ours = float(case.make()(case.logits(logits), torch.tensor(labels)))
    targets = np.eye(case.num_classes)[labels]
    theirs = float(np.mean([float(case.value(row, target)) for row, target in zip(z, targets)]))
    assert math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-9), f"{case.id}: {ours!r}, by definition {theirs!r}"


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([10**12, -(2**63), 10**400, math.nan, math.inf, -math.inf, 1e308]),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.lists(st.integers(-2, 2), max_size=3),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    st.sampled_from([object(), int, len, 1j, torch.zeros(0), torch.zeros(2, 3), torch.ones(2, dtype=torch.bool)]),
    st.sampled_from([np.zeros(3), np.array(["a"]), np.array(1.0), np.zeros((2, 2), dtype=complex), Path("nowhere")]),
)
CALLS: dict[str, Callable[..., Any]] = {
    "data.load": lambda a, b: data.load(a, b),
    "data.load split": lambda a, b: data.load("digits", split=a),
    "gaussian": lambda a, b: data.load(f"gaussian:{a}"),
    "train_loader": lambda a, b: data.train_loader(data.load("gaussian"), a),
    "long_tail": lambda a, b: data.long_tail(data.load("gaussian"), a),
    "per_class_counts": lambda a, b: data.per_class_counts(data.load("gaussian"), a),
    "validation_split": lambda a, b: data.validation_split(data.load("gaussian"), a),
    "recipes.get": lambda a, b: recipes.get(a),
    "Recipe.from_dict": lambda a, b: Recipe.from_dict({"name": a, "data": b}),
    "Recipe.from_dict whole": lambda a, b: Recipe.from_dict(a),
    "plan": lambda a, b: plan(a, b),
    "plan seeds": lambda a, b: plan(seeds=a, epochs=b),
    "take_share": lambda a, b: take_share([1, 2, 3], a),
}


def call_with_junk(source: Any) -> None:
    """Odd arguments to the functions that read data, recipes and runs."""
    name = source.draw(st.sampled_from(sorted(CALLS)))
    first, second = source.draw(JUNK), source.draw(JUNK)
    try:
        CALLS[name](first, second)
    except Exception as error:
        if not isinstance(error, REFUSALS) or not str(error):
            raise AssertionError(f"{name}({first!r}, {second!r}): {type(error).__name__}: {error}") from error


FAMILIES = [
    Family("api/measure", f"equal to plain loops ({EXAMPLES} draws a case)", 150, 3, check_with(compare_measurements)),
    Family("api/losses", f"equal to plain loops ({EXAMPLES} draws a case)", 150, 3, check_with(compare_losses)),
    Family("api/junk", f"refused with words ({EXAMPLES} draws a case)", 300, 6, check_with(call_with_junk)),
]
