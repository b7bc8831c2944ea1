"""Our trainer's history in TensorBoard event files and on a real MLflow server."""

import doctest
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ncollapse import train
from ncollapse.integrations import trackers
from ncollapse.integrations.trackers import MLflowTracker, TensorBoardTracker

RECORDS = [
    {
        "epoch": epoch,
        "step": 10 * epoch,
        "lr": 0.1,
        "loss": 1.0 / epoch,
        "train": {"nc1": 0.5 / epoch, "nc2": None, "positive_score": {"mean": 2.0, "std": 0.5, "count": 4}},
        "certificate": {"gap": 0.25},
    }
    for epoch in (1, 2)
]


def test_event_files_read_back_what_the_trainer_recorded(tmp_path):
    recipe = train.recipes.get("digits")
    recipe = replace(recipe, optim=replace(recipe.optim, epochs=2))
    with TensorBoardTracker(tmp_path / "events") as tracker:
        train.run(recipe, tmp_path / "runs", device="cpu", trackers=[tracker])
    lines = (tmp_path / "runs" / recipe.run_id / "history.jsonl").read_text().splitlines()
    history = [json.loads(line) for line in lines]
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    for tag, read in {
        "loss": lambda line: line["loss"],
        "train/nc1": lambda line: line["train"]["nc1"],
        "test/accuracy": lambda line: line["test"]["accuracy"],
        "train/positive_score.std": lambda line: line["train"]["positive_score"]["std"],
        "certificate/gap": lambda line: line["certificate"]["gap"],
    }.items():
        found = events.Scalars(tag)
        assert [event.step for event in found] == [line["epoch"] for line in history], tag
        assert [event.value for event in found] == pytest.approx([read(line) for line in history], rel=1e-6), tag


def test_a_run_that_never_starts_leaves_no_event_files(tmp_path):
    with TensorBoardTracker(tmp_path / "events"):
        pass
    assert not list(tmp_path.iterdir())


@pytest.fixture
def server(tmp_path):
    """An MLflow server on loopback with SQLite."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    uri = f"http://127.0.0.1:{port}"
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", store, "--default-artifact-root", str(tmp_path / "artifacts")]
    with (tmp_path / "server.log").open("w") as log:
        environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # starts sooner
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        until = time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(f"{uri}/health", timeout=5) as answer:
                    assert answer.status == 200
                break
            except OSError:
                assert process.poll() is None, (tmp_path / "server.log").read_text()
                assert time.monotonic() < until, "the MLflow server did not start in two minutes"
                time.sleep(0.3)
        yield uri
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow", "ignore::FutureWarning:mlflow")
def test_an_mlflow_server_gives_the_numbers_back(server):
    from mlflow.tracking import MlflowClient

    with MLflowTracker(server, name="digits", params={"loss": "bce"}) as tracker:
        for record in RECORDS:
            tracker.log(record)
    client = MlflowClient(tracking_uri=server)
    run = client.get_run(tracker.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"loss": "bce"}
    assert run.data.metrics["train/positive_score.mean"] == 2.0
    assert "train/nc2" not in run.data.metrics
    found = client.get_metric_history(tracker.run_id, "train/nc1")
    assert [(item.step, item.value) for item in found] == [(1, 0.5), (2, 0.25)]
    second = MLflowTracker(server)
    with pytest.raises(KeyError), second:
        second.log({"loss": 1.0})
    assert client.get_run(second.run_id).info.status == "FAILED"
    assert client.get_run(second.run_id).info.experiment_id == run.info.experiment_id


@pytest.mark.parametrize(
    ("make", "package", "extra"),
    [
        (lambda: TensorBoardTracker("events"), "torch.utils.tensorboard", "tensorboard"),
        (lambda: MLflowTracker("http://127.0.0.1:1"), "mlflow.tracking", "mlflow"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(monkeypatch, make, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"pip install 'ncollapse\[{extra}\]'"):
        make()


def test_docstring_examples():
    result = doctest.testmod(trackers)
    assert result.attempted > 0
    assert result.failed == 0
