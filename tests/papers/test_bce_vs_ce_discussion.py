"""What bce-vs-ce says of K > d, of transformers, of its failed run and of its t-SNE figure, on runs made by hand."""

from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

from ncollapse.papers import bce_vs_ce_discussion as claims
from ncollapse.papers import publications
from reference.paper_runs import curve, run


def narrow(loss, dim, *, low=3.0, faster=1.0):
    """A run whose scores are +-low around a bias of 1, in 95 % of the samples."""
    spreads = {
        "positive_score": {"q05": 1 + low, "min": -9.0},
        "negative_score": {"q95": 1 - low, "max": 9.0},
        "bias": {"min": 1.0, "max": 1.0},
    }
    record = run(epochs=10, history=curve(*(faster * value for value in (1.0, 0.5, 0.1, *[0.01] * 7))))
    return {"loss": loss, "dim": dim}, replace(record, summary={"status": "finished", "train": spreads})


@pytest.mark.parametrize(
    ("low", "faster", "holds"), [(3.0, 0.5, [True, True]), (-0.1, 0.5, [False, True]), (3.0, 2.0, [True, False])]
)
def test_with_more_classes_than_dimensions(low, faster, holds):
    runs = [run for dim in (10, 20, 50) for run in (narrow("ce", dim), narrow("bce", dim, low=low, faster=faster))]
    wide = [narrow("ce", 512), narrow("bce", 512, low=-5, faster=9.0)]
    assert [claim.holds for claim in claims.more_classes_than_dimensions(runs + wide)] == [True, True, *holds]
    assert all(claim.holds is None for claim in claims.more_classes_than_dimensions(wide)), "d = 512 is not K > d"


@pytest.mark.parametrize(("gain", "holds"), [(0.02, True), (-0.02, False)])
def test_transformers_gain_as_well(gain, holds):
    names = ("uniform_accuracy", "compactness", "distinctiveness")
    ce, bce = ({f"test__{name}": 0.5 + more for name in names} for more in (0.0, gain))
    found = claims.transformers([({"loss": "ce"}, run(**ce)), ({"loss": "bce"}, run(**bce))])
    assert [claim.holds for claim in found] == [holds] * 3


def failed(loss, **changes):
    """ResNet50 under SGD on CIFAR10, as Table 7 prints it."""
    table = publications.load("bce-vs-ce")["table-7"]
    where = {"data": "cifar10", "model": "resnet50", "optimizer": "sgd", "loss": loss}
    train = {name: table.find(f"train.{name}", **where).value for name in ("accuracy", "uniform_accuracy")}
    for name in ("positive_score", "negative_score"):
        cell = table.find(f"train.{name}", **where)
        train[name] = {"mean": cell.value, "std": float(cell.std)}
    return {"loss": loss}, replace(run(), summary={"status": "finished", "train": train | changes})


def test_table_7_bears_what_the_text_says_but_for_the_uniform_accuracy():
    found = claims.failed_collapse([failed("ce"), failed("bce")])
    assert [claim.holds for claim in found] == [True, True, False, True, True]
    as_in_the_text = claims.failed_collapse([failed("ce", uniform_accuracy=0.0001)])
    assert [claim.holds for claim in as_in_the_text] == [True, True, True, None, None]


def test_each_printed_number_has_its_own_threshold():
    found = claims.failed_collapse([failed("ce"), failed("bce")])
    printed = ("99.61", "99.65", "99.32")
    for claim, number in zip((found[0], found[3], found[4]), printed, strict=True):
        assert claim.text.endswith(f"at least {float(number) - 1:.2f} %")
        assert f"the {number} % of Table 7" in claim.threshold
    low = claims.failed_collapse([failed("ce"), failed("bce", accuracy=0.9863, uniform_accuracy=0.9835)])
    assert [claim.holds for claim in low[3:]] == [False, True], "98.65 and 98.32"


def test_a_run_that_collapses_is_not_the_failed_one():
    small = {name: {"mean": mean, "std": 0.1} for name, mean in (("positive_score", 5.7), ("negative_score", -0.6))}
    found = claims.failed_collapse([failed("ce", **small), failed("bce", accuracy=0.9, uniform_accuracy=0.5)])
    assert [claim.holds for claim in found] == [True, False, False, False, False]


def pictured(tmp_path, loss, distance):
    """A run with a snapshot in which cat and dog have variance 1 and lie `distance` apart."""
    rng = np.random.default_rng(0)
    means = 10 * np.eye(10, 12)
    means[5] = means[3] + distance * np.eye(12)[11]
    labels = np.repeat(np.arange(10), 200)
    features = means[labels] + rng.normal(size=(2000, 12)) / np.sqrt(12)
    folder = tmp_path / f"{loss}-{distance}"
    folder.mkdir()
    arrays = {"test.features": features, "test.labels": labels, "test.class_means": means}
    save_file({k: np.ascontiguousarray(v) for k, v in arrays.items()}, folder / "snapshot.safetensors")
    values = {"test__compactness": distance / 10, "test__distinctiveness": distance / 10}
    return {"loss": loss}, replace(run(**values), path=folder)


def test_the_overlap_is_the_variance_over_the_squared_distance(tmp_path):
    _, record = pictured(tmp_path, "ce", 2.0)
    assert claims.measure_overlap(record) == pytest.approx(1 / 4, rel=0.05)
    assert np.isnan(claims.measure_overlap(run()))


@pytest.mark.parametrize(("ce", "bce", "holds"), [(2.0, 4.0, True), (4.0, 2.0, False)])
def test_cat_and_dog_are_further_apart_under_bce(ce, bce, holds, tmp_path):
    runs = [pictured(tmp_path, "ce", ce), pictured(tmp_path, "bce", bce)]
    assert [claim.holds for claim in claims.cat_and_dog(runs)] == [holds] * 3
    assert claims.separates_cat_from_dog([({"loss": loss}, run()) for loss in ("ce", "bce")]).holds is None
