"""An experiment of our own: whether width and length bring losses together, as all-losses says, at its full extent.

The paper's grid of widths and lengths takes an H200 days. Perceptrons on MNIST take minutes, so every corner is run to
its end, over three seeds.
"""

from __future__ import annotations

from ncollapse.papers.all_losses_claims import LOSSES, ORDERS, fits, raises
from ncollapse.papers.all_losses_lengths import Corner, compare_corners
from ncollapse.papers.bce_vs_ce import ACCURACIES
from ncollapse.papers.claims import Claim, Runs
from ncollapse.papers.experiment import Experiment, Point, product

WIDTHS = (16, 128)
EPOCHS = (5, 40)
SMALL, LARGE = Corner(WIDTHS[0], EPOCHS[0]), Corner(WIDTHS[1], EPOCHS[1])


def grid() -> list[Point]:
    """The recipe of all-losses on MNIST: perceptrons of two widths, trained for two lengths; no crops, no flips."""
    from ncollapse.train import recipes

    points = []
    for keys in product(width=WIDTHS, epochs=EPOCHS, loss=LOSSES):
        recipe = recipes.get("all-losses", loss=keys["loss"], epochs=keys["epochs"]).override(
            data__name="mnist",
            model__name=f"mlp-{keys['width']}",
            augment__crop=0,
            augment__flip=False,
            precision="fp32",
            measure_every=max(1, keys["epochs"] // 10),
        )
        points.append(Point(keys, recipe))
    return points


def bring_losses_together(runs: Runs) -> list[Claim]:
    """What all-losses says of its Figures 3 and 4."""
    large = [(keys, record) for keys, record in runs if LARGE.has(keys)]
    return [
        raises(runs, "width", "a wider network"),
        raises(runs, "epochs", "longer training"),
        fits(large),
        *compare_corners(runs, SMALL, LARGE, orders=ORDERS),
    ]


EXPERIMENTS = (
    Experiment(
        "ncollapse/width-and-length",
        "do width and length raise accuracy, lower NC1 and bring four losses together?",
        grid,
        asks=True,
        finals=("last.train.nc1", *ACCURACIES),
        claims=bring_losses_together,
        caption="Perceptrons of widths 16 and 128 on MNIST by the recipe of all-losses (SGD, its four losses and their"
        " parameters, a tenth of the training set held out), trained for 5 and 40 epochs.",
    ),
)
