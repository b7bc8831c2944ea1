"""The two figures of mse-landscape that are computed: what the paper reads off them."""

import itertools

import numpy as np
import pytest

from ncollapse.papers import landscapes
from ncollapse.papers.catalogue import get_experiment
from ncollapse.papers.outcome import evaluate


class Panel:
    """A landscape with a gradient of one size in s and another in theta, everywhere."""

    norms, angles = np.linspace(0.1, 6, 20), np.linspace(0, np.pi / 2, 20)

    def __init__(self, radial, angular):
        self.d_norm, self.d_angle = np.full((20, 20), radial), np.full((20, 20), angular)


@pytest.mark.parametrize(("angular", "part"), [(2.0, 1.0), (0.5, 0.0)])
def test_steepness_compares_the_two_derivatives(angular, part):
    assert landscapes.part_steeper_in_angle(Panel(1.0, angular)) == part


def test_a_flat_ce_would_not_be_reproduced(monkeypatch):
    """Every panel steep in theta: the claim about MSE fails, the others hold; and the other way round."""
    for angular, holds in ((2.0, [False, True, True, True]), (0.5, [True, False, False, False])):
        panels = dict.fromkeys(landscapes.PANELS, Panel(1.0, angular))
        monkeypatch.setattr(landscapes, "compute_panels", lambda panels=panels: panels)
        assert [claim.holds for claim in landscapes.check_steepness([])] == holds


def share_by_differences(alpha, M, K=10):
    """The mean share of the descent towards smaller theta, from central differences of Eq. 31 in float64."""
    s, theta = np.meshgrid(np.linspace(0.1, 6, 40), np.linspace(0, np.pi / 2, 40))
    step, root = 1e-5, np.sqrt(K * K - 2 * K)

    def loss(s, theta):
        near, far = root * np.sin(theta) - np.cos(theta), np.sqrt(K / (K - 2)) * np.sin(theta) + np.cos(theta)
        own = alpha / 2 * (s * np.cos(theta) - M) ** 2
        return own + s**2 / 2 * (near**2 + (K - 2) * far**2) / (K - 1) ** 2

    along = (loss(s + step, theta) - loss(s - step, theta)) / (2 * step)
    across = (loss(s, theta + step) - loss(s, theta - step)) / (2 * step) / s
    return float(np.mean((across / np.hypot(along, across))[(s > 1) & (theta < 1.5) & (theta > 0)]))


def test_the_share_is_that_of_the_formula_with_its_sign():
    for alpha, M, share in ((1.0, 1.0, 0.252), (1.0, 5.0, 0.800), (5.0, 1.0, -0.008)):
        ours = landscapes.share_towards_class(landscapes.compute_panel("mse", {"alpha": alpha, "M": M}))
        assert ours == pytest.approx(share_by_differences(alpha, M), abs=1e-6)
        assert ours == pytest.approx(share, abs=5e-4)
    assert landscapes.share_towards_class(Panel(0.0, 1.0)) == 1.0
    assert landscapes.share_towards_class(Panel(0.0, -1.0)) == -1.0, "a descent that raises theta"


def test_raising_m_turns_the_descent_to_the_class_and_raising_alpha_does_not(monkeypatch):
    found = landscapes.check_directions([])
    assert [claim.holds for claim in found] == [True, False]
    assert [claim.detail for claim in found] == [f"share of the descent {x} for 0.252" for x in ("0.800", "-0.008")]
    monkeypatch.setattr(landscapes, "compute_panel", lambda loss, params: Panel(1.0, 1.0 + 2 * len(params)))
    assert [claim.holds for claim in landscapes.check_directions([])] == [True, True]


def test_the_cause_says_what_a_grid_of_alpha_and_m_gave():
    (cause,) = get_experiment("mse-landscape/figure-8").claim_causes
    assert landscapes.check_directions([])[1].text.startswith(cause.start)
    assert "With M of 1, 2, 3, 5 and 10 and alpha of 1, 1.5, 2, 5 and 15" in cause.why
    rises = []
    for M in (1, 2, 3, 5, 10):
        shares = [share_by_differences(alpha, M) for alpha in (1, 1.5, 2, 5, 15)]
        rises += [(M, *pair) for pair in itertools.pairwise(shares) if pair[1] >= pair[0]]
    ((M, before, after),) = rises
    assert f"except from 1 to 1.5 at M = {M} ({before:.3f} to {after:.3f})" in cause.why


@pytest.mark.parametrize("item", ["figure-2", "figure-8"])
def test_computed_figures_are_judged_by_claims(item):
    outcome = evaluate(get_experiment(f"mse-landscape/{item}"), [])
    assert outcome.verdict == ("reproduced" if item == "figure-2" else "not reproduced")
    assert len(outcome.claims) == (4 if item == "figure-2" else 2)
    assert outcome.detail.endswith("4 of 4 claims hold" if item == "figure-2" else "1 of 2 claims holds")


def test_the_shares_beside_the_panels_have_alpha_alone():
    assert landscapes.compute_shares()["MSE, alpha = 5, M = 1"] < 0
