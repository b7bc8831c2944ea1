"""The commands as on Windows and macOS: no `fcntl`, processes that start by spawn, a terminal that is not UTF-8."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SITE = """
import multiprocessing, sys
sys.modules["fcntl"] = None
multiprocessing.set_start_method("spawn")
multiprocessing.get_all_start_methods = lambda: ["spawn"]
"""
CHECK = """
import importlib.util, json, multiprocessing, sys
from ncollapse.data.decoding import choose_start_method
found = {"start": multiprocessing.get_start_method(), "decoding": choose_start_method()}
print(json.dumps(found | {"fcntl": sys.modules.get("fcntl"), "terminal": sys.stdout.encoding}))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Variables that change every Python process they reach, the workers among them."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text(SITE)
    paths = [str(folder), str(Path(__file__).parents[2] / "src"), os.environ.get("PYTHONPATH", "")]
    changed = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONIOENCODING": "cp1252", "OMP_NUM_THREADS": "1"}
    return os.environ | changed


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A flat folder of three classes, one name of which cp1252 cannot write."""
    image = pytest.importorskip("PIL.Image")
    folder, source = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for place, (name, count) in enumerate({"cat": 15, "dog": 15, "λύκος": 5}.items()):
        (folder / name).mkdir()
        for number in range(count):
            pixels = source.integers(0, 80, (8, 8, 3)) + 80 * place
            image.fromarray(pixels.astype("uint8")).save(folder / name / f"{number}.png")
    return folder


def run_command(environment, *words):
    command = [sys.executable, "-m", "ncollapse", *words]
    return subprocess.run(command, capture_output=True, encoding="cp1252", env=environment, timeout=300)


def test_the_fixture_changes_what_it_should(environment):
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, env=environment)
    expected = {"start": "spawn", "decoding": "spawn", "fcntl": None, "terminal": "cp1252"}
    assert json.loads(done.stdout) == expected, done.stderr


def test_compare_with_workers(environment, images, tmp_path):
    words = ["--data", f"folder:{images}", "--image-size", "8", "--model", "mlp-small", "--batch-size", "8"]
    words += ["--seeds", "1", "--epochs", "1", "--jobs", "2", "--json", "--out", str(tmp_path)]
    done = run_command(environment, "compare", *words)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    summaries = [json.loads(path.read_bytes()) for path in tmp_path.glob("*/summary.json")]
    assert [summary["status"] for summary in summaries] == ["finished", "finished"]
    assert json.loads(done.stdout)["classes"][0]["names"] == ["cat", "dog", "λύκος"]


def test_train_finds_its_finished_run(environment, tmp_path):
    words = ["digits", "--model.name", "mlp-16", "--epochs", "1", "--out", str(tmp_path)]
    for _ in range(2):
        done = run_command(environment, "train", *words)
        assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("*/summary.json"))) == 1
