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


def spread(positive, negative):
    named = zip(("positive_score", "negative_score"), (positive, negative))
    return {name: {"mean": mean, "std": std} for name, (mean, std) in named}


@pytest.mark.parametrize(
    ("positive", "negative", "holds"),
    [
        ((5.7, 0.6), (-0.6, 0.6), True),
        ((5.7, 0.6), (-0.6, 0.4), False),  # one of both standard deviations is not enough
        ((5.7, 0.4), (-0.6, 0.6), False),
        ((5.7, 0.6), (-0.6, 0.5), False),  # larger than 0.5, as printed
        ((-0.7, 0.6), (-0.6, 0.6), False),
        ((5.7, float("nan")), (-0.6, 0.6), None),
    ],
)
def test_the_failed_run_scatters_in_both_scores(positive, negative, holds):
    assert claims.failed_collapse([failed("ce", **spread(positive, negative))])[1].holds is holds


def test_every_failed_run_has_to_be_like_the_printed_one():
    other = failed("ce", accuracy=0.9, uniform_accuracy=0.0001, **spread((5.7, 0.1), (-0.6, 0.1)))
    found = claims.failed_collapse([failed("ce"), other])
    assert [claim.holds for claim in found[:3]] == [False, False, False]
    edge = publications.load("bce-vs-ce")["table-7"]
    edge = edge.find("train.accuracy", data="cifar10", model="resnet50", optimizer="sgd", loss="ce").value - 0.01
    assert claims.failed_collapse([failed("ce", accuracy=edge)])[0].holds is True, "at least so much"
    assert claims.failed_collapse([failed("ce", accuracy=edge - 1e-9)])[0].holds is False


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


def test_cat_and_dog_are_classes_3_and_5_of_cifar10(tmp_path):
    """Each has a variance of its own; those of the other classes and their distances do not count."""
    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    labels = np.repeat(np.arange(10), 2)
    means = np.diag(np.arange(1.0, 11.0))
    lengths = {"cat": 1.0, "dog": 3.0}
    steps = np.array([lengths.get(names[k], 100.0) for k in labels]) * np.tile([1.0, -1.0], 10)
    arrays = {
        "test.features": np.ascontiguousarray(means[labels] + steps[:, None] * np.eye(10)[0]),
        "test.labels": labels,
        "test.class_means": means,
    }
    expected = (1 + 9) / 2 / (4**2 + 6**2)
    folder = tmp_path / "whole"
    folder.mkdir()
    save_file(arrays, folder / "snapshot.safetensors")
    assert claims.measure_overlap(replace(run(), path=folder)) == pytest.approx(expected, rel=1e-12)
    for name in arrays:
        folder = tmp_path / name
        folder.mkdir()
        save_file({key: value for key, value in arrays.items() if key != name}, folder / "snapshot.safetensors")
        assert np.isnan(claims.measure_overlap(replace(run(), path=folder)))


def test_every_pair_has_to_overlap_less_and_pairs_without_pictures_do_not_count(tmp_path):
    runs = {}
    for seed, (ce, bce) in enumerate([(2.0, 4.0), (4.0, 2.0), (2.0, 2.0)]):
        (tmp_path / str(seed)).mkdir()
        pair = [pictured(tmp_path / str(seed), loss, far) for loss, far in (("ce", ce), ("bce", bce))]
        if ce == bce:
            pair[1] = (pair[1][0], replace(pair[1][1], path=pair[0][1].path))
        runs[seed] = [({**keys, "seed": seed}, replace(r, config={**r.config, "seed": seed})) for keys, r in pair]
    assert claims.separates_cat_from_dog(runs[0] + runs[1]).holds is False
    assert claims.separates_cat_from_dog(runs[2]).holds is False, "as much is not less"
    half = [runs[1][0], (runs[1][1][0], replace(runs[1][1][1], path=tmp_path / "none"))]
    assert claims.separates_cat_from_dog(runs[0] + half).holds is True
    assert claims.separates_cat_from_dog(half).holds is None
