"""Checkpoints and locks: whole or not at all, checked when read, one process at a time."""

import errno
import os
import subprocess
import sys

import pytest
import torch

from ncollapse.runs import checkpoint, files
from ncollapse.runs.checkpoint import Checkpoint
from ncollapse.runs.files import append_line, write_atomic
from ncollapse.runs.lock import FolderInUse, hold, is_locked
from ncollapse.train.state import restore, tensors_of, values_of


def save(folder, epoch):
    return checkpoint.write(folder, Checkpoint(epoch, {"a": torch.full((3,), float(epoch))}, {"epoch": epoch}))


def test_newest_is_read_and_two_are_kept(tmp_path):
    folder = tmp_path / "checkpoint"
    assert checkpoint.read_latest(folder) is None
    for epoch in (1, 2, 3, 10):
        save(folder, epoch)
    latest = checkpoint.read_latest(folder)
    assert (latest.epoch, latest.values, latest.tensors["a"].tolist()) == (10, {"epoch": 10}, [10.0] * 3)
    assert [path.name[:6] for path in checkpoint.find(folder)] == ["000010", "000003"]


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_damaged_newest_gives_way_to_the_one_before(tmp_path, damage, caplog):
    save(tmp_path, 1)
    newest = save(tmp_path, 2)
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes({"flip": content, "cut": content[:-7], "empty": b""}[damage])
    assert checkpoint.read_latest(tmp_path).epoch == 1
    assert newest.name in caplog.text
    assert "damaged" in caplog.text


def test_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x"
    write_atomic(path, b"old")

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left.*can be resumed.*x") as caught:
        write_atomic(path, b"new")
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["x"]


def step(model, optimiser, x):
    def evaluate():
        optimiser.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss

    optimiser.step(evaluate)


@pytest.mark.parametrize("kind", ["sgd", "adamw", "lbfgs"])
def test_state_of_every_optimiser_goes_on_exactly(kind):
    def make():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4))
        optimisers = {
            "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
            "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
            "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.01, max_iter=4, line_search_fn="strong_wolfe"),
        }
        return model, optimisers[kind](model.parameters())

    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
    model, optimiser = make()
    for _ in range(3):
        step(model, optimiser, x)
    content = checkpoint.pack(tensors_of(model, optimiser), {"optim": values_of(model, optimiser)})
    other, other_optimiser = make()
    tensors, values = checkpoint.unpack(content)
    restore(other, other_optimiser, tensors, values["optim"])
    for _ in range(3):
        step(model, optimiser, x)
        step(other, other_optimiser, x)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


def test_second_holder_is_refused_and_a_dead_one_leaves_no_lock(tmp_path):
    code = (
        "import pathlib, sys, time; from ncollapse.runs.lock import hold\n"
        f"with hold(pathlib.Path({str(tmp_path)!r})): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(FolderInUse, match=str(holder.pid)), hold(tmp_path):
            pass
    finally:
        holder.kill()
        holder.communicate()
    with hold(tmp_path), pytest.raises(FolderInUse), hold(tmp_path):
        pass


def test_a_deleted_lock_file_lets_nobody_in(tmp_path):
    with hold(tmp_path):
        (tmp_path / "lock").unlink()
        assert is_locked(tmp_path)
        with pytest.raises(FolderInUse), hold(tmp_path):
            pass
    assert not is_locked(tmp_path)


def test_a_checkpoint_with_the_right_checksum_that_cannot_be_unpacked(tmp_path, caplog):
    save(tmp_path, 1)
    content = b"\x08\x00\x00\x00\x00\x00\x00\x00[[[[[[[["
    (tmp_path / f"000002-{checkpoint._digest(content)}.safetensors").write_bytes(content)
    odd = checkpoint.pack({"a": torch.zeros(1)}, {"epoch": 7})
    (tmp_path / f"000003-{checkpoint._digest(odd)}.safetensors").write_bytes(odd)
    assert checkpoint.read_latest(tmp_path).epoch == 1
    assert caplog.text.count("is passed over") == 2


def test_drafts_of_killed_processes_are_removed(tmp_path):
    code = (
        "import os, pathlib, signal, sys; from ncollapse.runs.files import write_atomic\n"
        "os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"write_atomic(pathlib.Path({str(tmp_path)!r}, 'page.html'), b'half')"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode < 0
    assert len(list(tmp_path.iterdir())) == 1
    (tmp_path / f".page.html.{'0' * 8}-1.part").touch()  # of another machine: it may still be writing
    (tmp_path / f".page.html.{files._host()}-{os.getppid()}.part").touch()  # alive
    write_atomic(tmp_path / "page.html", b"whole")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"page.html", f".page.html.{'0' * 8}-1.part", f".page.html.{files._host()}-{os.getppid()}.part"}


def test_a_line_cut_short_does_not_swallow_the_next(tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_bytes(b'{"epoch": 1}\n{"epo')
    append_line(path, {"epoch": 3})
    assert path.read_bytes().splitlines() == [b'{"epoch": 1}', b'{"epo', b'{"epoch": 3}']


WITHOUT_FCNTL = """
import sys
sys.modules["fcntl"] = None
import pathlib
from ncollapse.runs.lock import FolderInUse, hold, is_locked
folder = pathlib.Path(sys.argv[1])
with hold(folder):
    assert is_locked(folder)
    try:
        with hold(folder):
            raise SystemExit("two holders")
    except FolderInUse as error:
        print("refused", error)
assert not is_locked(folder)
from ncollapse.train import recipes, run
recipe = recipes.get("digits").override(model__name="mlp-16", data__samples_per_class=10, optim__epochs=1)
print(run(recipe, folder, device="cpu")["status"])
"""


def test_everything_works_without_fcntl(tmp_path):
    """As on Windows, where the module does not exist."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_FCNTL, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "finished"
    assert "is in use" in done.stdout
