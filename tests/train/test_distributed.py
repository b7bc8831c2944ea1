"""Two gloo processes train what one does, with a feature decay and batches that do not split evenly."""

import json
import os
import socket
import subprocess
import sys

import pytest
from safetensors.torch import load_file

from ncollapse.train import recipes, run


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    counts = [13] * 9 + [14]  # 131 samples: a last batch of 3, shared as 2 and 1
    recipe = recipes.get("digits").override(optim__epochs=3, optim__batch_size=32, data__per_class_counts=counts)
    recipe = recipe.override(optim__clip_norm=2.0)
    (tmp_path / "recipe.json").write_text(recipe.to_json())
    one = run(recipe, tmp_path / "one", device="cpu")
    command = [sys.executable, "-m", "ncollapse.cli", "train", str(tmp_path / "recipe.json"), "--device", "cpu"]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [*command, "--out", str(tmp_path / "two"), "--json"],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    two = json.loads(outputs[0])
    for split in ("train", "test"):
        for name in ("nc1", "nc2", "nc3", "weight_energy"):
            assert two[split][name] == pytest.approx(one[split][name], rel=1e-3), name
    weights = load_file(tmp_path / "one" / recipe.run_id / "final.safetensors")
    others = load_file(tmp_path / "two" / recipe.run_id / "final.safetensors")
    for name, tensor in weights.items():
        assert (tensor - others[name]).abs().max() < 1e-6, name
