"""Our own grid of widths and lengths, checked on runs made by hand."""

import pytest

from ncollapse.papers.all_losses_claims import LOSSES
from ncollapse.papers.catalogue import get_experiment
from ncollapse.papers.width_and_length import EPOCHS, LARGE, SMALL, WIDTHS, bring_losses_together
from ncollapse.train import recipes
from reference.paper_runs import run


def place(width, epochs, loss, accuracy, nc1, fit=1.0):
    record = run(0, epochs, test__accuracy=accuracy, train__nc1=nc1, train__accuracy=fit)
    return {"width": width, "epochs": epochs, "loss": loss}, record


def square(*, small=0.02, large=0.004, nc1=1e-4, fit=1.0, longer=0.05):
    """Runs at the four corners; the losses lie `small` and `large` apart in two of them."""
    runs = []
    for i, loss in enumerate(LOSSES):
        runs += [
            place(*SMALL, loss, 0.85 + small * i / 3, 1.0),
            place(WIDTHS[1], EPOCHS[0], loss, 0.9, 0.5),
            place(WIDTHS[0], EPOCHS[1], loss, 0.9, 0.5),
            place(*LARGE, loss, 0.9 + longer + large * i / 3, nc1, fit),
        ]
    return runs


@pytest.mark.parametrize(
    ("changes", "holds"),
    [
        ({}, [True, True, True, True, True]),
        ({"large": 0.03}, [True, True, True, False, True]),
        ({"nc1": 0.02}, [True, True, True, True, False]),
        ({"fit": 0.995}, [True, True, False, True, True]),
        ({"fit": 0.98}, [True, True, False, None, True]),
        ({"longer": -0.03}, [False, False, True, True, True]),
    ],
)
def test_what_all_losses_says_is_checked_at_the_corners(changes, holds):
    claims = bring_losses_together(square(**changes))
    assert [claim.holds for claim in claims] == holds


def test_what_is_said_names_the_corners():
    less, collapsed = bring_losses_together(square())[-2:]
    assert less.text.endswith("at width 16 and 5 epochs than at width 128 and 40 epochs")
    assert less.detail == "2.00 against 0.40 points"
    assert collapsed.detail.startswith("4.0 orders of magnitude in the mean")
    assert "by 2 orders" in collapsed.text


def test_a_loss_that_is_missing_leaves_it_open():
    runs = [(keys, record) for keys, record in square() if keys["loss"] != "mse"]
    assert [claim.holds for claim in bring_losses_together(runs)] == [None] * 5


def test_the_grid_is_the_recipe_of_all_losses_on_perceptrons():
    points = get_experiment("ncollapse/width-and-length").grid()
    assert len(points) == 16
    for point in points:
        recipe, model = point.recipe, recipes.get("all-losses", loss=point.keys["loss"], epochs=point.keys["epochs"])
        assert (recipe.optim, recipe.schedule, recipe.loss) == (model.optim, model.schedule, model.loss)
        assert recipe.model.name == f"mlp-{point.keys['width']}"
        assert (recipe.data.name, recipe.data.validation) == ("mnist", 0.1)
        assert not recipe.augment.spatial
