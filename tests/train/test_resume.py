"""Killed at any moment, a run goes on and ends as if nothing had happened: bit for bit."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from ncollapse.train import recipes, run

CODE = """
import sys, torch
from ncollapse.train import Recipe, loop, run
torch.set_num_threads(1)
loop.CHECKPOINT_SECONDS, loop.WRITES_SHARE = {"cpu": 0.0}, float("inf")  # a checkpoint after every epoch
print("ready", flush=True)
run(Recipe.from_json(sys.argv[1]), sys.argv[2], device="cpu", deterministic=True)
"""


def history_of(folder):
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "time"} for row in rows]


def count_lines(folder):
    path = folder / "history.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow
def test_sigkill_at_random_points(tmp_path):
    recipe = recipes.get("digits", loss="ce").override(optim__epochs=8, optim__name="adamw", optim__lr=2e-3)
    folder = tmp_path / "killed" / recipe.run_id
    draw = random.Random(time.time_ns())
    killed = 0
    while killed < 2:
        process = subprocess.Popen(
            [sys.executable, "-c", CODE, recipe.to_json(), str(tmp_path / "killed")],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout.readline() == "ready\n"
        target = min(6, count_lines(folder) + draw.randint(0, 3))
        while process.poll() is None and count_lines(folder) < target:
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.15))
        if process.poll() is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        killed += 1
    assert killed
    assert run(recipe, tmp_path / "killed", device="cpu", deterministic=True)["status"] == "finished"
    run(recipe, tmp_path / "whole", device="cpu", deterministic=True)
    whole = tmp_path / "whole" / recipe.run_id
    assert history_of(folder) == history_of(whole)
    for name in ("final.safetensors", "best.safetensors", "snapshot.safetensors", "epochs.safetensors"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name


def test_a_run_goes_on_from_before_its_first_measured_epoch(tmp_path, monkeypatch, caplog):
    """There is no best epoch yet then, and the checkpoint holds no weights of one; earlier versions made such too."""
    monkeypatch.setattr("ncollapse.train.loop.is_measured", lambda recipe, epoch: epoch >= 3)
    for name, value in (("PROGRESS_SECONDS", 0.0), ("CHECKPOINT_SECONDS", {"cpu": 0.0}), ("WRITES_SHARE", math.inf)):
        monkeypatch.setattr(f"ncollapse.train.loop.{name}", value)
    recipe = recipes.get("digits").override(measure_every=3, optim__epochs=4)
    whole = run(recipe, tmp_path / "whole", device="cpu")

    def stop(event):
        if event["epoch"] == 2:
            raise TimeoutError

    trained = []
    with pytest.raises(TimeoutError):
        run(recipe, tmp_path / "cut", device="cpu", progress=stop)
    resumed = run(recipe, tmp_path / "cut", device="cpu", progress=lambda event: trained.append(event["epoch"]))
    assert set(trained) == {3, 4}
    assert "passed over" not in caplog.text
    assert {**resumed, "time": None} == {**whole, "time": None}
    first, second = (tmp_path / name / recipe.run_id / "final.safetensors" for name in ("whole", "cut"))
    assert first.read_bytes() == second.read_bytes()
