"""Both callbacks beside FSDP: two processes, each with a part of every weight."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("lightning")
pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = Path(__file__).parent / "sharded_trainers.py"
    folder = tmp_path_factory.mktemp("sharded")
    done = subprocess.run([*command, str(script), str(folder)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["lightning", "huggingface"])
def test_sharded_models_are_measured_whole(results, case):
    found = results[case]
    assert found["samples"] == [33, 33, 33]
    assert found["nc1"][-1] == pytest.approx(found["exact"], rel=1e-5)
    assert found["nc1"][-1] != pytest.approx(found["nc1"][0], rel=1e-4)  # it trains


@pytest.mark.slow
def test_lightning_does_not_warn_of_processes_that_differ(results):
    assert results["lightning"]["warned"] == []
    assert results["lightning"]["logged"] == pytest.approx(results["lightning"]["exact"], rel=1e-5)
