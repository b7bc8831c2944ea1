"""Snapshots of a few epochs: which, how small, what is kept of them, and what happens to damaged or later ones."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ncollapse.runs.epoch_snapshots import (
    COMPONENTS,
    EPOCHS,
    FILE,
    SAMPLES,
    add_epoch,
    choose_epochs,
    cut_epochs,
    read_epochs,
    reduce_epochs,
    reduce_features,
    samples_per_class,
    thin_epoch,
)

RNG = np.random.default_rng(0)


def make_arrays(classes=10, dim=64, each=15, scale=1.0):
    means = RNG.normal(size=(classes, dim)) * scale
    labels = np.repeat(np.arange(classes), each)
    arrays = {"weight": RNG.normal(size=(classes, dim)), "train.class_means": means, "bias": np.zeros(classes)}
    for split in ("train", "test"):
        arrays[f"{split}.features"] = (means[labels] + RNG.normal(size=(len(labels), dim))).astype(np.float32)
        arrays[f"{split}.labels"] = labels
        for name in ("positive_score", "negative_score", "margin"):
            arrays[f"{split}.{name}.edges"] = np.linspace(0, 1, 49)
            arrays[f"{split}.{name}.counts"] = np.arange(48)
    arrays["train.counts"] = np.bincount(labels)
    return arrays


@pytest.mark.parametrize("epochs", [1, 2, 7, 30, 100, 800])
@pytest.mark.parametrize("every", [1, 3, 50])
def test_epochs_are_measured_ones_close_together_at_first_and_end_with_the_last(epochs, every):
    chosen = sorted(choose_epochs(epochs, every))
    assert chosen[-1] == epochs
    assert all(epoch % every == 0 or epoch in (1, epochs) for epoch in chosen)
    assert len(chosen) <= EPOCHS
    assert chosen[0] == 1
    if every == 1:
        steps = np.diff(chosen[:-1])
        assert (np.diff(steps) >= -1).all(), "steps grow, but for rounding"


def test_what_is_kept_is_small_and_exact():
    arrays = make_arrays(dim=512)
    kept = thin_epoch(arrays)
    w, h = arrays["weight"], arrays["train.class_means"]
    np.testing.assert_allclose(kept["gram.weight"], w @ w.T, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(kept["gram.means"], h @ h.T, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(kept["gram.cross"], w @ h.T, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(kept["train.features"], arrays["train.features"], rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(kept["test.negative_score.counts"], np.arange(48))
    assert not [name for name in kept if "margin" in name or name in ("weight", "train.class_means")]


@pytest.mark.parametrize("classes", [2, 10, 100, 1000])
def test_the_number_of_samples_and_classes_is_bounded(classes):
    kept = thin_epoch(make_arrays(classes, dim=8, each=samples_per_class(classes)))
    assert len(kept["train.features"]) <= SAMPLES
    assert len(np.unique(kept["train.labels"])) == min(classes, SAMPLES)
    assert len(kept["gram.classes"]) <= 20
    assert kept["gram.means"].shape == (len(kept["gram.classes"]),) * 2


def test_features_too_large_for_half_precision_stay_finite(tmp_path):
    add_epoch(tmp_path, 1, make_arrays(scale=1e6))
    found, problem = read_epochs(tmp_path)
    assert problem is None
    assert np.isfinite(found[1]["train.features"]).all()
    assert np.abs(found[1]["train.features"]).max() > 1e6


def test_all_epochs_share_the_axes_of_the_last(tmp_path):
    whole = {epoch: make_arrays() for epoch in (1, 2, 5)}
    for epoch, arrays in whole.items():
        add_epoch(tmp_path, epoch, arrays)
    raw, _ = read_epochs(tmp_path)
    reduce_epochs(tmp_path)
    found, _ = read_epochs(tmp_path)
    assert list(found) == [1, 2, 5]
    last = np.asarray(raw[5]["train.features"], np.float64)
    centred = last - last.mean(0)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    axes = vectors[:, ::-1][:, :COMPONENTS]
    for epoch in whole:
        for name in ("train.features", "test.features"):
            expected = np.asarray(raw[epoch][name], np.float64) @ axes
            np.testing.assert_allclose(np.abs(found[epoch][name]), np.abs(expected), atol=1e-4)
        np.testing.assert_array_equal(found[epoch]["gram.cross"], raw[epoch]["gram.cross"])
    spread = np.asarray(found[5]["train.features"]).var(0) * len(last)
    np.testing.assert_allclose(spread, values[::-1][:COMPONENTS], rtol=1e-4)
    before = (tmp_path / FILE).read_bytes()
    reduce_epochs(tmp_path)
    assert (tmp_path / FILE).read_bytes() == before, "what is reduced stays as it is"
    assert (tmp_path / FILE).stat().st_size < 100_000
    assert reduce_features({}) == {}


def test_a_run_that_goes_back_loses_its_later_epochs(tmp_path):
    for epoch in (1, 2, 5):
        add_epoch(tmp_path, epoch, make_arrays())
    cut_epochs(tmp_path, 2)
    assert list(read_epochs(tmp_path)[0]) == [1, 2]
    add_epoch(tmp_path, 5, make_arrays())
    add_epoch(tmp_path, 2, make_arrays())
    assert list(read_epochs(tmp_path)[0]) == [1, 2], "an epoch that is trained again replaces itself and later ones"
    cut_epochs(tmp_path, 0)
    assert not (tmp_path / FILE).exists()
    cut_epochs(tmp_path, 0)


def test_features_of_another_space_are_not_mixed(tmp_path):
    add_epoch(tmp_path, 1, make_arrays(dim=64))
    reduce_epochs(tmp_path)
    add_epoch(tmp_path, 2, make_arrays(dim=64))
    assert list(read_epochs(tmp_path)[0]) == [2]


DAMAGES = {
    "cut": "",
    "name": "x/bias: expected a name such as 12/train.features",
    "zero": "0/bias: expected a name such as 12/train.features",
    "label": "epoch 1: train.labels: expected whole numbers",
    "gram": "epoch 1: gram.means: expected one row and one column for each of gram.classes",
    "nan": "epoch 1: bias: expected finite numbers",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_named_and_replaced(tmp_path, damage):
    add_epoch(tmp_path, 1, make_arrays())
    file = tmp_path / FILE
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-10])
    else:
        arrays = load_file(file)
        if damage == "name":
            arrays["x/bias"] = np.zeros(3)
        if damage == "zero":
            arrays["0/bias"] = np.zeros(10)
        if damage == "label":
            arrays["1/train.labels"] = -arrays["1/train.labels"]
        if damage == "gram":
            arrays["1/gram.means"] = np.zeros((3, 4))
        if damage == "nan":
            arrays["1/bias"] = np.full(10, np.nan)
        save_file(arrays, file)
    found, problem = read_epochs(tmp_path)
    assert found == {}
    assert problem.startswith(f"{FILE}: {DAMAGES[damage]}")
    add_epoch(tmp_path, 2, make_arrays())
    assert list(read_epochs(tmp_path)[0]) == [2]
    file.write_bytes(b"")
    cut_epochs(tmp_path, 5)
    assert not file.exists()


@pytest.mark.parametrize("change", [lambda folder: add_epoch(folder, 2, make_arrays()), reduce_epochs])
def test_a_file_that_cannot_be_read_now_is_not_overwritten(tmp_path, monkeypatch, change):
    add_epoch(tmp_path, 1, make_arrays())
    before = (tmp_path / FILE).read_bytes()

    def fail(path, limit):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("ncollapse.runs.epoch_snapshots.read_bounded", fail)
        with pytest.raises(OSError, match="Input/output error"):
            change(tmp_path)
        with pytest.raises(OSError, match="Input/output error"):
            cut_epochs(tmp_path, 0)
        assert read_epochs(tmp_path)[1].startswith(f"{FILE}: ")
    assert (tmp_path / FILE).read_bytes() == before
