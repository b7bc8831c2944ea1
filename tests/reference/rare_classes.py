"""What became of the rare classes in the kept runs of ncollapse/weak-decays-first."""

from pathlib import Path
from statistics import fmean

from ncollapse.compare.class_norms import MEANS, ROWS, read_norms
from ncollapse.papers.catalogue import get_experiment
from ncollapse.papers.matching import match
from ncollapse.runs.record import read_runs

RUNS = Path(__file__).parents[2] / "results" / "runs"
RARE = slice(5, None)


def read_rare():
    """For each ratio of class sizes and each kind (weak decays first or not) the runs, one for each seed."""
    grid = get_experiment("ncollapse/weak-decays-first").grid()
    found = {}
    for part in match(grid, read_runs(RUNS)):
        keys = part.point.keys
        assert [part.epochs, len(part.records)] == [part.asked_epochs, 3]
        found[keys["ratio"], keys["weak_epochs"] > 0] = [summarise(record) for record in part.records]
    return found


def summarise(record):
    """How many rare classes remain, their norms beside those of the optimum, and how the run ended."""
    means, rows = read_norms(record, MEANS), read_norms(record, ROWS)
    return {
        "remain": int((means[0][RARE] > 0.5 * means[1][RARE].max()).sum()),
        "mean_norm": fmean(means[0][RARE]),
        "row_norm": fmean(rows[0][RARE]),
        "predicted_mean_norm": fmean(means[1][RARE]),
        "predicted_row_norm": fmean(rows[1][RARE]),
        "relative_gap": record.final("certificate.relative_gap"),
        "test_accuracy": record.final("test.accuracy"),
    }
