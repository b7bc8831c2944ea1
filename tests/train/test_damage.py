"""A run folder that was damaged: what is good is used, what is lost is named, and nothing is guessed."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from ncollapse.runs import checkpoint
from ncollapse.runs.folder import RunFolder
from ncollapse.runs.record import read_run
from ncollapse.train import recipes, run

EPOCHS = 4
RECIPE = recipes.get("digits").override(model__name="mlp-16", data__samples_per_class=10, optim__batch_size=20)
RECIPE = RECIPE.override(optim__epochs=EPOCHS)
WEIGHTS = ("final.safetensors", "best.safetensors", "snapshot.safetensors", "epochs.safetensors")


class Stop(Exception):
    pass


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nothing happened to."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("whole")
    run(RECIPE, out, device="cpu", deterministic=True)
    return out / RECIPE.run_id


@pytest.fixture
def stopped(tmp_path):
    """The same run, stopped after three of its four epochs, with two checkpoints."""

    def stop(event):
        if event["epoch"] == 3:
            raise Stop

    with pytest.raises(Stop):
        run(RECIPE, tmp_path, device="cpu", deterministic=True, progress=stop)
    return tmp_path / RECIPE.run_id


def resume(folder):
    return run(RECIPE, folder.parent, device="cpu", deterministic=True)


def rows(folder):
    found = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "time"} for row in found]


def same_weights(first, second):
    return all((first / name).read_bytes() == (second / name).read_bytes() for name in WEIGHTS)


@pytest.mark.parametrize("damage", [b'{"epoch": 2, "tra', b"\x00" * 40, b'{"epoch": [2]}', b'{"epoch": "2"}'])
def test_a_damaged_line_costs_itself_alone(stopped, whole, caplog, damage):
    lines = (stopped / "history.jsonl").read_bytes().splitlines()
    (stopped / "history.jsonl").write_bytes(b"\n".join([lines[0], damage, lines[2]]) + b"\n")
    assert resume(stopped)["status"] == "finished"
    assert rows(stopped) == [row for row in rows(whole) if row["epoch"] != 2]
    assert "line 2" in caplog.text
    record = read_run(stopped)
    assert (record.status, record.missing_epochs()) == ("finished", [range(2, 3)])
    assert same_weights(stopped, whole)


@pytest.mark.parametrize("env", ["{}", "[]", "", '{"started": 3}', '{"started": "then", "resumed": 5}'])
def test_an_odd_environment_does_not_stop_a_run(stopped, env):
    (stopped / "env.json").write_text(env)
    assert resume(stopped)["status"] == "finished"


def test_a_checkpoint_that_does_not_fit_gives_way_to_the_one_before(stopped, whole, caplog):
    newest = checkpoint.find(stopped / "checkpoint")[0]
    saved = checkpoint.read_latest(stopped / "checkpoint")
    newest.unlink()
    name = next(key for key in saved.tensors if key.startswith("model."))
    others = [
        ({**saved.tensors, name: torch.zeros(3)}, saved.values),
        (saved.tensors, {**saved.values, "best": None}),
        (saved.tensors, {**saved.values, "optim": {"nobody": {}}}),
    ]
    for tensors, values in others:
        checkpoint.write(stopped / "checkpoint", checkpoint.Checkpoint(3, tensors, values))
        resume(stopped)
        assert "does not fit" in caplog.text
        assert rows(stopped) == rows(whole)
        assert same_weights(stopped, whole)
        caplog.clear()
        break_again(stopped, saved)


def break_again(folder, saved):
    """Make a finished run one of two epochs again."""
    (folder / "summary.json").unlink()
    for name in WEIGHTS:
        (folder / name).unlink()
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    assert saved.epoch == 3


def test_no_checkpoint_that_fits_is_said(stopped, whole, caplog):
    shutil.rmtree(stopped / "checkpoint")
    resume(stopped)
    assert "no usable checkpoint; its 3 recorded epochs are trained again" in caplog.text
    assert same_weights(stopped, whole)


@pytest.mark.parametrize("content", [b"", b'{"status": "finis', b'{"status": "finished", "train": 7}'])
def test_a_lost_summary_is_made_again_without_training(whole, tmp_path, monkeypatch, caplog, content):
    folder = shutil.copytree(whole, tmp_path / whole.name)
    (folder / "summary.json").write_bytes(content)
    assert read_run(folder).status == "corrupt"
    monkeypatch.setattr("ncollapse.train.step.EagerStep.__call__", lambda *_: pytest.fail("trained"))
    again = resume(folder)
    assert "its summary was lost; it is made again from the final weights" in caplog.text
    known = json.loads((whole / "summary.json").read_text())
    assert {k: v for k, v in again.items() if k != "time"} == {k: v for k, v in known.items() if k != "time"}
    assert rows(folder) == rows(whole)
    assert same_weights(folder, whole)


def test_weights_that_were_changed_are_not_trusted(whole, tmp_path, caplog):
    folder = shutil.copytree(whole, tmp_path / whole.name)
    (folder / "summary.json").unlink()
    tensors, _ = checkpoint.unpack((folder / "final.safetensors").read_bytes())
    tensors = {name: tensor * 1.001 for name, tensor in tensors.items()}
    (folder / "final.safetensors").write_bytes(checkpoint.pack(tensors))
    resume(folder)
    assert "the final weights do not measure as its history says" in caplog.text
    assert "trained again" in caplog.text
    assert same_weights(folder, whole)


def test_what_a_kill_at_the_very_end_leaves_is_removed(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / whole.name)
    checkpoint.write(folder / "checkpoint", checkpoint.Checkpoint(4, {"a": torch.zeros(1)}, {}))
    (folder / ".config.json.part").write_bytes(b"half")
    assert RunFolder(folder).read_finished(RECIPE.to_dict())["status"] == "finished"
    assert not list((folder / "checkpoint").iterdir())
    assert not (folder / ".config.json.part").exists()


def test_a_changed_configuration_of_a_finished_run_is_put_right(whole, tmp_path, caplog):
    folder = shutil.copytree(whole, tmp_path / whole.name)
    config = json.loads((folder / "config.json").read_text())
    config["loss"]["name"] = "mse"
    (folder / "config.json").write_text(json.dumps(config))
    assert read_run(folder).status == "corrupt"
    assert resume(folder)["status"] == "finished"
    assert "config.json was damaged" in caplog.text
    assert (folder / "config.json").read_bytes() == (whole / "config.json").read_bytes()


def test_a_checkpoint_that_cannot_be_removed_does_not_undo_a_finished_run(tmp_path, whole, monkeypatch):
    remove = Path.unlink

    def refuse(path, missing_ok=False):
        if path.parent.name == "checkpoint" and (path.parents[1] / "summary.json").exists():
            raise OSError(5, "Input/output error", str(path))
        remove(path, missing_ok=missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        assert run(RECIPE, tmp_path, device="cpu", deterministic=True)["status"] == "finished"
    folder = tmp_path / RECIPE.run_id
    assert list((folder / "checkpoint").iterdir())
    assert resume(folder)["status"] == "finished"
    assert same_weights(folder, whole)
    assert not list((folder / "checkpoint").iterdir())


def test_a_damaged_checkpoint_is_passed_over(stopped, whole, caplog):
    newest = max((stopped / "checkpoint").glob("0*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-10])
    part = stopped / "checkpoint" / ".000003-0.safetensors.part"
    part.write_bytes(b"cut by a kill")
    resume(stopped)
    assert "is damaged (its checksum differs) and is passed over" in caplog.text
    assert not part.exists()
    assert same_weights(stopped, whole)


def test_where_all_checkpoints_are_damaged_training_starts_again(stopped, whole, caplog):
    for path in (stopped / "checkpoint").iterdir():
        path.write_bytes(path.read_bytes()[:100])
    resume(stopped)
    assert "recorded epochs are trained again" in caplog.text
    assert rows(stopped) == rows(whole)
