"""What the seeds of a variant say: which runs count for its speed, to which resolution, and which quantities."""

import math
from pathlib import Path

import numpy as np
import pytest

from ncollapse.compare import QUANTITIES
from ncollapse.compare.findings import find
from ncollapse.compare.seeds import student_quantile
from ncollapse.compare.variants import Variant
from ncollapse.runs.record import RunRecord

EPOCHS = 12


def make(loss, seed, factor, reach, every=1, lost=()):
    """A run whose NC1 is factor / epoch, and whose accuracy is 1 from one epoch on."""
    measured = [e for e in range(1, EPOCHS + 1) if (e % every == 0 or e == EPOCHS) and e not in lost]
    history = [{"epoch": e, "train": {"nc1": factor / e, "accuracy": float(e >= reach)}} for e in measured]
    config = {"seed": seed, "measure_every": every, "optim": {"epochs": EPOCHS}, "loss": {"name": loss}}
    summary = {"status": "finished", "train": {"nc1": factor / EPOCHS, "nc2": 0.0, "bias": {"mean": -1.0}}}
    return RunRecord(Path(f"{loss}{seed}"), f"{loss}{seed}", config, {}, history, summary, "finished")


def compare(first, second):
    variants = [Variant(loss, loss, {}, "", tuple(runs)) for loss, runs in (("ce", first), ("bce", second))]
    return find(variants[1], variants[0])


@pytest.mark.parametrize("side", [0, 1])
def test_a_run_that_lost_rows_has_no_speed(side):
    """Whichever of the two it is: the epoch at which it got there may be among the rows that are gone."""
    runs = [[make("ce", s, 1.0, 4 + s) for s in range(3)], [make("bce", s, 0.5, 3 + 2 * s) for s in range(3)]]
    whole = compare(*runs).speed_differences["accuracy_epoch"]
    assert (whole.n, whole.mean) == (3, pytest.approx(np.mean([-1, 0, 1])))
    runs[side][2] = make(("ce", "bce")[side], 2, 1.0, 9, lost=(5, 6, 7))
    assert runs[side][2].missing_epochs()
    found = compare(*runs)
    for name in ("accuracy_epoch", "log_nc1"):
        assert found.speed_differences[name].n == 2
    assert found.speed_differences["accuracy_epoch"].mean == pytest.approx(-0.5)
    assert found.speeds["accuracy_epoch"].n == found.reached["accuracy_epoch"] == (2 if side else 3)


def test_epochs_are_known_to_the_epochs_between_measurements_and_logarithms_exactly():
    first = [make("ce", s, 1.0, 8, every=4) for s in range(3)]
    second = [make("bce", s, 0.1 * (1 + 1e-4 * s), 8, every=2) for s in range(3)]
    found = compare(first, second).speed_differences
    reach = student_quantile(2, 0.95) / math.sqrt(3)
    epochs, logs = found["accuracy_epoch"], found["log_nc1"]
    assert (epochs.mean, epochs.resolution) == (0, 4)
    assert epochs.high == pytest.approx(reach * 4 / math.sqrt(6))
    spread = np.std(np.log10(1 + 1e-4 * np.arange(3)), ddof=1)
    assert logs.resolution == 0
    assert logs.high - logs.mean == pytest.approx(reach * spread, rel=1e-6)


def test_ratios_are_those_of_the_quantities_that_have_one():
    runs = [[make(loss, s, factor, 3) for s in range(2)] for loss, factor in (("ce", 1.0), ("bce", 3.0))]
    found = compare(*runs)
    assert set(found.ratios) == {q.key for q in QUANTITIES if q.ratio}
    assert set(found.differences) == set(found.estimates) == {q.key for q in QUANTITIES}
    assert found.ratios["train.nc1"].mean == pytest.approx(math.log(3))
    assert found.ratios["train.nc2"].n == 0, "0 has no logarithm"
    alone = find(Variant("ce", "ce", {}, "", tuple(runs[0])), None)
    assert (alone.differences, alone.ratios, alone.speed_differences) == ({}, {}, {})
