"""Checkpoints and locks: whole or not at all, checked when read, one process at a time."""

import errno
import os
import subprocess
import sys

import pytest
import torch

from ncollapse.runs import checkpoint
from ncollapse.runs.checkpoint import Checkpoint
from ncollapse.runs.files import write_atomic
from ncollapse.runs.lock import FolderInUse, hold
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
    with pytest.raises(OSError, match=r"No space left.*--resume.*x") as caught:
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
