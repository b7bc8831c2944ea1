"""`monitor` in two processes: together, on rank 0 alone, sharded by FSDP, and when one process is missing or fails."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ncollapse as nc
from monitor_ranks import CASES, X, Y, build


@pytest.fixture(scope="module")
def results():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = Path(__file__).parent / "monitor_ranks.py"
    done = subprocess.run([*command, str(script), *CASES], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.fixture(scope="module")
def exact():
    model = build()
    with torch.no_grad():
        return nc.measure(model[:2](X), Y, head=model[2])


@pytest.mark.parametrize("case", ["shared", "first_alone"])
def test_all_samples_are_measured(results, exact, case):
    assert results[case]["nc1"] == pytest.approx(exact.nc1, rel=1e-6)
    assert results[case]["accuracy"] == exact.accuracy
    assert results[case]["samples"] == 33


def test_layers_of_all_processes(results):
    model = build()
    whole = nc.measure_layers(model, [(X, Y)], ["0", "1"]).to_dict()
    for name, values in results["shared"]["layers"].items():
        assert values == pytest.approx(whole[name], rel=1e-6)


def test_a_model_in_bfloat16(results):
    model = build(torch.bfloat16)
    with torch.no_grad():
        whole = nc.measure(model[:2](X.bfloat16()), Y, head=model[2])
    assert results["narrow"]["nc1"] == pytest.approx(whole.nc1, rel=1e-6)


def test_a_missing_process_is_named_instead_of_waited_for(results):
    words = r"rank 0 has waited 1 s for 1 of 2 processes \(rank 1\) .* pass distributed=False"
    assert re.search(words, results["first_waits"])


def test_an_error_in_one_process_is_raised_in_all(results):
    first, second = results["one_fails"]
    assert second.startswith("mat1 and mat2 shapes cannot be multiplied")
    assert first == f"monitor: rank 1 failed: RuntimeError: {second}"


def test_fsdp(results, exact):
    found = results["sharded"]
    if isinstance(found, str) and found.startswith("unsupported"):
        pytest.skip(f"this torch has no FSDP on a CPU ({found})")
    assert found["first"] == pytest.approx(exact.nc1, rel=1e-6)
    assert found["samples"] == 33
    model = build()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.nn.functional.cross_entropy(model(X), Y).backward()
    optimiser.step()
    with torch.no_grad():
        assert found["nc1"] == pytest.approx(nc.measure(model[:2](X), Y, head=model[2]).nc1, rel=1e-5)
    assert "distributed: expected True for a model sharded by FSDP" in found["refused"]
