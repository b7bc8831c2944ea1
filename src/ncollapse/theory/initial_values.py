"""What SGD leaves of initial values that the loss does not see."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

import numpy as np

from ncollapse.theory.problem import check_number


def decay_alone(
    rates: Iterable[float], decay: float | Sequence[float], momentum: float = 0.0, *, steps: int = 1
) -> float:
    """The share of its initial value that SGD leaves of a parameter with no gradient but that of its decay.

    Cross-entropy, focal loss and label smoothing do not change if one number is added to all scores, so their gradients
    sum to 0 over the classes. The mean of the biases and the mean of the rows of W then feel their decay alone, and
    keep this share of their initial values whatever the data are (docs/theory.md, Sec. 7).

    Args:
        rates: the learning rates, in turn.
        decay: lambda, of lambda/2 |.|^2; or one for each of the rates.
        momentum: of `torch.optim.SGD`, without dampening.
        steps: how many steps each rate lasts.

    >>> round(decay_alone([0.1] * 100, 0.01), 6) == round((1 - 0.1 * 0.01) ** 100, 6)
    True
    >>> round(decay_alone([0.01] * 100, 5e-5, momentum=0.9, steps=469), 4)  # about exp(-0.01 * 46900 * 5e-5 / 0.1)
    0.791
    """
    rates = list(rates)
    decays = list(decay) if isinstance(decay, Sequence) else [decay] * len(rates)
    if len(decays) != len(rates):
        raise ValueError(f"decay: expected one for each of the {len(rates)} rates, got {len(decays)}")
    for each in decays if isinstance(decay, Sequence) else [decay]:
        if not (math.isfinite(check_number("decay", each)) and each >= 0):
            raise ValueError(f"decay: expected a finite number of at least 0, got {each}")
    if not 0 <= check_number("momentum", momentum) < 1:
        raise ValueError(f"momentum: expected a number in [0, 1), got {momentum}")
    state = np.array([1.0, 0.0])  # the share and its velocity
    for (rate, strength), same in groupby(zip(rates, decays)):
        one = np.array([[1 - rate * strength, -rate * momentum], [strength, momentum]])
        state = np.linalg.matrix_power(one, steps * sum(1 for _ in same)) @ state
    return float(state[0])
