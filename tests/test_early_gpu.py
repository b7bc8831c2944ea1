"""A GPU that is started beside the imports: which one, by which calls, and that nothing relies on it."""

import ctypes
import sys
import threading

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ncollapse import cli, early_gpu


@pytest.fixture
def cuda(monkeypatch):
    """A Linux machine whose torch can use GPUs."""
    monkeypatch.setattr(early_gpu, "_has_cuda", lambda: True)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("WORLD_SIZE", raising=False)


class Driver:
    """A driver that counts its calls and has `gpus` GPUs."""

    def __init__(self, gpus):
        self.gpus, self.calls = gpus, []

    def cuInit(self, flags):
        self.calls.append(("init", flags))
        return 0 if self.gpus else 100

    def cuDeviceGet(self, device, number):
        self.calls.append(("get", number))
        device._obj.value = 40 + number
        return 0 if number < self.gpus else 101

    def cuDevicePrimaryCtxRetain(self, context, device):
        self.calls.append(("retain", device.value))
        return 0


@pytest.fixture
def load(monkeypatch):
    """Replace the driver by one with so many GPUs."""

    def make(gpus):
        driver = Driver(gpus)
        monkeypatch.setattr(ctypes, "CDLL", {early_gpu.DRIVER: driver}.__getitem__)
        return driver

    return make


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(
    ("args", "number"),
    [
        (["digits"], 0),
        (["digits", "--out", "runs"], 0),
        (["digits", "--device", "cuda"], 0),
        (["digits", "--device=cuda:2"], 2),
        (["digits", "--device", "cpu", "--device", "cuda:1"], 1),
        (["digits", "--device", "cpu"], None),
        (["digits", "--device=cpu"], None),
        (["digits", "--device", "mps"], None),
        (["digits", "--device", "cuda:x"], None),
        (["digits", "--help"], None),
        (["digits", "--dry-run"], None),
        (["--help"], None),
        ([], None),
    ],
)
def test_the_gpu_is_the_one_of_the_option(args, number):
    assert early_gpu.choose_gpu(args) == number


@pytest.mark.usefixtures("cuda")
def test_processes_of_torchrun_and_other_systems_start_none(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert early_gpu.choose_gpu(["digits"]) is None
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert early_gpu.choose_gpu(["digits"]) == 0
    monkeypatch.setattr(sys, "platform", "darwin")
    assert early_gpu.choose_gpu(["digits"]) is None


def test_whether_torch_has_cuda_is_known_without_importing_it():
    assert early_gpu._has_cuda() == torch.backends.cuda.is_built()


def test_the_context_is_the_one_that_all_of_a_process_shares(load):
    driver = load(2)
    assert early_gpu.open_context(1)
    assert driver.calls == [("init", 0), ("get", 1), ("retain", 41)]


@pytest.mark.parametrize(("gpus", "calls"), [(0, 1), (1, 2)])
def test_without_that_gpu_there_is_no_context(load, gpus, calls):
    driver = load(gpus)
    assert not early_gpu.open_context(1)
    assert len(driver.calls) == calls


def test_errors_are_left_to_who_uses_the_gpu(monkeypatch):
    def fail(*args):
        raise OSError("no such library")

    monkeypatch.setattr(ctypes, "CDLL", fail)
    early_gpu.open_gpu(0)
    early_gpu.load_libraries(99)  # torch sees no such GPU
    early_gpu.wait_for_gpu()
    assert early_gpu._threads == []


def test_libraries_are_loaded_after_the_context_and_waited_for(monkeypatch):
    done, may_open = [], threading.Event()
    monkeypatch.setattr(early_gpu, "open_context", lambda number: may_open.wait(10) and done.append("context"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: done.append("libraries") is not None)
    early_gpu.open_gpu(0)
    early_gpu.load_libraries(0)
    assert done == []
    may_open.set()
    early_gpu.wait_for_gpu()
    assert done == ["context", "libraries"]
    early_gpu.wait_for_gpu()  # nothing is left to wait for


def test_the_small_work_is_a_convolution_both_ways_and_products():
    called = []

    class Noting(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            called.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with Noting():
        early_gpu.use_libraries(torch.device("cpu"))
    assert {"convolution", "convolution_backward", "mm", "addmm"} <= set(called)


@pytest.mark.usefixtures("cuda")
def test_train_alone_starts_a_gpu_and_not_with_deterministic_libraries(monkeypatch):
    begun = []
    monkeypatch.setattr(cli, "open_gpu", lambda number: begun.append(("open", number)))
    monkeypatch.setattr(cli, "load_libraries", lambda number: begun.append(("load", number)))
    for args in (["no-such-recipe", "--device", "cpu"], ["no-such-recipe", "--device", "cuda:1", "--deterministic"]):
        assert cli.main(["train", *args, "--out", "runs"]) == 2
    assert begun == [("open", 1)]
    assert cli.main(["train", "no-such-recipe", "--out", "runs"]) == 2
    assert begun[1:] == [("open", 0), ("load", 0)]
    begun.clear()
    assert cli.main(["measure", "no-such-file.npz"]) == 2
    assert begun == []
