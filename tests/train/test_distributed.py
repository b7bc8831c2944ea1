"""Two gloo processes train what one does, with a feature decay and batches that do not split evenly."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from ncollapse.metrics import measure
from ncollapse.runs.record import read_run
from ncollapse.train import recipes, run
from ncollapse.train.build import build_model, load_splits, make_loaders
from ncollapse.train.distributed import World
from ncollapse.train.evaluate import Extractor


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def launch_two(launcher, recipe, folder, *options, **streams):
    """Start two processes that train one recipe together."""
    (folder / "recipe.json").write_text(recipe.to_json())
    command = [sys.executable, *launcher, "train", str(folder / "recipe.json"), "--device", "cpu", *options]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [*command, "--out", str(folder / "two"), "--json"],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
            **streams,
        )
        for rank in range(2)
    ]


def start_two(launcher, recipe, folder):
    """What two processes print that train one recipe together."""
    processes = launch_two(launcher, recipe, folder)
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    return outputs


def train_on_two(recipe, folder):
    """The summary that the first of two processes prints; the second prints nothing."""
    first, second = start_two(["-m", "ncollapse"], recipe, folder)
    assert second == ""
    return json.loads(first)


NAME_THREADS = """
import sys
from pathlib import Path
from ncollapse.cli import main

code = main(sys.argv[1:])
print("threads", *(file.read_text().split()[0] for file in Path("/proc/self/task").glob("*/comm")))
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are named by Linux's /proc")
def test_no_thread_of_the_group_outlives_training(tmp_path):
    """One that asks for the interpreter while it ends aborts the process, with -6, now and then."""
    recipe = recipes.get("digits").override(optim__epochs=1, data__samples_per_class=13)
    for output in start_two(["-c", NAME_THREADS], recipe, tmp_path):
        word, *names = output.splitlines()[-1].split()
        assert word == "threads"
        assert not [name for name in names if "gloo" in name or "tcpstore" in name]


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"optim__clip_norm": 2.0}, {"decays__weak_epochs": 2}], ids=["clip", "weak"])
def test_two_processes_equal_one(tmp_path, changes):
    counts = [13] * 9 + [14]  # 131 samples: a last batch of 3, shared as 2 and 1
    recipe = recipes.get("digits").override(optim__epochs=3, optim__batch_size=32, data__per_class_counts=counts)
    recipe = recipe.override(**changes)
    one, two = run(recipe, tmp_path / "one", device="cpu"), train_on_two(recipe, tmp_path)
    for split in ("train", "test"):
        for name in ("nc1", "nc2", "nc3", "weight_energy"):
            assert two[split][name] == pytest.approx(one[split][name], rel=1e-3), name
    weights = load_file(tmp_path / "one" / recipe.run_id / "final.safetensors")
    others = load_file(tmp_path / "two" / recipe.run_id / "final.safetensors")
    for name, tensor in weights.items():
        assert (tensor - others[name]).abs().max() < 1e-6, name


@pytest.mark.slow
def test_batch_norm_is_measured_as_it_is_saved(tmp_path):
    recipe = recipes.get("digits").override(
        model__name="resnet32", optim__epochs=1, data__samples_per_class=8, optim__batch_size=16
    )
    two = train_on_two(recipe, tmp_path)
    loaders = make_loaders(recipe, load_splits(recipe, None), World(0, 1, torch.device("cpu")))
    model, _ = build_model(recipe, loaders, World(0, 1, torch.device("cpu")))
    model.load_state_dict(load_file(tmp_path / "two" / recipe.run_id / "final.safetensors"))
    features, labels = Extractor(model, "fp32", World(0, 1, torch.device("cpu")))(loaders.measured["train"])
    found = measure(features, labels, head=model.head)
    assert two["train"]["nc1"] == pytest.approx(found.nc1, rel=1e-5)
    assert two["train"]["feature_energy"] == pytest.approx(found.feature_energy, rel=1e-5)


@pytest.mark.slow
def test_a_killed_process_ends_the_other_and_the_run_resumes(tmp_path):
    """Rank 1 is killed in mid-epoch, then rank 0 of the resumed run; the third start ends as an unbroken run does."""
    recipe = recipes.get("digits").override(optim__epochs=40, data__samples_per_class=40, optim__batch_size=32)
    (tmp_path / "broken").mkdir()
    (tmp_path / "whole").mkdir()
    folder = tmp_path / "broken" / "two" / recipe.run_id
    for killed in (1, 0):
        target = count_rows(folder) + 2
        options = ("--resume", "--deterministic")
        pair = launch_two(["-m", "ncollapse"], recipe, tmp_path / "broken", *options, stderr=subprocess.PIPE)
        wait_for_rows(folder, target, pair)
        pair[killed].kill()
        began = time.monotonic()
        _, errors = pair[1 - killed].communicate(timeout=60)
        pair[killed].communicate()
        assert time.monotonic() - began < 60
        assert pair[1 - killed].returncode == 1
        assert "another of the 2 processes of this run has ended" in errors
        assert "--resume continues it after epoch" in errors
        assert "Traceback" not in errors
        record = read_run(folder)
        assert (record.status, target <= record.history[-1]["epoch"] < 40) == ("interrupted", True)
    for name, options in (("broken", ["--resume"]), ("whole", [])):
        pair = launch_two(["-m", "ncollapse"], recipe, tmp_path / name, "--deterministic", *options)
        assert [process.communicate(timeout=240) and process.returncode for process in pair] == [0, 0]
    whole = tmp_path / "whole" / "two" / recipe.run_id
    for name in ("final.safetensors", "best.safetensors", "snapshot.safetensors", "epochs.safetensors"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name
    histories = [read_run(path).history for path in (folder, whole)]
    for rows in histories:
        for row in rows:
            row.pop("time")
    assert histories[0] == histories[1]


def count_rows(folder):
    file = folder / "history.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def wait_for_rows(folder, rows, processes):
    deadline = time.monotonic() + 120
    while count_rows(folder) < rows and time.monotonic() < deadline:
        assert all(process.poll() is None for process in processes), "a process ended by itself"
        time.sleep(0.01)
