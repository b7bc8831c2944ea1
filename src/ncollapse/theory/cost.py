"""The cost of a logit matrix: the decays of W and H, minimised over the factors of Z = W H.

On the symmetric family Z = a (I - J/K) + c J/K, J = 11^T, the cost is mu times Gamma(a, c) (d >= K):

    free H:  (K-1)|a| + |c|, the nuclear norm
    H >= 0:  the same where |c| >= |a|, else sqrt(K ((K-1) a^2 + c^2))

At an optimum the gradient of the loss lies in the dual unit ball of Gamma, scaled by mu. With P + Q = -K/(K-1) dL/da
and beta = dL/dc this ball is |beta| <= mu and P + Q <= S(beta). On its curved part (H >= 0) the optimal (a, c) is
normal to it: c = -K a beta / S.
"""

from __future__ import annotations

import math


def cost_of(a: float, c: float, num_classes: int, relu: bool, rank: int | None = None) -> float:
    """Gamma(a, c); `rank` < K-1 keeps only so many of the K-1 directions of a (free features)."""
    k = num_classes
    if relu and abs(c) < abs(a):
        return math.sqrt(k) * math.hypot(math.sqrt(k - 1) * a, c)
    return (k - 1 if rank is None else rank) * abs(a) + abs(c)


def differentiate_cost(
    a: float, c: float, da: float, dc: float, num_classes: int, relu: bool, rank: int | None = None
) -> float:
    """The change of Gamma along (da, dc)."""
    k = num_classes
    if relu and abs(c) < abs(a):
        return k * ((k - 1) * a * da + c * dc) / cost_of(a, c, k, relu)
    return (k - 1 if rank is None else rank) * da + math.copysign(1.0, c) * dc * (c != 0)


def slope_limit(beta: float, mu: float, num_classes: int, relu: bool) -> float:
    """S(beta), the largest P + Q inside the dual ball."""
    k = num_classes
    if relu:
        return k * math.sqrt((k - 1) + (1 - (beta / mu) ** 2)) * mu / math.sqrt(k - 1)
    return k * mu


def differentiate_slope_limit(beta: float, mu: float, dbeta: float, dmu: float, num_classes: int, relu: bool) -> float:
    """The change of S along (dbeta, dmu)."""
    k = num_classes
    if relu:
        return k**2 * (k * mu * dmu - beta * dbeta) / ((k - 1) * slope_limit(beta, mu, k, relu))
    return k * dmu
