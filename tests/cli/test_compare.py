"""`ncollapse compare` from the command line: its table, its page, and that it can be stopped at any time."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from ncollapse.cli import main
from ncollapse.compare.plan import choose_recipe
from reference.processes import listen

SMALL = ["--epochs", "2", "--seeds", "2", "--jobs", "1"]


def run_compare(out, *more):
    command = [sys.executable, "-m", "ncollapse.cli", "compare", "--out", str(out), *SMALL, *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | {"COLUMNS": "100"})


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    done = run_compare(out)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_prints_a_table_that_fits_and_the_page_last(uninterrupted):
    out, printed = uninterrupted
    lines = printed.rstrip().splitlines()
    assert lines[-1] == str(out / "report.html")
    assert (out / "report.html").is_file()
    assert max(len(line) for line in lines[:-1]) <= 100
    for word in (
        "test accuracy",
        "uniform",
        "compactness",
        "distinctiveness",
        "NC1",
        "bias",
        "certified gap",
        "theory",
    ):
        assert word in printed
    assert "CE, n = 2" in printed
    assert "Against CE" in " ".join(printed.split())


def test_json_is_one_object_and_nothing_is_run_twice(uninterrupted, capsys):
    out, _ = uninterrupted
    before = {p: p.stat().st_mtime_ns for p in out.glob("*/summary.json")}
    assert main(["compare", "--out", str(out), *SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [v["label"] for v in found["variants"]] == ["CE", "BCE"]
    assert found["variants"][1]["difference"]["test.accuracy"]["n"] == 2
    assert found["unfinished"] == []
    assert {p: p.stat().st_mtime_ns for p in out.glob("*/summary.json")} == before
    assert len(before) == 4


def test_stopped_twice_it_ends_with_the_same_table(uninterrupted, tmp_path, capsys):
    _, whole = uninterrupted
    command = [sys.executable, "-m", "ncollapse.cli", "compare", "--out", str(tmp_path), *SMALL]
    for blow in (signal.SIGINT, signal.SIGKILL):
        before = count_epochs(tmp_path)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, **pipes, start_new_session=True, preexec_fn=listen)
        deadline = time.monotonic() + 120
        while count_epochs(tmp_path) == before and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(blow)
        printed, errors = process.communicate(timeout=60)
        assert printed == b""
        if blow == signal.SIGINT:
            assert process.returncode == 130
            assert errors.splitlines()[-1].endswith(b"interrupted; the same command continues where it stopped")
    assert len(list(tmp_path.glob("*/summary.json"))) < 4, "it was stopped too late to show anything"
    assert main(["compare", "--out", str(tmp_path), *SMALL]) == 0
    assert capsys.readouterr().out.splitlines()[:-1] == whole.splitlines()[:-1]


def count_epochs(folder):
    return sum(file.read_bytes().count(b"\n") for file in folder.glob("*/history.jsonl"))


@pytest.mark.parametrize("images", ["vectors", "pictures"])
def test_own_arrays_without_a_test_split(tmp_path, capsys, images):
    random = np.random.default_rng(0)
    labels = np.arange(60) % 3
    arrays = {
        "vectors": random.normal(size=(60, 5)) + 4 * np.eye(3, 5)[labels],
        "pictures": random.integers(0, 256, (60, 6, 6), dtype=np.uint8),
    }
    np.savez(tmp_path / "mine.npz", images=arrays[images], labels=labels)
    options = ["--losses", "bce", "--seeds", "1", "--epochs", "1", "--engine", "packed", "--device", "cpu", "--json"]
    out = tmp_path / "out"
    assert main(["compare", "--data", f"npz:{tmp_path / 'mine.npz'}", "--out", str(out), *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [v["label"] for v in found["variants"]] == ["BCE"]
    (summary,) = (json.loads(p.read_text()) for p in out.glob("*/summary.json"))
    assert summary["train"]["counts"] == [16, 16, 16]
    assert summary["test"]["counts"] == [4, 4, 4]


def test_a_failed_run_is_recorded_and_the_others_go_on(tmp_path, capsys):
    recipe = tmp_path / "wild.json"
    calm = choose_recipe("digits", "ce", None).override(optim__epochs=2)
    recipe.write_text(
        calm.override(optim__lr=1e30, decays__weight=0.0, decays__feature=0.0, decays__bias=0.0).to_json()
    )
    out = tmp_path / "out"
    more = ["--seeds", "1", "--losses", "ce", "mse", "--jobs", "1", "--engine", "packed", "--device", "cpu"]
    assert main(["compare", "--recipe", str(recipe), "--out", str(out), *more]) == 1
    captured = capsys.readouterr()
    assert "seed 0 failed: Diverged: the loss became" in captured.err
    assert "failed" in captured.out
    statuses = [json.loads(p.read_text())["status"] for p in out.glob("*/summary.json")]
    assert len(statuses) == 2
    assert "failed" in statuses
    assert "failed" in (out / "report.html").read_text()
    assert main(["compare", "--recipe", str(recipe), "--out", str(out), *more]) == 1
    assert "failed before and is left out: --retry runs it again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--losses", "cee"], "cee"),
        (["--device", "foo"], "device = 'foo' is not supported"),
        (["--device", "cuda:99"], "device = "),
        (["--seeds", "0"], "seeds"),
        (["--optimisers", "sgdd"], "sgdd"),
        (["--data", "nix"], "data: no data set 'nix'"),
        (["--data", "mnist"], "NCOLLAPSE_DATA"),
        (["--data", "npz:nowhere.npz"], "nowhere.npz"),
        (["--data", "gaussian:dimension=3"], "'dimension'"),
        (["--data", "folder:pictures"], "image_size must be given for folder:pictures"),
        (["--data", "folder:pictures", "--image-size", "8", "--channels", "1"], "channels must be 3 for image folders"),
        (["--jobs", "0"], "jobs"),
        (["--epochs", "0"], "epochs"),
        (["--out", __file__], f"--out {__file__}: is a file, not a folder"),
    ],
)
def test_bad_input_is_named_in_one_line(tmp_path, capsys, monkeypatch, options, word):
    monkeypatch.delenv("NCOLLAPSE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    for split, name in itertools.product(("train", "test"), "ab"):
        picture = tmp_path / "pictures" / split / name / "1.png"
        picture.parent.mkdir(parents=True)
        picture.touch()
    assert main(["compare", "--out", str(tmp_path / "out"), *options]) == 2
    assert not (tmp_path / "out").exists(), "nothing was run"
    captured = capsys.readouterr()
    assert word in captured.err
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""


def test_repeated_it_prints_the_same(uninterrupted, capsys):
    out, printed = uninterrupted
    assert main(["compare", "--out", str(out), *SMALL]) == 0
    assert capsys.readouterr().out == printed
