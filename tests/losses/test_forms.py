"""The general forms, which serve losses without formulas of their own, on losses that have one."""

import math
from decimal import Decimal, localcontext

import pytest

from ncollapse.losses import CELoss, LabelSmoothingLoss
from ncollapse.losses.forms import ContrastiveForm, least_probability


@pytest.mark.parametrize("alpha", [0.0, 0.2])
@pytest.mark.parametrize("k", [2, 5, 60])
def test_the_gap_of_a_loss_of_differences_is_that_of_its_formula(k, alpha):
    """e^a = 1 / (mu + alpha / K) - (K - 1), which is 1 from mu = (1 - alpha) / K on."""
    form = ContrastiveForm(LabelSmoothingLoss(alpha=alpha) if alpha else CELoss(), k)
    assert form.collapse_mu == pytest.approx((1 - alpha) / k, rel=1e-12)
    for share in (1e-3, 0.3, 0.99):
        mu = share * (1 - alpha) / k
        x = mu + alpha / k
        assert form.gap(mu) == pytest.approx(math.log(1 / x - (k - 1)), rel=1e-9, abs=1e-12)
        assert form.d_gap(mu, form.gap(mu)) == pytest.approx(-1 / (x**2 * (1 / x - (k - 1))), rel=1e-5)
    assert form.gap(1.0001 * form.collapse_mu) == form.gap(1.0) == 0


@pytest.mark.parametrize("budget", [1e-12, 1e-4, 0.1, 3.0])
@pytest.mark.parametrize("r", [1e-9, 0.02, 0.5, 0.97, 1.0])
def test_the_least_probability_spends_the_budget(r, budget):
    """KL of (r, 1 - r) to (p, 1 - p) in sixty digits; p is rounded down by a part in 1e9."""
    p = least_probability(r, budget)
    if p == 0:
        assert budget / r > 700, "e^(-budget / r) underflows"
        return
    with localcontext() as context:
        context.prec = 60
        wide, small = Decimal(r), Decimal(p)
        rest = (1 - wide) * ((1 - wide) / (1 - small)).ln() if r < 1 else Decimal(0)
        spent = float(wide * (wide / small).ln() + rest)
    assert budget * (1 - 1e-9) <= spent <= budget * (1 + 1e-9) + 2e-9 * r


def test_without_a_budget_or_a_probability_nothing_moves():
    assert least_probability(0.0, 0.1) == 0
    assert least_probability(0.3, 0.0) == pytest.approx(0.3, rel=1e-8)
