"""The Ray engine on a real local cluster of two nodes, one of which is killed."""

import os
import signal
import threading
import time

import pytest

from ncollapse.runs.record import read_run
from ncollapse.sweep.job import Job
from ncollapse.sweep.ray import _outcome
from ncollapse.sweep.sweep import sweep
from ncollapse.train import recipes

EPOCHS = 100
NETWORK = "mlp-64"  # narrower ones lose all their features with some seeds, which is a warning, and so an error here
ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'ncollapse[ray]'")


@pytest.fixture
def cluster(monkeypatch):
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("RAY_DISABLE_IMPORT_WARNING", "1")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # else 15: beside busy processes a worker gets 3 % of a core
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def last_epoch(folder):
    history = folder / "history.jsonl"
    return len(history.read_bytes().splitlines()) if history.exists() else 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_lost_node_s_run_is_resumed_elsewhere(cluster, tmp_path):
    base = recipes.get("digits").override(model__name=NETWORK, optim__epochs=EPOCHS)
    runs = [base.override(seed=seed) for seed in range(2)]
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    records = []
    options = {"engine": "ray", "device": "cpu", "deterministic": True}
    driver = threading.Thread(target=lambda: records.extend(sweep(runs, tmp_path, **options)))
    driver.start()
    deadline = time.monotonic() + 240
    folders = [tmp_path / run.run_id for run in runs]
    while min(map(last_epoch, folders)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    reached = [last_epoch(folder) for folder in folders]
    assert min(reached) >= 2, "both nodes should be training by now"
    assert max(reached) < EPOCHS
    cluster.remove_node(second, allow_graceful=False)
    driver.join(timeout=240)
    assert [record.status for record in records] == ["finished", "finished"]
    resumed = [record for record in records if record.env.get("resumed")]
    assert len(resumed) == 1, "the run of the lost node, and no other, was started twice"
    assert [row["epoch"] for row in resumed[0].history] == list(range(1, EPOCHS + 1))
    quiet = sweep(
        [runs[records.index(resumed[0])]], tmp_path / "quiet", engine="packed", device="cpu", deterministic=True
    )
    final = "final.safetensors"
    assert (resumed[0].path / final).read_bytes() == (quiet[0].path / final).read_bytes()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_worker_killed_for_memory_is_started_again(cluster, tmp_path):
    """The kernel ends a process that takes too much memory with SIGKILL; its run goes on from its checkpoint."""
    recipe = recipes.get("digits").override(model__name=NETWORK, optim__epochs=EPOCHS)
    options = {"engine": "ray", "device": "cpu", "deterministic": True}
    records = []
    driver = threading.Thread(target=lambda: records.extend(sweep([recipe], tmp_path, **options)))
    driver.start()
    folder = tmp_path / recipe.run_id
    deadline = time.monotonic() + 240
    while last_epoch(folder) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    worker = int((folder / "lock").read_text())
    os.kill(worker, signal.SIGKILL)
    driver.join(timeout=240)
    assert [record.status for record in records] == ["finished"]
    assert len(records[0].env["resumed"]) == 1
    (quiet,) = sweep([recipe], tmp_path / "quiet", engine="packed", device="cpu", deterministic=True)
    final = "final.safetensors"
    assert (records[0].path / final).read_bytes() == (quiet.path / final).read_bytes()


def test_a_run_that_never_fits_into_memory_is_failed_and_says_so(tmp_path):
    class Given:
        exceptions = ray.exceptions

        @staticmethod
        def get(reference):
            raise ray.exceptions.OutOfMemoryError("node 1 used 98 % of its memory")

    found = _outcome(Given, None, Job("abc", {"name": "x"}, str(tmp_path)))
    assert found["status"] == "failed"
    assert "ran out of memory; run fewer at a time" in found["reason"]
    record = read_run(tmp_path / "abc")
    assert record.status == "failed"
    assert "98 %" in record.summary["traceback"]
