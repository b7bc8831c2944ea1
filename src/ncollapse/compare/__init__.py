"""Which loss to train with: the runs of a comparison, their statistics over seeds, and the findings in words."""

from ncollapse.compare.comparison import Comparison, compare_records, compare_runs
from ncollapse.compare.findings import Finding, name_early, to_dict
from ncollapse.compare.quantities import QUANTITIES, SPEEDS, Quantity
from ncollapse.compare.ranking import Effect, Place, Ranking
from ncollapse.compare.seeds import Difference, Estimate, estimate, is_number
from ncollapse.compare.variants import (
    LOSSES,
    Variant,
    gather_copies,
    group_runs,
    measured,
    name_loss,
    name_losses,
    name_optimiser,
    predicted,
)

__all__ = [
    "LOSSES",
    "QUANTITIES",
    "SPEEDS",
    "Comparison",
    "Difference",
    "Effect",
    "Estimate",
    "Finding",
    "Place",
    "Quantity",
    "Ranking",
    "Variant",
    "compare_records",
    "compare_runs",
    "estimate",
    "gather_copies",
    "group_runs",
    "is_number",
    "measured",
    "name_early",
    "name_loss",
    "name_losses",
    "name_optimiser",
    "predicted",
    "to_dict",
]
