"""How often the thread that trains waits: for the device once an epoch, to read the mean loss, and never for the disk.

A GPU that is read from has nothing to do until the next launch, so a read in the middle of training costs time. Here a
run trains on the CPU in the way of a GPU (measuring in a thread of its own, sums kept in tensors), and everything that
would wait for a GPU is counted in the training thread.
"""

import os
import threading
from collections import Counter

import pytest
from torch.overrides import TorchFunctionMode

from ncollapse.train import loop, recipes, setup
from ncollapse.train.background import Background
from ncollapse.train.step import EagerStep, Tally
from reference.pretend_gpu import READS

EPOCHS = 5


class Reads(TorchFunctionMode):
    """Counts what this thread reads from tensors, by the name of the function."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name, kwargs = getattr(function, "__name__", ""), kwargs or {}
        host = any(isinstance(value, str) and value == "cpu" for value in (*args[1:], kwargs.get("device")))
        if name in READS | {"cpu", "nonzero", "equal"} or (name == "to" and host):
            self.counts[name] += 1
        return function(*args, **kwargs)


class DeviceTally(Tally):
    """The tally of a GPU: nothing is read until the end of the epoch."""

    def __init__(self, device):
        super().__init__(device)
        self.numbers = None


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(loop, "Background", lambda device, apart: Background(device, apart=True))
    monkeypatch.setattr(setup, "Tally", DeviceTally)
    monkeypatch.setattr(setup, "is_perceptron", lambda objective: False)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", {"cpu": 0.0})
    monkeypatch.setattr(loop, "WRITES_SHARE", float("inf"))  # a checkpoint after every epoch


def count_reads(tmp_path, monkeypatch, **changes):
    """What a run reads between its first step and the end of its last one."""
    recipe = recipes.get("digits").override(optim__epochs=EPOCHS, **changes)
    reads, found, steps = Reads(), Counter(), []
    train_epoch, work = loop._Loop.train_epoch, EagerStep.__call__

    def train_and_count(self, epoch):
        before = reads.counts.copy()
        train_epoch(self, epoch)
        found.update(reads.counts - before)

    def step_and_count(self, x, y, size):
        before = reads.counts.copy()
        work(self, x, y, size)
        steps.append(reads.counts - before)

    monkeypatch.setattr(loop._Loop, "train_epoch", train_and_count)
    monkeypatch.setattr(EagerStep, "__call__", step_and_count)
    with reads:
        loop.run(recipe, tmp_path, device="cpu")
    in_steps = sum(steps, Counter())
    assert len(steps) == EPOCHS * 23  # what they read themselves, the checks of labels on a CPU, is no part of it
    return found - in_steps


@pytest.mark.parametrize("select", ["last", "best-test"])
def test_an_epoch_waits_once(tmp_path, monkeypatch, as_on_a_gpu, select):
    assert count_reads(tmp_path, monkeypatch, select=select) == {"tolist": EPOCHS}


def test_epochs_that_are_not_measured_wait_no_more(tmp_path, monkeypatch, as_on_a_gpu):
    assert count_reads(tmp_path, monkeypatch, measure_every=2) == {"tolist": EPOCHS}


def test_training_does_not_wait_for_the_disk(tmp_path, monkeypatch, as_on_a_gpu):
    threads, train, sync = [], loop._Loop.train, os.fsync

    def sync_and_note(file):
        threads.append(threading.current_thread())
        sync(file)

    def train_and_note(self):
        monkeypatch.setattr(os, "fsync", sync_and_note)
        train(self)
        monkeypatch.setattr(os, "fsync", sync)

    monkeypatch.setattr(loop._Loop, "train", train_and_note)
    loop.run(recipes.get("digits").override(optim__epochs=EPOCHS), tmp_path, device="cpu")
    assert len(threads) > EPOCHS  # of snapshots and checkpoints
    assert threading.current_thread() not in threads
