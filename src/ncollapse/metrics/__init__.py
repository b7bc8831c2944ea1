"""Every number of the papers about a classifier's last layer, from features, labels and the classifier."""

from .fields import FIELDS, GROUPS, Field
from .measurement import Comparison, Deviation, Measurement
from .measuring import measure
from .ood import ood_score
from .scores import Spread, uniform_accuracy, uniform_accuracy_grid
from .snapshot import Histogram, Snapshot, collect
from .statistics import ClassStatistics

__all__ = [
    "FIELDS",
    "GROUPS",
    "ClassStatistics",
    "Comparison",
    "Deviation",
    "Field",
    "Histogram",
    "Measurement",
    "Snapshot",
    "Spread",
    "collect",
    "measure",
    "ood_score",
    "uniform_accuracy",
    "uniform_accuracy_grid",
]
