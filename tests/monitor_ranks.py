"""Run by torchrun: what `nc.monitor` does in two processes, each case by its name; rank 0 prints JSON."""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: what is imported later keeps one alive past its end
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import ncollapse as nc
from ncollapse.monitoring import processes

X, Y = torch.randn(33, 6, generator=torch.Generator().manual_seed(0)), torch.arange(33) % 3


def build(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to(dtype)


def make_loader(batch_size=16, dtype=torch.float32):
    data = TensorDataset(X.to(dtype), Y)
    return DataLoader(data, batch_size=batch_size, sampler=DistributedSampler(data))


def describe(watch):
    seen = watch.history[-1]
    return {
        "nc1": seen.measurement.nc1,
        "accuracy": seen.measurement.accuracy,
        "samples": seen.measurement.num_samples,
        "layers": None if seen.layers is None else seen.layers.to_dict(),
    }


def shared(rank):
    """All processes measure together, layers too."""
    watch = nc.monitor(nn.parallel.DistributedDataParallel(build()), make_loader(), layers=["0", "1"])
    watch.observe()
    profile = nc.measure_layers(build(), make_loader(), ["0", "1"])
    assert profile.to_dict() == watch.history[-1].layers.to_dict()
    return describe(watch)


def narrow(rank):
    """A model in bfloat16."""
    watch = nc.monitor(build(torch.bfloat16), make_loader(dtype=torch.bfloat16))
    watch.observe()
    return describe(watch)


def first_alone(rank):
    """Rank 0 measures by itself; rank 1 never calls."""
    if rank:
        return None
    watch = nc.monitor(build(), make_loader(), distributed=False)
    watch.observe()
    return describe(watch)


def first_waits(rank):
    """Rank 0 measures as if the others did too, and says who is missing."""
    if rank:
        return None
    processes.WARN_AFTER, processes.GIVE_UP_AFTER = 9.0, 0.5
    try:
        nc.monitor(build(), make_loader()).observe()
    except RuntimeError as error:
        return str(error)
    return "no error"


def one_fails(rank):
    """An error in one process is raised in all."""
    loader = DataLoader(TensorDataset(X, torch.where(torch.arange(33) == 1, 7, Y)), batch_size=16)
    watch = nc.monitor(build(), loader, split=lambda batch: (batch[0][:, :5] if rank else batch[0], batch[1]))
    try:
        watch.observe()
    except RuntimeError as error:
        found = [None, None]
        dist.all_gather_object(found, str(error))
        return found
    return "no error"


def sharded(rank):
    """A model that FSDP holds in parts; 33 samples in batches of 16 are one batch more on rank 0."""
    model = build()
    for module in (model[0], model[2], model):
        fully_shard(module)
    try:
        model(X)
    except AttributeError as error:  # torch 2.6 shards models on GPUs alone
        return f"unsupported: {error}"
    watch = nc.monitor(model, make_loader())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    watch.observe()
    nn.functional.cross_entropy(model(X), Y).backward()
    optimiser.step()
    watch.observe()
    named = nc.monitor(model, make_loader(), layer="2")
    assert named.observe().measurement.nc1 == watch.last.nc1
    try:
        nc.monitor(model, make_loader(), distributed=False)
    except ValueError as error:
        return {**describe(watch), "first": watch.history[0].measurement.nc1, "refused": str(error)}
    return "not refused"


CASES = {
    "shared": shared,
    "narrow": narrow,
    "first_alone": first_alone,
    "one_fails": one_fails,
    "sharded": sharded,
    "first_waits": first_waits,  # last: its meeting stays incomplete
}


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for name in sys.argv[1:]:
        result = CASES[name](dist.get_rank())
        if dist.get_rank() == 0:
            print(json.dumps([name, result]), flush=True)
        dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # models of FSDP keep the group alive; at the interpreter's own exit its threads may abort the process
