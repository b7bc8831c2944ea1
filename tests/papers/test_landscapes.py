"""The two figures of mse-landscape that are computed: what the paper reads off them."""

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


def test_rescaling_must_turn_the_gradient(monkeypatch):
    assert [claim.holds for claim in landscapes.check_directions([])] == [True, True]
    monkeypatch.setattr(landscapes, "compute_panel", lambda loss, params: Panel(params["alpha"], 1.0))
    assert [claim.holds for claim in landscapes.check_directions([])] == [False, False]


@pytest.mark.parametrize("item", ["figure-2", "figure-8"])
def test_computed_figures_are_judged_by_claims(item):
    outcome = evaluate(get_experiment(f"mse-landscape/{item}"), [])
    assert outcome.verdict == "reproduced"
    assert len(outcome.claims) == (4 if item == "figure-2" else 2)
    assert outcome.detail.endswith("claims hold")


def test_with_m_at_5_alpha_turns_it_away_as_the_note_says():
    shares = landscapes.compute_shares()
    assert shares["MSE, alpha = 5, M = 5"] < shares["MSE, alpha = 1, M = 5"]
    assert "turns the gradient away" in get_experiment("mse-landscape/figure-8").notes[0]
