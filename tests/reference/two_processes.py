"""One of two gloo processes that measure together: `python two_processes.py RANK FOLDER` writes FOLDER/RANK.pt."""

import os
import subprocess
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: imported later (by DDP) it would keep the group's threads alive
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import ncollapse as nc

CLASSES, DIM, SAMPLES = 5, 12, 203


def make_data():
    """Features with a large common offset, labels sorted so that shards see few classes, a model and a classifier."""
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(SAMPLES, DIM, generator=generator) + 100.0
    labels = torch.arange(SAMPLES) * CLASSES // SAMPLES
    head = torch.nn.Linear(DIM, CLASSES)
    with torch.no_grad():
        head.weight.copy_(torch.randn(CLASSES, DIM, generator=generator))
        head.bias.copy_(torch.randn(CLASSES, generator=generator))
    return features, labels, head


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    options = {"rank": rank, "world_size": 2, "timeout": timedelta(seconds=120)}
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", **options)
    torch.save(measure_together(rank), folder / f"{rank}.pt")


def run_both(folder: Path) -> list[dict]:
    """What both processes find, this one as rank 0; an error if the other fails, or takes over two minutes more."""
    command = [sys.executable, __file__, "1", str(folder)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as other:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="measure: no sample of classes 3, 4")
                main(0, folder)
            _, errors = other.communicate(timeout=120)
        finally:
            other.kill()
            if dist.is_initialized():
                dist.destroy_process_group()
    assert other.returncode == 0, errors
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


def measure_together(rank: int) -> dict:
    features, labels, head = make_data()
    found = {}

    share = slice(0, 60) if rank == 0 else slice(60, SAMPLES)  # uneven, and rank 0 never sees classes 2 to 4
    metric = nc.NeuralCollapse(CLASSES, DIM)
    batches = list(zip(features[share].split(17), labels[share].split(17)))
    for batch in batches[:2]:
        metric.update(*batch)
    found["half"] = dict(metric.compute(head))
    saved = metric.state_dict()
    metric = nc.NeuralCollapse(CLASSES, DIM)
    metric.load_state_dict(saved)
    for batch in batches[2:]:
        metric.update(*batch)
    found["whole"] = dict(metric.compute(head))
    found["again"] = dict(metric.compute(head))
    found["own"] = metric.class_statistics().counts

    data = TensorDataset(features, labels)
    sampler = DistributedSampler(data, 2, rank, shuffle=False)  # 203 samples: one of them twice
    masked = nc.NeuralCollapse(CLASSES, DIM)
    for start, (x, y) in enumerate(DataLoader(data, batch_size=1, sampler=sampler)):
        masked.update(x, y, mask=torch.tensor([rank + 2 * start < SAMPLES]))
    found["masked"] = dict(masked.compute(head))

    idle = nc.NeuralCollapse(CLASSES, DIM)
    for batch in zip(features.split(50), labels.split(50)):
        if rank == 0:  # the other one never sees a sample
            idle.update(*batch)
    found["idle"] = dict(idle.compute(head))

    step = nc.NeuralCollapse(CLASSES, DIM, dist_sync_on_step=True)
    found["step"] = dict(step(features[rank::2], labels[rank::2]))

    broken = nc.NeuralCollapse(CLASSES, DIM)
    broken.update(features[share], labels[share])
    try:
        broken.compute(torch.nn.Linear(DIM + 1, CLASSES))
    except ValueError:
        found["after error"] = broken.class_statistics().counts

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Identity(), head))
    with nc.monitor(model, DataLoader(data, batch_size=16, sampler=sampler)) as watch:
        found["monitor"] = watch.last.to_dict()
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
    os._exit(0)  # once the other process has left its group, leaving ours may wait for ever (seen with torch 2.6)
