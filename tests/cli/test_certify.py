"""`ncollapse certify` from the outside."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

import ncollapse as nc
from ncollapse.cli import main

DECAYS = ["--weight-decay", "5e-3", "--feature-decay", "5e-3", "--bias-decay", "0.05"]


@pytest.fixture
def optimum():
    p = nc.predict("bce", num_classes=5, per_class=1, weight_decay=5e-3, feature_decay=5e-3, bias_decay=0.05)
    names = ("features", "labels", "weight", "bias")
    return {name: part.numpy() for name, part in zip(names, p.configuration(6))}, p


def test_json_of_both_file_kinds(tmp_path, capsys, optimum):
    arrays, prediction = optimum
    np.savez(tmp_path / "a.npz", **arrays)
    save_file({name: np.ascontiguousarray(part) for name, part in arrays.items()}, tmp_path / "a.safetensors")
    for file in ("a.npz", "a.safetensors"):
        assert main(["certify", str(tmp_path / file), "--loss", "bce", *DECAYS, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["objective"] == pytest.approx(prediction.objective, abs=1e-10)
        assert abs(found["gap"]) < 1e-9
        assert set(found) >= {"gap", "lower_bound", "objective", "relative_gap", "dual_norm"}


def test_table_and_options_reach_the_library(tmp_path, capsys, optimum):
    arrays, _ = optimum
    arrays["features"] = np.abs(arrays["features"])
    del arrays["bias"]
    np.savez(tmp_path / "a.npz", **arrays)
    options = ["--loss", "mse", "--kappa", "1", "--beta", "3", "--batch-size", "20", "--features", "relu"]
    assert main(["certify", str(tmp_path / "a.npz"), *options, *DECAYS]) == 0
    out = capsys.readouterr().out
    problem = nc.Problem(
        nc.MSELoss(kappa=1, beta=3),
        len(arrays["weight"]),
        weight_decay=5e-3,
        feature_decay=5e-3,
        bias_decay=0.05,
        batch_size=20,
        features="relu",
    )
    expected = nc.certify(**arrays, problem=problem)
    assert f"{expected.objective:.9g}" in out
    assert f"{expected.lower_bound:.9g}" in out
    assert "lower bound" in out


def test_label_smoothing_reaches_the_loss(tmp_path, capsys, optimum):
    arrays, _ = optimum
    np.savez(tmp_path / "a.npz", **arrays)
    assert main(["certify", str(tmp_path / "a.npz"), "--label-smoothing", "0.2", *DECAYS, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = nc.certify(
        **arrays, loss="bce", label_smoothing=0.2, weight_decay=5e-3, feature_decay=5e-3, bias_decay=0.05
    )
    assert found == {key: None if value != value else value for key, value in expected.to_dict().items()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.npz", *DECAYS], "no such file"),
        (["a.npz", *DECAYS], "weight [K, d] missing"),
        (["b.npz", "--weight-decay", "0", "--feature-decay", "1"], "--weight-decay is 0: the minimum"),
        (["b.npz", *DECAYS, "--features", "relu"], "non-negative"),
        (["b.npz", *DECAYS, "--loss", "ce", "--kappa", "2"], "kappa"),
    ],
)
def test_bad_input_is_one_plain_line(tmp_path, monkeypatch, capsys, optimum, arguments, message):
    arrays, _ = optimum
    monkeypatch.chdir(tmp_path)
    np.savez("b.npz", **arrays | {"features": -arrays["features"]})
    np.savez("a.npz", features=arrays["features"], labels=arrays["labels"])
    assert main(["certify", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) <= 2


def test_usage_errors_are_the_parsers(tmp_path):
    with pytest.raises(SystemExit) as stop:
        main(["certify", str(tmp_path / "a.npz")])
    assert stop.value.code == 2
