"""What no run writes is refused once, on reading: by name, within bounded memory, and without hiding other runs."""

import gzip
import json
import os
import resource
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from ncollapse.compare import compare_runs
from ncollapse.report import write_report
from ncollapse.runs.history import find_missing_epochs
from ncollapse.runs.record import read_run, read_runs
from reference.runs import write_comparison, write_run


@pytest.fixture
def folder(tmp_path):
    return write_run(tmp_path, {"optim.epochs": 10})


def change(file, **changes):
    """Replace values of a JSON file by their dotted names (two underscores for a dot)."""
    content = json.loads(file.read_text())
    for key, value in changes.items():
        *path, last = key.split("__")
        part = content
        for name in path:
            part = part[name]
        part[last] = value
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"test__class_accuracy": 7}, "test.class_accuracy: expected a list of numbers, one a class, got 7"),
        ({"train__nc1": 10**400}, "train.nc1: expected a number in -1e+100..1e+100, got 1000"),
        ({"train__nc1": 1e308}, "train.nc1: expected a number in -1e+100..1e+100, got 1e+308"),
        ({"test__accuracy": 7}, "test.accuracy: expected a number in 0..1, got 7"),
        ({"train__nc1": "0.5"}, "train.nc1: expected a number, got '0.5'"),
        ({"train__positive_score": 3}, "train.positive_score: expected a table of numbers, got 3"),
        ({"train__positive_score__std": -1}, "train.positive_score.std: expected a number in 0..1e+100, got -1"),
        ({"train__counts": [5, -5]}, "train.counts: expected a number in 0..1e+100, got -5"),
        ({"epoch": 10**12}, "epoch: expected a whole number in 0..100000000, got 1000000000000"),
        ({"train": [1]}, "train: expected a table of measured fields, got [1]"),
        ({"certificate": "none"}, "certificate: expected a table of numbers, got 'none'"),
        ({"prediction": 1}, "prediction: expected a table of numbers, got 1"),
        ({"reason": "\ud800"}, "reason: expected valid Unicode"),
        ({"reason": [1]}, "reason: expected text, got [1]"),
        ({"time": {"wall_s": {}}}, "time.wall_s: expected a number, got {}"),
    ],
)
def test_a_damaged_summary_is_named(folder, changes, said):
    change(folder / "summary.json", **changes)
    record = read_run(folder)
    assert record.status == "corrupt"
    assert record.summary is None
    assert any(note.startswith(f"summary.json: {said}") for note in record.notes), record.notes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"optim__epochs": 10**12}, "optim.epochs: expected a whole number in 1..100000000, got 1000000000000"),
        ({"optim__batch_size": 0}, "optim.batch_size: expected a whole number in 1..1099511627776, got 0"),
        ({"loss": "ce"}, "loss: expected a table of settings, got 'ce'"),
        ({"seed": 0.5}, "seed: expected a whole number in -9223372036854775808..18446744073709551615, got 0.5"),
        ({"seed": 2**64}, "seed: expected a whole number in -9223372036854775808..18446744073709551615, got 184467"),
        ({"measure_every": 0}, "measure_every: expected a whole number in 1..100000000, got 0"),
        ({"loss__name": ["ce"]}, "loss.name: expected text, got ['ce']"),
    ],
)
def test_a_damaged_configuration_is_named(folder, changes, said):
    change(folder / "config.json", **changes)
    record = read_run(folder)
    assert (record.status, record.config) == ("corrupt", {})
    assert record.notes[0].startswith(f"config.json: {said}")


def test_a_configuration_that_was_changed_is_noticed(folder):
    change(folder / "config.json", loss__name="mse")
    record = read_run(folder)
    assert record.status == "corrupt"
    assert record.notes[0].startswith(f"config.json: expected the configuration of run {folder.name}, got that of ")
    assert compare_runs([record]) == []
    change(folder / "config.json", loss__name="ce", name="another label")
    assert read_run(folder).status == "finished"


def test_a_renamed_folder_is_checked_by_its_summary(folder):
    moved = folder.rename(folder.with_name("my best run"))
    assert read_run(moved).status == "finished"
    change(moved / "config.json", loss__name="mse")
    assert read_run(moved).status == "corrupt"


def test_odd_rows_of_the_history_are_left_out_and_counted(folder):
    lines = (folder / "history.jsonl").read_text().splitlines()
    row = json.loads(lines[4])
    odd = ["7", "[]", "{", "null", '{"epoch": 1e12}', '{"epoch": "5"}', '{"nothing": 1}', "[" * 10**5, '"\\ud800"']
    odd += [json.dumps({**row, "train": 1}), json.dumps({**row, "loss": [1]}), json.dumps({**row, "epoch": 11})]
    odd += [lines[0], "9" * 5000, '{"epoch": ' + "9" * 5000 + "}"]
    (folder / "history.jsonl").write_text("\n".join([*lines[:5], *odd, *lines[5:]]) + "\n")
    record = read_run(folder)
    assert [row["epoch"] for row in record.history] == list(range(1, 11))
    assert f"{len(odd)} of {len(lines) + len(odd)} lines" in record.notes[0]
    assert "line 6" in record.notes[0]
    assert record.missing_epochs() == []


def test_lost_epochs_are_known_at_the_start_in_the_middle_and_at_the_end(folder):
    lines = (folder / "history.jsonl").read_text().splitlines()
    kept = [lines[i] for i in (2, 3, 6)]
    (folder / "history.jsonl").write_text("\n".join(kept) + "\n")
    assert read_run(folder).missing_epochs() == [range(1, 3), range(5, 7), range(8, 11)]
    (folder / "summary.json").unlink()
    assert read_run(folder).missing_epochs() == [range(1, 3), range(5, 7)]


@pytest.mark.parametrize("every", [1, 2, 3, 7])
@pytest.mark.parametrize("epochs", [1, 6, 10])
def test_missing_epochs_by_brute_force(every, epochs):
    draw = np.random.default_rng(every * 100 + epochs)
    for _ in range(50):
        reached = int(draw.integers(0, epochs + 1))
        expected = {e for e in range(1, reached + 1) if e % every == 0 or e == epochs}
        present = {e for e in expected if draw.random() < 0.5}
        found = find_missing_epochs([{"epoch": e} for e in sorted(present)], every, epochs, reached)
        assert sorted(e for gap in found for e in gap) == sorted(expected - present)


def test_a_far_epoch_costs_nothing(tmp_path):
    folder = write_run(tmp_path, {"optim.epochs": 10**8}, epochs_done=1, status="interrupted")
    row = json.loads((folder / "history.jsonl").read_text())
    with (folder / "history.jsonl").open("a") as file:
        file.write(json.dumps({**row, "epoch": 10**8}) + "\n")
    assert [len(gap) for gap in read_run(folder).missing_epochs()] == [10**8 - 2]


def test_a_history_that_unpacks_to_too_much_is_refused(folder):
    (folder / "history.jsonl").unlink()
    (folder / "history.jsonl.gz").write_bytes(gzip.compress(bytes(300 << 20), compresslevel=1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    record = read_run(folder)
    assert record.history == []
    assert "expected at most 268435456 bytes" in record.notes[0]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB


def test_a_cut_packed_history_keeps_what_comes_before(folder):
    lines = (folder / "history.jsonl").read_bytes()
    (folder / "history.jsonl").unlink()
    packed = gzip.compress(lines)
    (folder / "history.jsonl.gz").write_bytes(packed[: len(packed) * 3 // 4])
    record = read_run(folder)
    assert 0 < len(record.history) < 10
    assert "cut short" in record.notes[0]


@pytest.mark.parametrize(
    ("name", "array", "said"),
    [
        ("train.labels", np.full(200, -1), "train.labels: expected whole numbers in 0..9"),
        ("train.labels", np.full(200, 10), "train.labels: expected whole numbers in 0..9"),
        ("train.labels", np.zeros(3, np.int64), "train.labels: expected one for each of the 200 features"),
        ("train.features", np.full((200, 16), np.nan, np.float32), "train.features: expected finite numbers"),
        ("train.class_means", np.zeros((9, 16)), "train.counts: expected 9 classes"),
        ("train.class_means", np.zeros(10), "train.class_means: expected shape [K, d], got [10]"),
        ("weight", np.zeros(4, np.float32), "weight: expected shape [K, d]"),
        ("bias", np.zeros(4, np.float32), "bias: expected shape [10]"),
        ("test.margin.counts", np.zeros(3, np.int64), "test.margin: expected rising edges"),
        ("test.counts", np.full(10, -1), "test.counts: expected whole numbers of at least 0"),
    ],
)
def test_a_damaged_snapshot_is_named(folder, name, array, said):
    arrays = read_run(folder).snapshot()
    save_file({**arrays, name: np.ascontiguousarray(array)}, folder / "snapshot.safetensors")
    record = read_run(folder)
    assert record.snapshot() is None
    assert said in record.read_snapshot()[1]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("name", ["config.json", "env.json", "summary.json", "history.jsonl", "snapshot.safetensors"])
def test_a_pipe_in_place_of_a_file_does_not_block(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    record = read_run(folder)
    assert record.snapshot() is None or record.notes


def test_a_child_that_may_not_be_read_hides_no_run(tmp_path, monkeypatch):
    write_run(tmp_path, {"optim.epochs": 2})
    (tmp_path / "lost+found").mkdir()
    real = os.scandir

    def refuse(path):
        if str(path).endswith("lost+found"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert [record.status for record in read_runs(tmp_path)] == ["finished"]


def test_one_damaged_record_does_not_hide_the_page(tmp_path):
    write_comparison(tmp_path, seeds=2, **{"optim.epochs": 4})
    records = read_runs(tmp_path)
    hurt = records[0].path
    changes = [{"test__class_accuracy": 7}, {"train__nc1": 10**400}, {"epoch": 10**12}, {"train": 3}]
    whole = (hurt / "summary.json").read_text()
    for damage in changes:
        (hurt / "summary.json").write_text(whole)
        change(hurt / "summary.json", **damage)
        page = write_report(tmp_path).read_text()
        assert hurt.name in page
        assert "summary.json: " in page
    shutil.rmtree(hurt)
    assert len(read_runs(tmp_path)) == 3
