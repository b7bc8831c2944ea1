"""Problems in which the norm of the features is given instead of their decay."""

from __future__ import annotations

import math

from ncollapse.losses.rootfinding import find_root
from ncollapse.theory.prediction import predict
from ncollapse.theory.problem import LEAST_DECAY, Problem, check_number

LOWEST, HIGHEST = 1e-30, 1e10  # of the feature decays that are tried


def fix_feature_energy(problem: Problem, feature_energy: float) -> Problem:
    """The problem with the feature decay at which the optimal features have this mean square norm.

    Training without a feature decay has no minimum over the features, but a network limits their norm. With the
    constraint mean |h|^2 <= E in place of the decay the cost of scores Z is lW |Z|_*^2 / (2 N E), and the optimum is
    that of the feature decay whose own optimum has mean |h|^2 = E: the multiplier of the constraint. The decay of
    `problem` is not used. For mixed targets E is that of unmixed images.

    >>> problem = Problem("ce", 10, batch_size=128, weight_decay=5e-4, feature_decay=1.0)
    >>> fixed = fix_feature_energy(problem, 9.0)
    >>> round(predict(fixed).feature_energy, 9)
    9.0
    """
    if not (math.isfinite(check_number("feature_energy", feature_energy)) and feature_energy > 0):
        raise ValueError(f"feature_energy: expected a positive number, got {feature_energy}")

    def surplus(exponent: float) -> float:
        energy = predict(problem.replace(feature_decay=10.0**exponent)).feature_energy
        return math.log(max(energy, LEAST_DECAY)) - math.log(feature_energy)

    low, high = -6.0, -4.0
    while surplus(low) < 0 and low > math.log10(LOWEST):
        low, high = low - 2.0, low
    while surplus(high) > 0 and high < math.log10(HIGHEST):
        low, high = high, high + 2.0
    if surplus(low) < 0 or surplus(high) > 0:
        raise ValueError(f"feature_energy: no feature decay gives features of mean square norm {feature_energy:g}")
    return problem.replace(feature_decay=10.0 ** find_root(surplus, low, high, floor=1e-11))
