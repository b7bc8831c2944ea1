"""`ncollapse measure FILE`."""

import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import ncollapse as nc
from ncollapse import cli
from ncollapse.metrics import FIELDS


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 15)
    features = (3 * np.eye(4, 6)[labels] + rng.normal(size=(60, 6))).astype(np.float32)
    return {"features": features, "labels": labels, "weight": np.eye(4, 6), "bias": np.full(4, 0.5)}


def run(capsys, *arguments):
    code = cli.main(["measure", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_json_is_the_measurement(tmp_path, arrays, capsys, kind):
    file = tmp_path / f"features.{kind}"
    if kind == "npz":
        np.savez(file, **arrays)
    else:
        save_file({name: torch.from_numpy(array) for name, array in arrays.items()}, file)
    code, out, err = run(capsys, file, "--json")
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    expected = nc.measure(**arrays)
    assert json.loads(out) == json.loads(expected.to_json())


@pytest.mark.parametrize("width", [80, 100, 200])
def test_the_table_names_every_field_within_the_width(tmp_path, arrays, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    np.savez(tmp_path / "f.npz", **arrays)
    code, out, _ = run(capsys, tmp_path / "f.npz", "--numerical-rank")
    assert code == 0
    rows = out.splitlines()
    assert max(map(len, rows)) <= width
    lines = {line.split()[0]: line for line in rows if line.startswith("  ") and line[2] != " "}
    not_measured = out.split("not measured:")[1]
    for row in FIELDS:
        if row.name in ("bias_residual", "bias_residual_printed", "nc3_relu"):
            assert row.name in not_measured
        elif row.name != "empty_classes":
            meaning = lines[row.name] if width == 200 else " ".join(out.split(lines[row.name])[1].split())
            assert row.meaning in meaning
    assert f"{nc.measure(**arrays).nc1:.6g}" in lines["nc1"]
    assert "1.33333" in lines["cosine_margin"]


def test_without_a_classifier(tmp_path, arrays, capsys):
    np.savez(tmp_path / "f.npz", features=arrays["features"], labels=arrays["labels"])
    code, out, _ = run(capsys, tmp_path / "f.npz")
    assert code == 0
    assert "accuracy" in out.split("not measured:")[1]


def test_fields_by_choice(tmp_path, arrays, capsys):
    np.savez(tmp_path / "f.npz", **arrays)
    code, out, _ = run(capsys, tmp_path / "f.npz", "--fields", "nc1", "cdnv", "--json")
    assert code == 0
    found, expected = json.loads(out), nc.measure(**arrays)
    assert found["nc1"] == pytest.approx(expected.nc1, rel=1e-12)
    assert found["cdnv"] == pytest.approx(expected.cdnv, rel=1e-12)
    assert found["accuracy"] is None
    code, out, _ = run(capsys, tmp_path / "f.npz", "--fields", "all", "--json")
    assert json.loads(out) == json.loads(expected.to_json())
    code, _, err = run(capsys, tmp_path / "f.npz", "--fields", "nc9")
    assert code == 2
    assert "fields: expected" in err


def test_fields_that_were_asked_for_and_not_measured_are_named(tmp_path, arrays, capsys):
    np.savez(tmp_path / "f.npz", features=arrays["features"], labels=arrays["labels"])
    _, out, _ = run(capsys, tmp_path / "f.npz", "--fields", "nc1", "nc3", "accuracy")
    assert out.rstrip().endswith("\nnot measured: nc3, accuracy")
    _, out, _ = run(capsys, tmp_path / "f.npz", "--fields", "nc1")
    assert "not measured" not in out


def test_options_that_would_be_ignored_are_refused(tmp_path, arrays, capsys):
    np.savez(tmp_path / "f.npz", **arrays)
    for option, value in (("split", "test"), ("root", "."), ("layer", "fc"), ("normalise", "none"), ("channels", "3")):
        code, _, err = run(capsys, tmp_path / "f.npz", f"--{option}", value)
        assert (code, err) == (
            2,
            f"ncollapse measure: --{option}: works on a checkpoint only, not on a FILE of arrays\n",
        )
    checkpoint = ("--model", "mlp-small", "--weights", "w.safetensors", "--data", "digits")
    code, _, err = run(capsys, *checkpoint, "--missing-classes", "strict")
    assert (code, err) == (2, "ncollapse measure: --missing-classes: works on a FILE of arrays only\n")


def test_means_of_a_reference_and_strict_classes(tmp_path, arrays, capsys):
    np.savez(tmp_path / "test.npz", **arrays)
    train = {"features": arrays["features"][::2] + 1.0, "labels": arrays["labels"][::2]}
    np.savez(tmp_path / "train.npz", **train)
    code, out, _ = run(capsys, tmp_path / "test.npz", "--reference", tmp_path / "train.npz", "--json")
    assert code == 0
    expected = nc.measure(**arrays, reference=(train["features"], train["labels"]))
    assert json.loads(out)["nc4"] == expected.nc4
    np.savez(tmp_path / "holes.npz", **{**arrays, "labels": np.where(arrays["labels"] == 2, 1, arrays["labels"])})
    with pytest.warns(UserWarning, match="no sample of class 2"):
        code, out, _ = run(capsys, tmp_path / "holes.npz", "--missing-classes", "strict", "--json")
    assert json.loads(out)["nc1"] is None
    rare = np.where(np.arange(60) % 3 == 2, np.where(np.arange(60) == 2, 2, 1), arrays["labels"])
    np.savez(tmp_path / "rare.npz", **{**arrays, "labels": rare})
    code, out, _ = run(capsys, tmp_path / "rare.npz", "--min-count", "5", "--json")
    assert json.loads(out)["counts"] == [int(n) if n >= 5 else 0 for n in np.bincount(rare, minlength=3)]


def bad_files(tmp_path, arrays):
    np.savez(tmp_path / "missing.npz", features=arrays["features"])
    yield "missing.npz", "labels missing"
    np.savez(tmp_path / "extra.npz", **arrays, logits=np.zeros(3))
    yield "extra.npz", "unknown logits"
    np.savez(tmp_path / "pickled.npz", features=arrays["features"], labels=np.array([{}] * 60, dtype=object))
    yield "pickled.npz", "labels holds pickled objects"
    np.savez(tmp_path / "bias.npz", **{name: arrays[name] for name in ("features", "labels", "bias")})
    yield "bias.npz", "weight"
    np.savez(tmp_path / "whole.npz", **arrays)
    whole = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    yield "cut.npz", "not a readable .npz"
    (tmp_path / "flipped.npz").write_bytes(whole[:400] + bytes([whole[400] ^ 255]) + whole[401:])
    yield "flipped.npz", "not a readable .npz file (Bad CRC"
    with zipfile.ZipFile(tmp_path / "raw.npz", "w") as archive:
        archive.writestr("features", "1 2 3")
        archive.writestr("labels", "0")
    yield "raw.npz", "features is not an array"
    np.savez(tmp_path / "names.npz", features=arrays["features"], labels=np.array(["cat"] * 60))
    yield "names.npz", "labels: expected integers"
    (tmp_path / "broken.npz").write_bytes(b"not an archive")
    yield "broken.npz", "not a readable .npz"
    (tmp_path / "broken.safetensors").write_bytes(b"no")
    yield "broken.safetensors", "not a readable .safetensors"
    with open(tmp_path / "single.npz", "wb") as file:
        np.save(file, arrays["features"])
    yield "single.npz", "single array"
    (tmp_path / "x.csv").write_text("1,2")
    yield "x.csv", ".npz or .safetensors"
    np.savez(tmp_path / "labels.npz", features=arrays["features"], labels=arrays["labels"] * 1.0)
    yield "labels.npz", "labels: expected integers"
    yield "absent.npz", "no such file"


def test_bad_files_are_one_plain_line_and_exit_code_2(tmp_path, arrays, capsys):
    for name, words in bad_files(tmp_path, arrays):
        code, out, err = run(capsys, tmp_path / name)
        assert (code, out) == (2, ""), name
        assert words in err, err
        assert len(err.splitlines()) == 1
        assert "Traceback" not in err


def test_a_warning_goes_to_stderr_and_json_stays_clean(tmp_path, arrays):
    labels = np.where(arrays["labels"] == 2, 1, arrays["labels"])
    np.savez(tmp_path / "f.npz", **{**arrays, "labels": labels})
    command = [sys.executable, "-m", "ncollapse.cli", "measure", str(tmp_path / "f.npz"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["nc1"] > 0
    assert (found["empty_classes"], found["present_classes"]) == ([2], 3)
    assert done.stderr == (
        "ncollapse measure: warning: no sample of class 2; "
        "fields that compare class means are of the 3 classes present\n"
    )
