"""The loop: what a run folder holds, when a run is refused, how it fails, and that it goes where theory says."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ncollapse import Loss
from ncollapse.console import clean
from ncollapse.metrics import measure
from ncollapse.models import create
from ncollapse.runs import checkpoint
from ncollapse.runs.epoch_snapshots import read_epochs
from ncollapse.runs.folder import RunFolder
from ncollapse.theory import predict
from ncollapse.train import Diverged, Recipe, recipes, run
from ncollapse.train.backend import HAS_PRECISION_NAMES, switches
from ncollapse.train.build import load_splits
from ncollapse.train.distributed import World
from ncollapse.train.evaluate import measure_split
from ncollapse.train.loop import prepare
from ncollapse.train.schedule import rate_at

SHORT = recipes.get("digits").override(optim__epochs=3)


def history_of(folder):
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def without_time(records):
    return [{key: value for key, value in record.items() if key != "time"} for record in records]


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    torch.set_num_threads(1)  # as every test does, and this comes before the first: sums depend on it
    out = tmp_path_factory.mktemp("runs")
    return run(SHORT, out, device="cpu"), out / SHORT.run_id


@pytest.fixture
def checkpoint_always(monkeypatch):
    """A checkpoint after every epoch, however short."""
    monkeypatch.setattr("ncollapse.train.loop.CHECKPOINT_SECONDS", {"cpu": 0.0})
    monkeypatch.setattr("ncollapse.train.loop.WRITES_SHARE", float("inf"))


def test_run_folder(short):
    summary, folder = short
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "config.json", "env.json", "history.jsonl", "summary.json", "snapshot.safetensors", "final.safetensors",
        "best.safetensors", "epochs.safetensors", "checkpoint", "lock",
    }  # fmt: skip
    assert not list((folder / "checkpoint").iterdir())
    assert Recipe.from_json((folder / "config.json").read_text()) == SHORT
    env = json.loads((folder / "env.json").read_text())
    assert env["versions"]["torch"] == torch.__version__
    assert {"hardware", "command", "started"} <= set(env)
    history = history_of(folder)
    assert [row["epoch"] for row in history] == [1, 2, 3]
    assert [row["lr"] for row in history] == [rate_at(SHORT, epoch) for epoch in (1, 2, 3)]
    assert history[-1]["step"] == 3 * 23
    assert set(history[-1]) == {"epoch", "step", "lr", "loss", "train", "test", "certificate", "time"}
    assert set(history[-1]["time"]) == {"epoch_s", "measure_s", "elapsed_s"}
    kept = {"gap", "relative_gap", "lower_bound", "objective", "within_class_bound", "duality_bound"}
    bounds = {f"{name}_bound" for name in ("accuracy", "uniform_accuracy", "nc1", "nc2", "nc3")}
    assert set(history[-1]["certificate"]) == kept | bounds
    assert history[-1]["certificate"]["gap"] > 0
    assert json.loads((folder / "summary.json").read_text()) == summary
    assert summary["status"] == "finished"
    assert summary["selected_epoch"] == summary["epoch"] == 3
    assert summary["prediction"]["phase"]
    assert summary["reason"] is None


def test_summary_is_the_measurement_of_the_final_weights(short):
    summary, folder = short
    model = create("mlp-small", 10, in_channels=1, image_size=8)
    model.load_state_dict(load_file(folder / "final.safetensors"))
    splits = load_splits(SHORT, None)
    for name in ("train", "test"):
        images = (splits[name].images.float() / 255 - 0.3053) / 0.3761
        with torch.no_grad():
            features = model.features(images)
        expected = measure(features, splits[name].labels, head=model.head)
        assert summary[name]["nc1"] == pytest.approx(expected.nc1, rel=1e-3)
        assert summary[name]["accuracy"] == expected.accuracy
    arrays = load_file(folder / "snapshot.safetensors")
    assert torch.equal(arrays["weight"].float(), model.head.weight.detach())
    assert arrays["train.class_means"].shape == (10, 256)
    assert int(arrays["test.positive_score.counts"].sum()) == len(splits["test"])
    assert arrays["train.features"].shape == (1000, 256)


def test_snapshots_of_epochs_are_kept_on_the_way(short):
    folder = short[1]
    epochs, problem = read_epochs(folder)
    assert problem is None
    assert list(epochs) == [1, 2, 3]
    assert (folder / "epochs.safetensors").stat().st_size < 60_000
    end = load_file(folder / "snapshot.safetensors")
    means, weight = end["train.class_means"], end["weight"]
    np.testing.assert_allclose(epochs[3]["gram.means"], means @ means.T, rtol=1e-5)
    np.testing.assert_allclose(epochs[3]["gram.cross"], weight @ means.T, rtol=1e-4, atol=1e-5)
    labels = [arrays["train.labels"].tolist() for arrays in epochs.values()]
    assert labels[0] == labels[1] == labels[2] == np.repeat(np.arange(10), 15).tolist()
    spread = [row["train"]["positive_score"] for row in history_of(folder)]
    for arrays, row in zip(epochs.values(), spread):
        assert arrays["train.positive_score.edges"][[0, -1]].tolist() == pytest.approx([row["min"], row["max"]])
        assert arrays["train.positive_score.counts"].sum() == row["count"]


def test_a_snapshot_does_not_change_the_record_of_its_epoch(tmp_path, short, monkeypatch):
    monkeypatch.setattr("ncollapse.train.loop.choose_epochs", lambda *_: frozenset())
    run(SHORT, tmp_path, device="cpu")
    folder = tmp_path / SHORT.run_id
    assert not (folder / "epochs.safetensors").exists()
    assert without_time(history_of(folder)) == without_time(history_of(short[1]))


def test_weights_hold_no_metadata(short):
    content = (short[1] / "final.safetensors").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert "__metadata__" not in header


def test_finished_run_is_not_run_again(short, monkeypatch):
    summary, folder = short
    monkeypatch.setattr("ncollapse.train.loop.prepare", lambda *_: pytest.fail("trained again"))
    assert run(SHORT, folder.parent, device="cpu", resume=False) == summary


def test_a_finished_run_is_read_without_a_lock(short, monkeypatch):
    summary, folder = short
    monkeypatch.setattr("ncollapse.train.loop.hold", lambda _: pytest.fail("locked"))
    monkeypatch.setattr("ncollapse.train.loop.make_folder", lambda *_: pytest.fail("written to"))
    assert run(SHORT, folder.parent, device="cpu") == summary


@pytest.mark.parametrize("content", ["", "[]", '{"name": ', None])
def test_a_finished_run_gets_its_configuration_back(short, tmp_path, content):
    summary, folder = short
    copy = Path(shutil.copytree(folder, tmp_path / folder.name))
    if content is None:
        (copy / "config.json").unlink()
    else:
        (copy / "config.json").write_text(content)
    assert run(SHORT, tmp_path, device="cpu") == summary
    assert (copy / "config.json").read_bytes() == (folder / "config.json").read_bytes()


def test_a_finished_run_counts_where_nothing_can_be_written(short, tmp_path, monkeypatch):
    summary, folder = short
    copy = Path(shutil.copytree(folder, tmp_path / folder.name))
    (copy / "config.json").write_text("")
    monkeypatch.setattr(RunFolder, "write_json", refuse)
    assert run(SHORT, tmp_path, device="cpu") == summary


def test_a_read_only_place_is_named_by_its_argument(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(PermissionError, match=rf"^--out {tmp_path}: cannot be written: Read-only file system$"):
        run(SHORT, tmp_path, device="cpu")
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(PermissionError, match=rf"^--out {tmp_path}/x: cannot be written: Read-only file system$"):
        run(SHORT, tmp_path / "x", device="cpu")


def refuse(*_, **__):
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_file_is_no_place_for_runs(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match=r"^--out \S+/file: is a file, not a folder$"):
        run(SHORT, tmp_path / "file", device="cpu")
    with pytest.raises(NotADirectoryError, match=r"^--out \S+/file/a/b: \S+/file is a file, not a folder$"):
        run(SHORT, tmp_path / "file" / "a" / "b", device="cpu")


@pytest.mark.parametrize("name", ["npz:{}/mine.npz", "folder:{}/mine", "cifar10", "mnist"])
def test_missing_data_leave_nothing_behind(tmp_path, name):
    (tmp_path / "cifar-10-batches-py").mkdir()  # empty
    (tmp_path / "mnist").mkdir()
    recipe = SHORT.override(data__name=name.format(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"mine|batches\.meta|train-images"):
        run(recipe, tmp_path / "out", device="cpu", data_root=tmp_path)
    assert not (tmp_path / "out").exists()


def test_classes_too_small_for_a_test_set_are_named(tmp_path):
    np.savez(tmp_path / "few.npz", images=np.eye(10, dtype=np.float32), labels=np.arange(10) % 5)
    recipe = SHORT.override(data__name=f"npz:{tmp_path / 'few.npz'}")
    with pytest.raises(
        ValueError, match=r"^data: npz:.*few.npz has too few samples to hold out a fifth .*: the largest class has 2"
    ):
        load_splits(recipe, None)
    np.savez(tmp_path / "few.npz", images=np.eye(15, dtype=np.float32), labels=np.arange(15) % 5)
    assert len(load_splits(recipe, None)["test"]) == 5
    with pytest.raises(ValueError, match=r"^data.validation = 0.01: fraction: 0.01 of each class"):
        load_splits(recipe.override(data__validation=0.01), None)


class Unreduced(Loss):
    def forward(self, logits, target):
        return torch.nn.functional.cross_entropy(logits, target, reduction="none")


class Plain(Loss):
    def forward(self, logits, target):
        return 1.0


@pytest.mark.parametrize("model", ["mlp-small", "resnet32"])  # with the loop's own gradients, and with autograd's
@pytest.mark.parametrize(("loss", "got"), [("Unreduced", r"a tensor of shape \[64\]"), ("Plain", "float")])
def test_a_loss_that_is_no_mean_is_named(tmp_path, model, loss, got):
    recipe = SHORT.override(loss__name=f"{__name__}:{loss}", model__name=model)
    with pytest.raises(ValueError, match=rf"^loss: expected .*{loss}.*, got ({got})$"):
        run(recipe, tmp_path, device="cpu")


def test_a_name_is_no_recipe(tmp_path):
    with pytest.raises(TypeError, match=r"recipe = 'digits' must be a Recipe.*recipes\.get\('digits'\)"):
        run("digits", tmp_path)
    assert not list(tmp_path.iterdir())


def test_stop_by_progress_then_resume_equals_one_go(short, tmp_path):
    def stop(event):
        if event["epoch"] == 2 and "nc1" in event:
            raise TimeoutError("enough")

    with pytest.raises(TimeoutError, match="enough"):
        run(SHORT, tmp_path, device="cpu", progress=stop)
    folder = tmp_path / SHORT.run_id
    assert not (folder / "summary.json").exists()
    with pytest.raises(ValueError, match="--resume"):
        run(SHORT, tmp_path, device="cpu", resume=False)
    run(SHORT, tmp_path, device="cpu")
    assert without_time(history_of(folder)) == without_time(history_of(short[1]))
    assert (folder / "final.safetensors").read_bytes() == (short[1] / "final.safetensors").read_bytes()


@pytest.mark.usefixtures("checkpoint_always")
def test_nan_loss_stops_with_the_place_and_keeps_the_checkpoint(tmp_path, monkeypatch):
    recipe = SHORT.override(optim__epochs=4)

    def explode(recipe, epoch):
        return 1e30 if epoch == 3 else rate_at(recipe, epoch)

    monkeypatch.setattr("ncollapse.train.loop.rate_at", explode)
    with pytest.raises(Diverged, match=r"epoch 3, step \d+ of 23.*1e\+30.*checkpoint of epoch 2 is kept"):
        run(recipe, tmp_path, device="cpu")
    folder = tmp_path / recipe.run_id
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert "Diverged" in summary["reason"]
    assert "Traceback" in summary["traceback"]
    monkeypatch.undo()
    assert run(recipe, tmp_path, device="cpu")["status"] == "finished"
    assert [row["epoch"] for row in history_of(folder)] == [1, 2, 3, 4]


def test_features_that_overflow_stop_with_the_place_too(tmp_path):
    recipe = SHORT.override(optim__batch_size=2000, optim__lr=1e30)
    with pytest.raises(Diverged, match=r"no longer finite after step 1 of epoch 1.*1e\+30; there is no checkpoint"):
        run(recipe, tmp_path, device="cpu")


@pytest.mark.usefixtures("checkpoint_always")
def test_checkpoints_do_not_wait_for_measurements(tmp_path):
    recipe = SHORT.override(measure_every=3)

    def stop(event):
        if event["epoch"] == 3:
            names = [path.name for path in (tmp_path / recipe.run_id / "checkpoint").glob("0*.safetensors")]
            seen.append(max(names))

    seen = []
    run(recipe, tmp_path, device="cpu", progress=stop)
    assert seen[-1].startswith("000002")


def test_epochs_of_milliseconds_share_a_checkpoint(tmp_path, monkeypatch):
    write, written = checkpoint.write, []
    monkeypatch.setattr(checkpoint, "write", lambda folder, found: written.append(found.epoch) or write(folder, found))
    monkeypatch.setattr("ncollapse.train.loop.CHECKPOINT_SECONDS", {"cpu": 3600.0})
    run(SHORT, tmp_path, device="cpu")
    assert written == [1, 3]


def test_the_history_is_on_the_disk_before_a_checkpoint(tmp_path, monkeypatch):
    write, order = checkpoint.write, []
    monkeypatch.setattr("ncollapse.runs.folder.sync_file", lambda path: order.append(path.name))
    monkeypatch.setattr(checkpoint, "write", lambda folder, found: order.append("checkpoint") or write(folder, found))
    run(SHORT, tmp_path, device="cpu")
    assert order[-2:] == ["history.jsonl", "checkpoint"]


def test_progress_comes_however_short_the_epochs_are(tmp_path, monkeypatch):
    monkeypatch.setattr("ncollapse.train.loop.PROGRESS_SECONDS", 0.05)
    recipe, seen = SHORT.override(optim__epochs=40, measure_every=40), []
    run(recipe, tmp_path, device="cpu", progress=lambda event: seen.append(event["epoch"]))
    assert len({epoch for epoch in seen if epoch < 40}) >= 3


def test_torch_s_own_switches_are_left_alone(tmp_path):
    name, value = ("fp32_precision", "tf32") if HAS_PRECISION_NAMES else ("allow_tf32", True)
    code = (
        "import torch; from ncollapse.train import recipes, run\n"
        f"torch.backends.cuda.matmul.{name} = {value!r}\n"
        "torch.use_deterministic_algorithms(True, warn_only=True)\n"
        "recipe = recipes.get('digits').override(optim__epochs=1)\n"
        f"print(run(recipe, {str(tmp_path)!r}, device='cpu')['status'])\n"
        f"print(torch.backends.cuda.matmul.{name}, torch.is_deterministic_algorithms_warn_only_enabled())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["finished", str(value), "True"]


def read_precision():
    """The precision of products and of convolutions, in the words of this version of torch."""
    if HAS_PRECISION_NAMES:
        return [torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision]
    return [torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32]


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_precision_is_set_and_put_back(precision):
    before = read_precision()
    with switches(torch.device("cuda"), precision, deterministic=False):
        inside = read_precision()
    tf32 = {"fp32": [False, False], "tf32": [True, True], "bf16": [False, True]}[precision]
    assert inside == ([("ieee", "tf32")[part] for part in tf32] if HAS_PRECISION_NAMES else tf32)
    assert read_precision() == before
    assert torch.get_float32_matmul_precision() == "highest"
    assert isinstance(torch.backends.cudnn.allow_tf32, bool)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data__name": "gaussian", "model__name": "resnet18"}, r"model\.name = 'resnet18' takes images.*gaussian"),
        (
            {"model__name": "resnet18", "data__samples_per_class": 1, "optim__batch_size": 9},
            r"batch of 1 sample.*optim\.batch_size",
        ),
    ],
)
def test_what_does_not_fit_together_is_named(tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        run(SHORT.override(**changes), tmp_path, device="cpu")


def test_theory_knows_the_width_of_the_network_and_the_short_batch(tmp_path):
    def problem_of(**changes):
        recipe = recipes.get("digits").override(**changes)
        alone = World(0, 1, torch.device("cpu"))
        return prepare(recipe, RunFolder(tmp_path / recipe.run_id), alone, None, False, False).problem

    assert problem_of().batch_size == pytest.approx(1438 / 23)
    narrow = problem_of(model__name="mlp-5")
    assert narrow.dim == 5
    with pytest.raises(ValueError, match="closed form"):
        predict(narrow, method="closed")


@pytest.mark.usefixtures("checkpoint_always")
def test_full_disk_names_the_file_and_loses_nothing(tmp_path, monkeypatch):
    real = os.fsync
    state = {"left": 9}

    def fill(descriptor):
        state["left"] -= 1
        if state["left"] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fill)
    recipe = SHORT.override(optim__epochs=6)
    with pytest.raises(OSError, match=r"No space left.*can be resumed"):
        run(recipe, tmp_path, device="cpu")
    monkeypatch.undo()
    folder = tmp_path / recipe.run_id
    assert list((folder / "checkpoint").glob("0*.safetensors"))
    assert not list(folder.rglob("*.part"))
    run(recipe, tmp_path, device="cpu")
    other = tmp_path / "other"
    run(recipe, other, device="cpu")
    assert without_time(history_of(folder)) == without_time(history_of(other / recipe.run_id))


def test_best_on_validation_selects_its_epoch(tmp_path):
    seen = []

    class Keep:
        def log(self, record):
            seen.append(record)

    recipe = SHORT.override(data__validation=0.1, select="best-validation", optim__lr=0.02, optim__epochs=4)
    summary = run(recipe, tmp_path, device="cpu", trackers=[Keep()])
    accuracies = [row["validation"]["accuracy"] for row in seen]
    assert summary["selected_epoch"] == 1 + int(np.argmax(accuracies))
    assert summary["validation"]["accuracy"] == max(accuracies)
    assert clean(seen) == history_of(tmp_path / recipe.run_id)


def test_measuring_every_other_epoch(tmp_path):
    recipe = SHORT.override(measure_every=2)
    run(recipe, tmp_path, device="cpu")
    assert [row["epoch"] for row in history_of(tmp_path / recipe.run_id)] == [1, 2, 3]


@pytest.mark.usefixtures("checkpoint_always")
def test_best_weights_come_from_the_checkpoint(tmp_path, monkeypatch):
    recipe = SHORT.override(select="best-test")

    def flatter(features, labels, head, problem):  # the first epoch is the best by far
        found = measure_split(features, labels, head, problem)
        fading = 1.0 if not (tmp_path / recipe.run_id / "history.jsonl").exists() else found.accuracy / 2
        return replace(found, accuracy=fading)

    def stop(event):
        if event["epoch"] == 2 and "nc1" in event:
            raise TimeoutError

    monkeypatch.setattr("ncollapse.train.measuring.measure_split", flatter)
    monkeypatch.setattr("ncollapse.train.loop.choose_epochs", lambda *_: frozenset())
    with pytest.raises(TimeoutError):
        run(recipe, tmp_path, device="cpu", progress=stop)
    folder = tmp_path / recipe.run_id
    assert all(re.fullmatch(r"\d{6}-[0-9a-f]{16}\.safetensors", path.name) for path in folder.glob("checkpoint/*"))
    first = next(folder.glob("checkpoint/000001-*"))
    weights = {name[6:]: tensor for name, tensor in load_file(first).items() if name.startswith("model.")}
    assert run(recipe, tmp_path, device="cpu")["selected_epoch"] == 1
    best = load_file(folder / "best.safetensors")
    assert set(best) == set(weights)
    assert all(torch.equal(best[name], weights[name]) for name in best)


def test_bad_device_and_options(tmp_path):
    with pytest.raises(ValueError, match="cpu, cuda"):
        run(SHORT, tmp_path, device="meta")
    with pytest.raises(ValueError, match="graph=True"):
        run(SHORT, tmp_path / "g", device="cpu", graph=True)


@pytest.mark.slow
def test_digits_collapses_where_theory_says(tmp_path):
    summary = run(recipes.get("digits"), tmp_path, device="cpu")
    train, prediction = summary["train"], summary["prediction"]
    assert train["accuracy"] == 1.0
    assert train["nc1"] < 0.01
    for name in ("positive_score", "negative_score", "bias"):
        assert train[name]["mean"] == pytest.approx(prediction[name], rel=0.04), name
    assert train["weight_energy"] == pytest.approx(prediction["weight_energy"], rel=0.02)
    assert summary["certificate"]["relative_gap"] < 0.03
