"""Batches on a GPU: those of the CPU, made without waiting for it. tests/reference/pretend_gpu.py stands for one."""

import pytest
import torch

from ncollapse.data import Augment, Dataset
from ncollapse.data.loader import DeviceLoader, EvalLoader
from reference.pretend_gpu import PretendGpu

AUGMENTS = {
    "none": Augment(),
    "standard": Augment(crop=2, flip=True),
    "mixed": Augment(crop=2, flip=True, mixup=0.8, cutmix=1.0, label_smoothing=0.1),
}


def make_data():
    g = torch.Generator().manual_seed(0)
    images = torch.randint(256, (50, 3, 8, 8), generator=g, dtype=torch.uint8)
    return Dataset(images, torch.randint(4, (50,), generator=g), ("a", "b", "c", "d"), "toy", "train")


def make_loader(data, augment, device):
    options = {"normalise": ([0.5], [0.2]), "dtype": torch.bfloat16, "drop_last": False, "device": device}
    return DeviceLoader(data, 16, augment=augment, seed=3, **options)


@pytest.mark.parametrize("name", AUGMENTS)
def test_an_epoch_is_that_of_the_cpu_and_waits_for_nothing(name):
    data, augment = make_data(), AUGMENTS[name]
    expected = [list(make_loader(data, augment, "cpu").epoch(epoch)) for epoch in (1, 2)]
    with PretendGpu() as gpu:
        loader = make_loader(data, augment, "cuda:0")
        gpu.counts.clear()
        found = [list(loader.epoch(epoch)) for epoch in (1, 2)]
        assert gpu.waits == 0, gpu.counts
        assert gpu.counts["copies to the GPU that the host waits for"] == 0, gpu.counts
        assert gpu.counts["copies to the GPU"] == 2 * {"none": 1, "standard": 4, "mixed": 6}[name]
    for batches, wanted in zip(found, expected):
        assert len(batches) == len(wanted) == 4
        for (x, y), (x_cpu, y_cpu) in zip(batches, wanted):
            assert torch.equal(x.inner, x_cpu)
            assert torch.equal(y.inner, y_cpu)


def test_batches_for_measuring_wait_for_nothing():
    with PretendGpu() as gpu:
        loader = EvalLoader(make_data(), 16, normalise=([0.5], [0.2]), device="cuda:0")
        gpu.counts.clear()
        assert len(list(loader)) == 4
        assert gpu.waits == gpu.counts["copies to the GPU"] == 0, gpu.counts
