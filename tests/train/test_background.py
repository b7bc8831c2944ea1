"""What is measured and written beside training: the same files as without it, and errors that reach the run."""

import json
import threading

import pytest
import torch

from ncollapse.train import finish, loop, recipes
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
    assert [row["epoch"] for row in rows] == [1, 2, 4, 6]
    assert {**other, "time": None} == {**summary, "time": None}
    for name in ("final.safetensors", "best.safetensors", "snapshot.safetensors", "epochs.safetensors"):
        assert (path / name).read_bytes() == (plain / name).read_bytes()
    assert not list((path / "checkpoint").glob("*"))
    assert [event["epoch"] for event in events if "nc1" in event] == [1, 2, 4, 6]


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
    assert [json.loads(line)["epoch"] for line in history.read_text().splitlines()] == [1, 2]


def test_large_features_are_measured_before_training_goes_on(tmp_path, apart, monkeypatch):
    monkeypatch.setattr(loop, "MOST_BYTES_ASIDE", 0)
    done = []
    keep = loop._Loop.measure

    def measure(self, *args):
        keep(self, *args)
        done.append(self.measured is None)

    monkeypatch.setattr(loop._Loop, "measure", measure)
    train(tmp_path)
    assert done == [True] * 4


@pytest.fixture
def often(monkeypatch):
    """A checkpoint after every epoch."""
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", {"cpu": 0.0})
    monkeypatch.setattr(loop, "WRITES_SHARE", float("inf"))


def test_training_goes_on_while_an_epoch_with_a_checkpoint_is_measured(tmp_path, apart, often, monkeypatch):
    """A measurement that waits for the next epoch's steps would wait for ever if the checkpoint waited for it."""
    trained, measure = threading.Semaphore(0), loop.measure_splits

    def wait_and_measure(run, extracted, arrays=None):
        if extracted.epoch < 6:
            assert trained.acquire(timeout=10), "training waits for the measurement"
        return measure(run, extracted, arrays)

    def count_epochs(event):
        if "nc1" not in event and event["epoch"] in (2, 3, 5) and event["step"] == 2:
            trained.release()

    monkeypatch.setattr(loop, "measure_splits", wait_and_measure)
    monkeypatch.setattr(loop, "PROGRESS_SECONDS", -1.0)
    whole, _, _ = train(tmp_path, progress=count_epochs)
    assert (whole / "summary.json").exists()


@pytest.mark.parametrize("broken", [3, 4, 5])
def test_a_run_that_ends_in_the_middle_goes_on_from_its_last_checkpoint(tmp_path, apart, often, monkeypatch, broken):
    whole, _, rows = train(tmp_path / "whole")
    epochs, mean_loss = [], loop._mean_loss

    def lose_power(run, epoch, rate):
        epochs.append(epoch)
        if epoch == broken:
            raise KeyboardInterrupt
        return mean_loss(run, epoch, rate)

    monkeypatch.setattr(loop, "_mean_loss", lose_power)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "broken")
    monkeypatch.setattr(
        loop, "_mean_loss", lambda run, epoch, rate: epochs.append(epoch) or mean_loss(run, epoch, rate)
    )
    path, _, found = train(tmp_path / "broken")
    again = epochs[broken]  # a checkpoint is passed over while the one before is being written
    assert epochs == [*range(1, broken + 1), *range(again, 7)]
    assert 2 <= again <= broken
    assert found == rows
    assert (path / "final.safetensors").read_bytes() == (whole / "final.safetensors").read_bytes()


def test_a_checkpoint_is_not_ahead_of_the_history(tmp_path, apart, often, monkeypatch):
    write, seen = loop.checkpoint.write, []

    def look(folder, content):
        rows = (folder.parent / "history.jsonl").read_text().splitlines()
        recorded = [json.loads(row) for row in rows]
        seen.append(content.epoch)
        assert 1 + content.epoch // 2 == len(recorded)
        best = max(recorded, key=lambda row: row["test"]["accuracy"])
        assert content.values["best"]["epoch"] == best["epoch"]
        return write(folder, content)

    monkeypatch.setattr(loop.checkpoint, "write", look)
    train(tmp_path)
    assert seen[0] == 1
    assert seen == sorted(set(seen))
    assert 6 not in seen  # the final weights are written instead


def test_a_run_that_ends_while_it_is_summed_up_is_finished_without_training(
    tmp_path, apart, often, monkeypatch, caplog
):
    whole, summary, rows = train(tmp_path / "whole")
    measure = finish.measure_selected
    monkeypatch.setattr(finish, "measure_selected", lambda run: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "broken")
    monkeypatch.setattr(finish, "measure_selected", measure)
    monkeypatch.setattr(loop._Loop, "train_epoch", lambda self, epoch: pytest.fail("it trains"))
    path, found, recorded = train(tmp_path / "broken")
    assert "it is made again from the final weights" in caplog.text
    assert recorded == rows
    assert {**found, "time": None} == {**summary, "time": None}
    for name in ("final.safetensors", "best.safetensors", "snapshot.safetensors"):
        assert (path / name).read_bytes() == (whole / name).read_bytes()


def test_final_weights_that_were_changed_are_trained_again_from_the_checkpoint(
    tmp_path, apart, often, monkeypatch, caplog
):
    whole, _, rows = train(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(finish, "measure_selected", lambda run: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(tmp_path / "broken")
    (final,) = (tmp_path / "broken").glob("*/final.safetensors")
    tensors, _ = loop.checkpoint.unpack(final.read_bytes())
    final.write_bytes(loop.checkpoint.pack({name: 2 * tensor for name, tensor in tensors.items()}))
    path, _, found = train(tmp_path / "broken")
    assert "do not measure as its history says" in caplog.text
    assert found == rows
    assert (path / "final.safetensors").read_bytes() == (whole / "final.safetensors").read_bytes()


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
