"""What is measured and written beside training: the same files as without it, and errors that reach the run."""

import json
import threading

import pytest
import torch

from ncollapse.train import loop, recipes
from ncollapse.train.background import Background

CPU = torch.device("cpu")


@pytest.mark.parametrize("apart", [True, False])
def test_work_is_done_in_order(apart):
    found = []
    with Background(CPU, apart=apart) as background:
        futures = [background.submit(lambda i=i: found.append((i, threading.get_ident())) or i) for i in range(3)]
        assert [future.result() for future in futures] == [0, 1, 2]
    assert [i for i, _ in found] == [0, 1, 2]
    assert (found[0][1] == threading.get_ident()) is not apart


def test_leaving_waits_for_what_is_under_way():
    begun, may_end, ended = threading.Event(), threading.Event(), []

    def work():
        begun.set()
        may_end.wait(10)
        ended.append(True)

    with Background(CPU, apart=True) as background:
        background.submit(work)
        begun.wait(10)
        may_end.set()
    assert ended == [True]


@pytest.fixture
def apart(monkeypatch):
    """Measure and write in a thread, as on a GPU."""
    monkeypatch.setattr(loop, "Background", lambda device, apart: Background(device, apart=True))


def train(folder, **options):
    recipe = recipes.get("digits").override(optim__epochs=6, measure_every=2, select="best-test")
    summary = loop.run(recipe, folder, device="cpu", deterministic=True, **options)
    path = folder / recipe.run_id
    rows = [json.loads(line) for line in (path / "history.jsonl").read_text().splitlines()]
    return path, summary, [{key: value for key, value in row.items() if key != "time"} for row in rows]


def test_a_run_is_the_same_with_and_without_it(tmp_path, monkeypatch):
    plain, summary, rows = train(tmp_path / "plain")
    events = []
    with monkeypatch.context() as patch:
        patch.setattr(loop, "Background", lambda device, apart: Background(device, apart=True))
        path, other, found = train(tmp_path / "apart", progress=events.append)
    assert found == rows
    assert [row["epoch"] for row in rows] == [2, 4, 6]
    assert {**other, "time": None} == {**summary, "time": None}
    for name in ("final.safetensors", "best.safetensors", "snapshot.safetensors", "epochs.safetensors"):
        assert (path / name).read_bytes() == (plain / name).read_bytes()
    assert not list((path / "checkpoint").glob("*"))
    assert [event["epoch"] for event in events if "nc1" in event] == [2, 4, 6]


def test_a_stopped_run_goes_on_to_the_same_end(tmp_path, apart, monkeypatch):
    whole, _, rows = train(tmp_path / "whole")
    monkeypatch.setitem(loop.CHECKPOINT_SECONDS, "cpu", 0.0)

    class Stop(Exception):
        pass

    def stop(event):
        if event.get("epoch", 0) >= 3:
            raise Stop

    with pytest.raises(Stop):
        train(tmp_path / "stopped", progress=stop)
    path, _, found = train(tmp_path / "stopped")
    assert found == rows
    assert (path / "final.safetensors").read_bytes() == (whole / "final.safetensors").read_bytes()


def test_an_error_while_measuring_fails_the_run(tmp_path, apart, monkeypatch):
    def fail(*_):
        raise ValueError("no such field")

    monkeypatch.setattr(loop, "measure_splits", fail)
    with pytest.raises(ValueError, match="no such field"):
        train(tmp_path)
    (summary,) = (json.loads(path.read_text()) for path in tmp_path.glob("*/summary.json"))
    assert summary["status"] == "failed"
    assert "no such field" in summary["reason"]


def test_an_error_while_writing_fails_the_run(tmp_path, apart, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(loop.checkpoint, "write", fail)
    with pytest.raises(OSError, match="No space left"):
        train(tmp_path)


def test_what_was_measured_is_kept_when_training_fails(tmp_path, apart, monkeypatch):
    """The loss of epoch 3 fails while epoch 2 is not recorded yet."""
    kept = loop._mean_loss

    def fail_at_three(run, epoch, rate):
        if epoch == 3:
            raise RuntimeError("the GPU fell off the bus")
        return kept(run, epoch, rate)

    monkeypatch.setattr(loop, "_mean_loss", fail_at_three)
    with pytest.raises(RuntimeError, match="bus"):
        train(tmp_path)
    (history,) = tmp_path.glob("*/history.jsonl")
    assert [json.loads(line)["epoch"] for line in history.read_text().splitlines()] == [2]


def test_large_features_are_measured_before_training_goes_on(tmp_path, apart, monkeypatch):
    monkeypatch.setattr(loop, "MOST_BYTES_ASIDE", 0)
    done = []
    keep = loop._Loop.measure

    def measure(self, *args):
        keep(self, *args)
        done.append(self.measured is None)

    monkeypatch.setattr(loop._Loop, "measure", measure)
    train(tmp_path)
    assert done == [True] * 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_measures_the_same_beside_training(tmp_path, monkeypatch):
    recipe = recipes.get("digits").override(optim__epochs=8)
    found = []
    for apart in (True, False):
        monkeypatch.setattr(loop, "Background", lambda device, apart, chosen=apart: Background(device, apart=chosen))
        summary = loop.run(recipe, tmp_path / str(apart), device="cuda")
        history = (tmp_path / str(apart) / recipe.run_id / "history.jsonl").read_text().splitlines()
        found.append((summary, [json.loads(line) for line in history]))
    (beside, rows), (plain, others) = found
    assert [row["epoch"] for row in rows] == [row["epoch"] for row in others] == list(range(1, 9))
    for row, other in zip(rows, others):
        for name in ("nc1", "nc2", "nc3", "accuracy", "feature_energy"):
            assert row["train"][name] == pytest.approx(other["train"][name], rel=1e-3)
    assert beside["train"]["nc1"] == pytest.approx(plain["train"]["nc1"], rel=1e-3)
