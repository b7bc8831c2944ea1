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
    return out, done.stdout, done.stderr


def test_prints_a_table_that_fits_and_the_page_last(uninterrupted):
    out, printed, _ = uninterrupted
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
    out, _, _ = uninterrupted
    before = {p: p.stat().st_mtime_ns for p in out.glob("*/summary.json")}
    assert main(["compare", "--out", str(out), *SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [v["label"] for v in found["variants"]] == ["CE", "BCE"]
    assert found["variants"][1]["difference"]["test.accuracy"]["n"] == 2
    assert found["unfinished"] == []
    assert {p: p.stat().st_mtime_ns for p in out.glob("*/summary.json")} == before
    assert len(before) == 4


def test_stopped_twice_it_ends_with_the_same_table(uninterrupted, tmp_path, capsys):
    _, whole, _ = uninterrupted
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
    assert "failed (Diverged: the loss became" in captured.err
    assert "failed" in captured.out
    statuses = [json.loads(p.read_text())["status"] for p in out.glob("*/summary.json")]
    assert len(statuses) == 2
    assert "failed" in statuses
    assert "failed" in (out / "report.html").read_text()
    assert main(["compare", "--recipe", str(recipe), "--out", str(out), *more]) == 1
    assert "skipped (failed before; --retry runs it again)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--losses", "cee"], "cee"),
        (["--device", "foo"], "device = 'foo' is not supported"),
        (["--device", "cuda:99"], "device = "),
        (["--seeds", "0"], "seeds"),
        (["--optimisers", "sgdd"], "sgdd"),
        (["--data", "nix"], "data: expected one of digits"),
        (["--index", "3/2"], "index: expected a share"),
        (["--index", "one"], "index: expected i/n, such as 1/4, got one"),
        (["--time-limit", "0"], "time_limit: expected"),
        (["--tune", "lr"], "tune: expected KEY=NUMBER,NUMBER"),
        (["--tune", "lr=0.1,fast"], "tune: expected KEY=NUMBER,NUMBER"),
        (["--tune", "nothing=1,2"], "nothing is not a key"),
        (["--tune", "lr=0.1,0.2", "--index", "1/2"], "tune: cannot be shared"),
        (["--model", "no_such_module:net"], "model: 'no_such_module:net' cannot be imported"),
        (["--model", "timm:resnet18"], "needs timm: pip install 'ncollapse[vision]'"),
        (["--data", "mnist"], "NCOLLAPSE_DATA"),
        (["--data", "npz:nowhere.npz"], "nowhere.npz"),
        (["--data", "gaussian:dimension=3"], "'dimension'"),
        (["--data", "pictures"], "did you mean folder:pictures?"),
        (["--data", "cifar-10"], "did you mean cifar10?"),
        (["--data", "folder:nowhere"], "data: expected a folder of images, found no folder nowhere"),
        (["--data", "folder:pictures"], "image_size: expected a number of pixels"),
        (
            ["--data", "folder:pictures", "--image-size", "8", "--channels", "1"],
            "channels: expected 3 for image folders",
        ),
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
    out, printed, _ = uninterrupted
    assert main(["compare", "--out", str(out), *SMALL]) == 0
    assert capsys.readouterr().out == printed


def test_names_its_recipe_and_what_it_costs_before_it_starts(uninterrupted):
    _, _, said = uninterrupted
    lines = said.splitlines()
    assert lines[0] == "recipe: digits"
    assert lines[1].startswith(
        "  mlp-small from scratch; sgd, lr 0.1, batch 64, 2 epochs, step schedule; decays in the "
    )
    assert lines[2].startswith(
        "data: digits: 1438 training and 359 test samples of 10 classes; pixels in [0, 1], minus"
    )
    assert lines[3].startswith("runs: 4, 0 finished; about ")
    assert lines[3].endswith(" MB on disk")
    started = [line for line in lines if line.endswith(": started")]
    finished = [line for line in lines if line.endswith(": finished")]
    assert (len(started), len(finished)) == (4, 4), "progress is logged where there is no terminal"
    assert any("epoch 2/2 loss" in line for line in lines)


def test_a_dry_run_says_what_would_be_run_and_runs_nothing(tmp_path, capsys):
    out = tmp_path / "out"
    words = ["compare", "--out", str(out), *SMALL, "--dry-run"]
    assert main([*words, "--json", "--model", "mlp-50", "--batch-size", "32"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["state"] for row in found["runs"]] == ["new"] * 4
    assert found["preview"]["settings"].startswith("mlp-50 from scratch; sgd, lr 0.1, batch 32")
    assert found["preview"]["seconds"] > 0
    weights = 4 * (64 * 50 + 5 * 50 * 50 + 6 * 50 + 50 * 10 + 10)
    assert 4 * 2 * weights < found["preview"]["disk_bytes"] < 6_000_000
    assert main([*words, "--index", "1/4"]) == 0
    assert len([line for line in capsys.readouterr().out.splitlines() if line.endswith("  new")]) == 1
    assert not out.exists()


def test_shares_of_a_job_array_make_up_the_whole(uninterrupted, tmp_path, capsys):
    _, whole, _ = uninterrupted
    words = ["compare", "--out", str(tmp_path), *SMALL, "--engine", "packed", "--device", "cpu"]
    assert main([*words, "--index", "1/2"]) == 0
    assert len(list(tmp_path.glob("*/summary.json"))) == 2
    assert main([*words, "--index", "2/2"]) == 0
    capsys.readouterr()
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines()[:-1] == whole.splitlines()[:-1]


def test_a_network_and_an_image_folder_of_one_s_own(tmp_path, capsys, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "own_networks.py").write_text(NETWORK)
    random = np.random.default_rng(0)
    for name, count in (("ant", 25), ("bee", 10), ("wasp", 5)):
        for i in range(count):
            picture = tmp_path / "pets" / name / f"{i}.png"
            picture.parent.mkdir(parents=True, exist_ok=True)
            image.fromarray(random.integers(0, 256, (9, 11, 3), dtype=np.uint8)).save(picture)
    monkeypatch.chdir(tmp_path)
    options = ["--data", "folder:pets", "--image-size", "8", "--model", "own_networks:small", "--precision", "fp32"]
    options += ["--epochs", "1", "--seeds", "2", "--losses", "ce", "bce", "--jobs", "1", "--augment", "flip"]
    assert main(["compare", "--out", "out", *options, "--json"]) == 0
    captured = capsys.readouterr()
    assert "recipe: bce-vs-ce/setting-2" in captured.err
    assert "own_networks:small as its factory makes it; adamw" in captured.err
    assert "32 training and 8 test samples of 3 classes; a fifth of each class is held out for testing" in captured.err
    assert "imbalanced: 20 to 4 training samples a class" in captured.err
    found = json.loads(captured.out)
    (table,) = found["classes"]
    assert table["names"] == ["ant", "bee", "wasp"]
    assert table["train_counts"] == [20, 8, 4]
    assert table["groups"] == ["head", "middle", "tail"]
    assert [row["loss"] for row in table["rows"]] == ["ce", "bce"]
    assert table["rows"][1]["differences"]["tail"]["n"] == 2
    assert main(["compare", "--out", "out", *options]) == 0
    printed = capsys.readouterr().out
    assert "balanced accuracy" in printed
    assert "wasp" in printed


NETWORK = """
from torch import nn

def small(num_classes):
    body = [nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(6, num_classes))
"""


def test_tuning_chooses_a_rate_for_each_loss_on_validation_data(tmp_path, capsys):
    options = ["--epochs", "2", "--seeds", "2", "--jobs", "1", "--engine", "packed", "--device", "cpu"]
    words = ["compare", "--out", str(tmp_path), *options, "--tune", "lr=1e-6,0.2", "--json"]
    assert main(words) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert [choice["loss"] for choice in found["tuning"]] == ["ce", "bce"]
    assert all(choice["candidates"][choice["chosen"]] == {"optim.lr": 0.2} for choice in found["tuning"])
    assert "tuned ce sgd: lr 0.2 (" in captured.err
    assert "the best optim.lr is at the end of the list" in captured.err
    configs = [json.loads(path.read_text()) for path in tmp_path.glob("*/config.json")]
    assert {config["optim"]["lr"] for config in configs} == {0.2}
    assert {config["data"]["validation"] for config in configs} == {0.0}
    tried = [json.loads(path.read_text()) for path in tmp_path.glob("tuning/runs/*/config.json")]
    assert sorted((c["loss"]["name"], c["optim"]["lr"], c["data"]["validation"]) for c in tried) == [
        (loss, lr, 0.1) for loss in ("bce", "ce") for lr in (1e-6, 0.2)
    ]
    assert [v["label"] for v in found["variants"]] == ["CE", "BCE"], "the runs of the tuning are not on the page"
    assert main([*words, "--dry-run"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert (planned["preview"]["runs"], planned["preview"]["finished"]) == (8, 8), "the runs at the chosen rates count"
    assert [row["state"] for row in planned["runs"]] == ["finished"] * 4
