"""`ncollapse compare` from the command line: its table, its page, and that it can be stopped at any time."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from ncollapse.cli import main

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


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGKILL])
def test_stopped_anywhere_it_ends_with_the_same_table(uninterrupted, tmp_path, blow):
    _, whole = uninterrupted
    command = [sys.executable, "-m", "ncollapse.cli", "compare", "--out", str(tmp_path), *SMALL]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    deadline = time.monotonic() + 120
    while not any(p.stat().st_size for p in tmp_path.glob("*/history.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(blow)
    _, errors = process.communicate(timeout=60)
    if blow == signal.SIGINT:
        assert process.returncode == 130
        assert b"continues where it stopped" in errors
    assert len(list(tmp_path.glob("*/summary.json"))) < 4, "it was stopped too late to show anything"
    again = run_compare(tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines()[:-1] == whole.splitlines()[:-1]


def test_a_failed_run_is_recorded_and_the_others_go_on(tmp_path, monkeypatch):
    recipe = tmp_path / "wild.json"
    from ncollapse.experiments.compare import choose_recipe

    calm = choose_recipe("digits", "ce", None).override(optim__epochs=2)
    recipe.write_text(
        calm.override(optim__lr=1e30, decays__weight=0.0, decays__feature=0.0, decays__bias=0.0).to_json()
    )
    out = tmp_path / "out"
    more = ["--out", str(out), "--seeds", "1", "--losses", "ce", "mse", "--jobs", "1"]
    command = [sys.executable, "-m", "ncollapse.cli", "compare", "--recipe", str(recipe), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    statuses = [json.loads(p.read_text())["status"] for p in out.glob("*/summary.json")]
    assert len(statuses) == 2
    assert "failed" in statuses
    assert done.returncode == 1
    assert "failed" in done.stdout
    assert "failed" in (out / "report.html").read_text()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--losses", "cee"], "cee"),
        (["--seeds", "0"], "seeds"),
        (["--optimisers", "sgdd"], "sgdd"),
        (["--data", "nix"], "nix"),
    ],
)
def test_bad_input_is_named(tmp_path, capsys, options, word):
    assert main(["compare", "--out", str(tmp_path / "out"), *options]) == 2
    captured = capsys.readouterr()
    assert word in captured.err
    assert captured.out == ""
