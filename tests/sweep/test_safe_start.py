"""Workers import nothing from the folder they are started in, whichever engine starts them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

NAMES = ("cattrs", "random", "socket", "tomllib", "difflib", "scipy")
"""Modules that a sweep imports late, in its workers or here; a user's folder may hold files of these names."""
PLANTED = "import pathlib\npathlib.Path({marker!r}).touch()\nraise ImportError('planted')\n"
SWEEP = """
import sys
from ncollapse.sweep.sweep import sweep
from ncollapse.train import recipes

base = recipes.get("digits").override(model__name="mlp-16", data__samples_per_class=10, optim__batch_size=20)
runs = [base.override(optim__epochs=1, seed=seed) for seed in range(2)]
records = sweep(runs, "runs", engine=sys.argv[1], jobs=1, device="cpu")
print(*[record.status for record in records])
"""
FOLDER = """
from ncollapse.data import FolderEvalLoader, load

if __name__ == "__main__":
    print(sum(len(y) for _, y in FolderEvalLoader(load("folder:pictures"), 2, image_size=8, workers=1)))
"""


def plant(folder):
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(PLANTED.format(marker=str(folder / "executed")))


def execute(script, folder, *arguments):
    """Run a script that lies elsewhere, as the installed command does: its own path has no working folder."""
    file = folder.parent / "script.py"
    file.write_text(script)
    sources = str(Path(__file__).parents[2] / "src")
    environment = {**os.environ, "PYTHONPATH": sources, "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
    environment.pop("PYTHONSAFEPATH", None)
    command = [sys.executable, str(file), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize("engine", ["local", "packed", pytest.param("ray", marks=pytest.mark.slow)])
def test_planted_modules_are_not_executed(tmp_path, engine):
    if engine == "ray":
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'ncollapse[ray]'")
    plant(tmp_path / "here")
    done = execute(SWEEP, tmp_path / "here", engine)
    assert done.stdout.split() == ["finished", "finished"], done.stderr
    assert not (tmp_path / "here" / "executed").exists()


def test_decoding_workers_execute_nothing_planted(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    plant(tmp_path / "here")
    for part in ("train", "test"):
        for name in ("a", "b"):
            (tmp_path / "here" / "pictures" / part / name).mkdir(parents=True)
            image = Image.fromarray(np.zeros((8, 8), np.uint8))
            image.save(tmp_path / "here" / "pictures" / part / name / "0.png")
    done = execute(FOLDER, tmp_path / "here")
    assert done.stdout.strip() == "2", done.stderr
    assert not (tmp_path / "here" / "executed").exists()
