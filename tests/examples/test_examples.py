"""Every example runs as it stands, on little data; the one that needs timm runs in `make test-vision`."""

import csv
import importlib.util
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
TESTED = {"plain_loop", "lightning_callback", "huggingface_trainer", "two_processes", "timm_finetune", "language_model"}


def run(name, capsys, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


def read_column(out, name):
    return [float(value) for value in re.findall(rf"{name} +([\d.]+)", out)]


def test_no_example_goes_untested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == TESTED


def test_plain_loop(capsys, monkeypatch, tmp_path):
    out = run("plain_loop", capsys, monkeypatch, "--epochs", 10, "--out", tmp_path / "nc.html")
    first, last = read_column(out, "NC1")
    assert last < first
    gaps = read_column(out, "certified gap")
    assert gaps[1] < gaps[0]
    assert re.search(r"positive_score +[\d.]+ +7\.8100", out)  # the prediction for these decays and this batch
    assert "plotly" in (tmp_path / "nc.html").read_text()


@pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning")
@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning")
def test_lightning_callback(capsys, monkeypatch, tmp_path):
    out = run("lightning_callback", capsys, monkeypatch, "--epochs", 2, "--out", tmp_path)
    curve, accuracy = read_column(out, "NC1"), read_column(out, "accuracy")
    assert len(curve) == 3
    assert accuracy[0] < 0.4 < accuracy[-1]
    with next(tmp_path.rglob("metrics.csv")).open() as file:
        logged = [float(row["nc/nc1"]) for row in csv.DictReader(file) if row["nc/nc1"]]
    assert logged == pytest.approx(curve, abs=1e-4)


@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
def test_huggingface_trainer(capsys, monkeypatch, tmp_path):
    out = run("huggingface_trainer", capsys, monkeypatch, "--epochs", 1, "--out", tmp_path)
    before, after = read_column(out, "accuracy")
    assert before < 0.3
    assert after > before


def test_language_model(capsys, monkeypatch, tmp_path):
    out = run("language_model", capsys, monkeypatch, "--fast", "--out", tmp_path / "nc.html")
    curve, accuracy = read_column(out, "NC1"), read_column(out, "accuracy")
    assert curve[-1] < 0.8 * curve[0]
    assert accuracy[0] < 0.1
    assert accuracy[-1] > 0.75  # a token is followed by its successor in 85 % of the text
    rows = [line.split() for line in out.splitlines() if "%" in line]
    numbers, shares = ([float(row[place].rstrip("%")) for row in rows] for place in (-5, -4))
    assert 190 <= sum(numbers) <= 200  # of 200 tokens, those that occur at least twice
    assert sum(shares) == pytest.approx(100, abs=0.3)
    assert "layers.layers.0" in (tmp_path / "nc.html").read_text()


def test_two_processes():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(EXAMPLES / "two_processes.py"), "--epochs", "2"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    curve = read_column(done.stdout, "NC1")
    assert len(curve) == 2  # one process prints
    assert curve[1] < curve[0]
    assert done.stdout.count("samples 1797 (running 1797)") == 2  # 1797 is odd: the sampler's repeat is masked out


@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="needs timm: make test-vision")
def test_timm_finetune(capsys, monkeypatch):
    out = run("timm_finetune", capsys, monkeypatch, "--model", "resnet18", "--samples", 192, "--epochs", 2)
    assert len(read_column(out, "NC1")) == 2
