"""How much a number depends on which of several equally good epochs is reported.

A table of the epoch with the best test accuracy picks one of many: accuracies that differ by less than the standard
error of the test set are the same for all that is known, and with another seed another of these epochs is the best.
"""

from __future__ import annotations

from ncollapse.papers.standard_error import error_of_rate
from ncollapse.runs.record import RunRecord

Range = tuple[float, float]


def find_tied_epochs(record: RunRecord) -> set[int]:
    """The measured epochs whose test accuracy is within one standard error of the best one's."""
    epochs, accuracies = record.series("test.accuracy")
    samples = record.final("test.num_samples")
    if not epochs or not samples > 0:
        return set()
    best = max(accuracies)
    error = error_of_rate(best, samples)
    return {epoch for epoch, accuracy in zip(epochs, accuracies) if accuracy >= best - error}


def find_tied_range(record: RunRecord, field: str) -> Range:
    """The least and the largest change of a number from the reported epoch to one that is tied with it."""
    changes = read_changes(record, field).values()
    return min(changes, default=0.0), max(changes, default=0.0)


def read_changes(record: RunRecord, field: str) -> dict[int, float]:
    """By how much a number changes from the reported epoch to each tied one; empty where there is no curve of it.

    Of test scores, whose curves older records lack, the change of the training scores.
    """
    curve, epoch = read_curve(record, field), record.final("selected_epoch")
    curve = curve or read_curve(record, field.replace("test.", "train."))
    if epoch not in curve:
        return {}
    return {tied: curve[tied] - curve[int(epoch)] for tied in find_tied_epochs(record) if tied in curve}


def read_curve(record: RunRecord, field: str) -> dict[int, float]:
    """A number by epoch; of a spread its mean."""
    plain = record.series(field)
    return dict(zip(*(plain if plain[1] else record.series(f"{field}.mean"))))
