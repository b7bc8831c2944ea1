"""Run folders read back, whatever they hold."""

import fcntl
import gzip
import json
import math

import pytest

from ncollapse.runs.record import read_run, read_runs

CONFIG = {
    "name": "digits",
    "data": {"name": "digits"},
    "model": {"name": "mlp-small"},
    "loss": {"name": "bce"},
    "seed": 3,
}
SUMMARY = {"status": "finished", "train": {"nc1": 0.5, "bias": {"mean": 2.0, "std": None}}}


def write_run(folder, config=CONFIG, summary=SUMMARY, history='{"epoch": 1, "train": {"nc1": 2.0}}\n'):
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in (("config.json", config), ("summary.json", summary)):
        if value is not None:
            (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))
    if history is not None:
        (folder / "history.jsonl").write_text(history)
    return folder


def test_a_finished_run(tmp_path):
    record = read_run(write_run(tmp_path / "abc"))
    assert (record.run_id, record.status, record.notes) == ("abc", "finished", ())
    assert (record.loss, record.seed, record.name) == ("bce", 3, "digits")
    assert record.label == "digits mlp-small bce seed 3"
    assert record.final("train.nc1") == 0.5
    assert record.final("train.bias.mean") == 2.0
    assert math.isnan(record.final("train.bias.std"))
    assert math.isnan(record.final("test.nc1"))
    assert record.series("train.nc1") == ([1], [2.0])
    assert record.snapshot() is None


@pytest.mark.parametrize(
    ("broken", "status"),
    [
        ({"config": "{"}, "corrupt"),
        ({"config": "[1]"}, "corrupt"),
        ({"config": None}, "corrupt"),
        ({"summary": '{"status": "fin'}, "corrupt"),
        ({"summary": '"finished"'}, "corrupt"),
        ({"summary": {"status": "odd"}}, "corrupt"),
        ({"summary": "\x00" * 50}, "corrupt"),
        ({"summary": None}, "interrupted"),
        ({"summary": {"status": "failed", "traceback": "..."}}, "failed"),
        ({"history": None}, "finished"),
    ],
)
def test_broken_content_is_a_status_and_a_note(tmp_path, broken, status):
    record = read_run(write_run(tmp_path / "run", **broken))
    assert record.status == status
    assert bool(record.notes) == (status == "corrupt")


def test_a_history_cut_short_keeps_its_whole_lines(tmp_path):
    record = read_run(write_run(tmp_path / "run", history='{"epoch": 1}\n3\n{"epoch": 2}\n{"epo'))
    assert [row["epoch"] for row in record.history] == [1, 2]
    assert "2 of 4 lines" in record.notes[0]


def test_packed_history_and_its_damage(tmp_path):
    folder = write_run(tmp_path / "run", history=None)
    (folder / "history.jsonl.gz").write_bytes(gzip.compress(b'{"epoch": 7}\n'))
    assert read_run(folder).history == [{"epoch": 7}]
    whole = gzip.compress(b'{"epoch": 7}\n' * 100)
    for content in (whole[:-9], b"\x1f\x8b\x08\x00garbage", b"plain"):
        (folder / "history.jsonl.gz").write_bytes(content)
        record = read_run(folder)
        assert record.status == "finished"
        assert record.notes


def test_a_held_lock_means_running(tmp_path):
    folder = write_run(tmp_path / "run", summary=None)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert read_run(folder).status == "running"
    assert read_run(folder).status == "interrupted"


def test_folders_are_found_one_level_down(tmp_path):
    write_run(tmp_path / "b")
    write_run(tmp_path / "a")
    write_run(tmp_path / "group" / "c")
    (tmp_path / "empty").mkdir()
    assert [record.run_id for record in read_runs(tmp_path)] == ["a", "b", "c"]
    assert [record.run_id for record in read_runs(tmp_path / "a")] == ["a"]
    assert read_runs(tmp_path / "empty") == []
    with pytest.raises(FileNotFoundError, match="no folder"):
        read_runs(tmp_path / "none")


def test_a_broken_snapshot_is_none(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "snapshot.safetensors").write_bytes(b"nothing")
    assert read_run(folder).snapshot() is None
