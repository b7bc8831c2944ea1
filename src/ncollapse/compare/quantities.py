"""The quantities that a comparison looks at: where they stand in a record, their names, and which way is better."""

from __future__ import annotations

from typing import Literal, NamedTuple

Better = Literal["higher", "lower", ""]


class Quantity(NamedTuple):
    """A row of the comparison.

    `percent` marks rates, compared in percentage points; `ratio` marks positive quantities that span decades, compared
    by their ratio; `counts` marks rates that count samples, so that one sample is their smallest step.
    """

    key: str
    title: str
    percent: bool = False
    better: Better = ""
    ratio: bool = False
    counts: bool = False
    meaning: str = ""
    source: str = ""

    @property
    def short(self) -> str:
        """The title without the split."""
        return self.title.removeprefix("test ").removeprefix("train ")

    @property
    def split(self) -> str:
        """The split that it is measured on, such as "test"."""
        return self.key.partition(".")[0]


BCE = "bce-vs-ce"
ACCURACY = "share of samples whose own score is the largest"
UNIFORM = "share of samples that one threshold, the same for all, separates: own score above it, all others below"
COMPACTNESS = "half of 1 plus the mean cosine between centred features of one class; 100 % when each class is a point"
DISTINCTIVENESS = "half of 1 minus the mean cosine between features of different classes; 50 % when orthogonal"
NC1 = "spread within classes relative to the spread between them; 0 when every class has shrunk to its mean"
NC2 = "distance of the classifier from a simplex, in which all pairs of classes are equally far apart; 0 at collapse"
NC3 = "distance between classifier and class means, after scaling; 0 when they point the same way"

QUANTITIES = (
    Quantity(
        "test.accuracy", "test accuracy", True, "higher", counts=True, meaning=ACCURACY, source=f"{BCE} Eqs. 40–42"
    ),
    Quantity(
        "test.uniform_accuracy",
        "test uniform accuracy",
        True,
        "higher",
        counts=True,
        meaning=UNIFORM,
        source=f"{BCE} Eqs. 43–45",
    ),
    Quantity("test.compactness", "test compactness", True, "higher", meaning=COMPACTNESS, source=f"{BCE} Eq. 49"),
    Quantity(
        "test.distinctiveness",
        "test distinctiveness",
        True,
        "higher",
        meaning=DISTINCTIVENESS,
        source=f"{BCE} Eq. 50",
    ),
    Quantity(
        "train.accuracy", "train accuracy", True, "higher", counts=True, meaning=ACCURACY, source=f"{BCE} Eqs. 40–42"
    ),
    Quantity(
        "train.uniform_accuracy",
        "train uniform accuracy",
        True,
        "higher",
        counts=True,
        meaning=UNIFORM,
        source=f"{BCE} Eqs. 43–45",
    ),
    Quantity("train.nc1", "train NC1", False, "lower", ratio=True, meaning=NC1, source=f"{BCE} Eqs. 24–27, 32"),
    Quantity("train.nc2", "train NC2", False, "lower", ratio=True, meaning=NC2, source=f"{BCE} Eq. 33"),
    Quantity("train.nc3", "train NC3", False, "lower", ratio=True, meaning=NC3, source=f"{BCE} Eqs. 34, 36"),
    Quantity("train.positive_score", "positive score", meaning="mean score w·h of a sample for its own class"),
    Quantity("train.negative_score", "negative score", meaning="mean score w·h of a sample for the other classes"),
    Quantity("train.bias", "bias", meaning="mean threshold b of z = W h − b"),
    Quantity("train.weight_energy", "weight energy", meaning="|W|², the squared norm of the classifier"),
    Quantity("train.feature_energy", "feature energy", meaning="mean |h|² of the features"),
    # Each loss has its own objective, so neither side is better.
    Quantity("certificate.gap", "certified gap", meaning="upper bound on the distance of the objective to its minimum"),
)
SPEEDS = {
    "accuracy_epoch": "epoch, accuracy 100 %",
    "uniform_accuracy_epoch": "epoch, uniform 100 %",
    "nc1_epoch": "epoch, NC1 < 0.1",
    "log_nc1": "early mean log10 NC1",
    "log_nc2": "early mean log10 NC2",
    "log_nc3": "early mean log10 NC3",
}
