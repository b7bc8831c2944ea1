"""Small records: made from run folders, read like them."""

import json
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ncollapse.papers.archive import collect, find_records, gpu_minutes, index_records, thin, unpack
from ncollapse.runs.record import read_runs

SPREAD = {"mean": 1.23456789, "std": 0.1, "min": 0.0, "q05": 0.1, "max": 2.0}


def make_run(folder, epochs=1000, status="finished"):
    folder.mkdir(parents=True)
    config = {"name": "x", "optim": {"epochs": epochs}, "seed": 0}
    (folder / "config.json").write_text(json.dumps(config))
    command = "bin/start.py reproduce bce-vs-ce/table-6 --out /elsewhere/runs"
    (folder / "env.json").write_text(json.dumps({"command": command}))
    (folder / "summary.json").write_text(json.dumps({"status": status, "train": {"nc1": 0.25}}))
    with (folder / "history.jsonl").open("w") as file:
        for epoch in range(1, epochs + 1):
            train = {"nc1": 1 / epoch, "positive_score": SPREAD, "class_accuracy": [1.0] * 10, "unused": 3}
            row = {"epoch": epoch, "loss": 0.123456789, "train": train, "certificate": None, "time": {"epoch_s": 1.0}}
            file.write(json.dumps(row) + "\n")
    means = np.eye(3, 5, dtype=np.float32) * 2
    save_file({"train.class_means": means}, folder / "snapshot.safetensors")
    (folder / "final.safetensors").write_bytes(b"x" * 10**6)


@pytest.mark.parametrize("target", ["records", "records.tar.gz"])
def test_collected_records_read_like_runs(tmp_path, target):
    make_run(tmp_path / "runs" / "aaa")
    make_run(tmp_path / "runs" / "bbb", status="failed")
    assert collect(tmp_path / "runs", tmp_path / target) == ["aaa"]
    if target.endswith(".gz"):
        unpack(tmp_path / target, tmp_path / "records")
    (record,) = read_runs(tmp_path / "records")
    assert record.status == "finished"
    assert record.final("train.nc1") == 0.25
    epochs, values = record.series("train.nc1")
    assert (epochs[0], epochs[-1], len(epochs)) == (1, 1000, 200)
    assert values[-1] == pytest.approx(0.001)
    row = record.history[0]
    assert row["train"]["positive_score"] == {"mean": 1.23457, "std": 0.1, "min": 0.0, "max": 2.0}
    assert "unused" not in row["train"]
    assert record.env["command"] == "ncollapse reproduce bce-vs-ce/table-6 --out runs"
    gram = json.loads((record.path / "gram.json").read_text())
    assert gram == {"cosines": np.eye(3).tolist(), "norms": [2.0, 2.0, 2.0]}
    assert sum(file.stat().st_size for file in record.path.iterdir()) < 100_000


def test_a_finished_run_is_found_before_an_open_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "here" / "aaa", epochs=3, status="interrupted")
    make_run(tmp_path / "there" / "aaa", epochs=3)
    folders = [tmp_path / name for name in ("here", "there", "nowhere")]
    for order in (folders, folders[::-1]):
        (found,) = (record for record in find_records(*order) if record.run_id == "aaa")
        assert found.status == "finished"


def test_an_archive_holds_no_weights_and_repeats_itself(tmp_path):
    make_run(tmp_path / "runs" / "aaa", epochs=3)
    collect(tmp_path / "runs", tmp_path / "one.tar.gz")
    with tarfile.open(tmp_path / "one.tar.gz") as archive:
        names = sorted(archive.getnames())
    kept = ("config.json", "env.json", "gram.json", "history.jsonl.gz", "snapshot.safetensors", "summary.json")
    assert names == [f"aaa/{name}" for name in kept]


def test_short_histories_stay_whole():
    rows = [{"epoch": e, "train": {"nc1": 1.0}} for e in range(5)]
    assert [row["epoch"] for row in thin(rows)] == [0, 1, 2, 3, 4]


def test_the_index_says_what_a_record_is_behind(tmp_path):
    make_run(tmp_path / "aaa", epochs=3)
    make_run(tmp_path / "bbb", epochs=3)
    text = index_records(read_runs(tmp_path), {"one/table-1": ["aaa"], "one/figure-2": ["aaa"]})
    first, second = (line for line in text.splitlines() if line.startswith("| ["))
    assert first.startswith("| [aaa](runs/aaa) |")
    assert first.endswith("| one/table-1, one/figure-2 |")
    assert second.endswith("| nothing judged |")


def test_minutes_of_a_gpu_are_those_of_the_whole_run(tmp_path):
    make_run(tmp_path / "aaa", epochs=3)
    (record,) = read_runs(tmp_path)
    history = [{"epoch": e, "time": {"elapsed_s": 60.0 * e}} for e in (1, 2)]
    record = replace(record, history=history, summary={"status": "finished"})
    assert gpu_minutes(record) == 0
    record = replace(record, env={"hardware": {"gpu": "some"}})
    assert gpu_minutes(record) == 2, "of a record without the time of its end, to the last measurement"
    assert gpu_minutes(replace(record, summary={"status": "finished", "time": {"wall_s": 150.0}})) == 2.5


def test_the_minutes_of_the_page_are_those_in_the_summaries():
    """Added up from the files themselves."""
    root = Path(__file__).parents[2]
    total = 0.0
    for folder in (root / "results" / "runs").iterdir():
        if json.loads((folder / "env.json").read_text())["hardware"].get("gpu"):
            total += json.loads((folder / "summary.json").read_text())["time"]["wall_s"] / 60
    assert f"They took {total:.0f} GPU minutes" in (root / "docs" / "reproduction.md").read_text()
