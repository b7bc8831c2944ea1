"""One of several gloo processes with some of the classes each: `python sharded_processes.py RANK PROCESSES FOLDER`."""

import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import ncollapse as nc

SIZES = {"K > d": (20, 6, 150), "K < d": (7, 12, 90), "K = d + 1": (9, 8, 90), "uneven": (3, 3, 40)}


def cases(processes):
    """What so many processes measure: the more of them, the less."""
    return list(SIZES) if processes == 2 else ["K > d", "uneven"]


def make_data(name):
    """Features with a common offset, labels that leave out some classes, and a classifier."""
    classes, dim, samples = SIZES[name]
    g = torch.Generator().manual_seed(classes)
    labels = torch.randint(classes, (samples,), generator=g)
    labels[labels == 2] = 1  # class 2 has no sample
    features = torch.randn(classes, dim, generator=g)[labels] + 0.3 * torch.randn(samples, dim, generator=g) + 50.0
    linear = torch.nn.Linear(dim, classes)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(classes, dim, generator=g))
        linear.bias.copy_(torch.randn(classes, generator=g))
    return features, labels, linear


def measure_case(rank, processes, name):
    features, labels, linear = make_data(name)
    classes, dim, samples = SIZES[name]
    metric = nc.NeuralCollapse(classes, dim, shard_classes=True)
    shares = torch.arange(samples).tensor_split([samples // 5, samples // 2][: processes - 1])[rank]  # uneven
    for part in shares.tensor_split(4):
        metric.update(features[part], labels[part])
    start, stop = metric.shards.bounds()
    head = nc.Head(linear.weight[start:stop].detach(), -linear.bias[start:stop].detach())
    found = {"bare": dict(metric.compute()), "head": dict(metric.compute(head)), "held": tuple(metric.statistics.shape)}
    mesh = init_device_mesh("cpu", (processes,))
    spread = torch.nn.Linear(dim, classes)
    spread.weight = torch.nn.Parameter(distribute_tensor(linear.weight.detach(), mesh, [Shard(0)]))
    spread.bias = torch.nn.Parameter(distribute_tensor(linear.bias.detach(), mesh, [Shard(0)]))
    found["dtensor"] = dict(metric.compute(spread))
    saved = metric.state_dict()
    fresh = nc.NeuralCollapse(classes, dim, shard_classes=True)
    fresh.load_state_dict(saved)
    found["reloaded"] = dict(fresh.compute(head, fields=["nc1", "nc3"]))
    mine = [(features[part], labels[part]) for part in shares.tensor_split(3)]
    found["second"] = metric.second_pass(mine, spread)
    found["second bare"] = metric.second_pass(mine)
    halves = [nc.NeuralCollapse(classes, dim, shard_classes=True) for _ in range(2)]
    for half, part in zip(halves, shares.tensor_split(2)):
        half.update(features[part], labels[part])
    halves[0].merge_state(halves[1])
    found["merged"] = dict(halves[0].compute(head))
    for name, wrong in {
        "forward": lambda: metric(features, labels),
        "other samples": lambda: metric.second_pass([(features[:1] + 1, labels[:1]), *mine[1:]]),
        "no batches": lambda: metric.second_pass(mine if rank else []),
        "problem": lambda: metric.second_pass(mine, problem=object()),
    }.items():
        try:
            wrong()
        except (RuntimeError, ValueError) as error:
            found[name] = str(error)
    try:
        nc.measure(features, labels, head=spread)
    except ValueError as error:
        found["refused"] = str(error)
    try:
        metric.update(features[:2], torch.tensor([0, classes if rank == 1 else 0]))
    except ValueError as error:
        found["label"] = str(error)
    try:
        metric.compute(nc.Head(torch.zeros(stop - start + 1, dim)))
    except ValueError as error:
        found["shape"] = str(error)
    return found


def main(rank: int, processes: int, folder: Path) -> None:
    torch.set_num_threads(1)
    options = {"rank": rank, "world_size": processes, "timeout": timedelta(seconds=120)}
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", **options)
    try:
        torch.save({name: measure_case(rank, processes, name) for name in cases(processes)}, folder / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
