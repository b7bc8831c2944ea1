"""DistributedDataParallel under torchrun: the metric inside the loop, the monitor after each epoch.

torchrun --nproc-per-node 2 examples/two_processes.py --epochs 10
"""

import argparse

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: what is imported later (by DDP) keeps one alive past its end
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import ncollapse as nc
from ncollapse.features import tap


def main(epochs: int) -> None:
    dist.init_process_group("gloo")
    train(epochs)
    dist.destroy_process_group()


def train(epochs: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=64, sampler=sampler)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model = nn.parallel.DistributedDataParallel(net)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    metric = nc.NeuralCollapse(num_classes=10, dim=128)

    with nc.monitor(model, loader) as watch, tap(net[2]) as taken:
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            metric.reset()
            seen = 0
            for x, y in loader:
                taken.clear()
                loss = nn.functional.cross_entropy(model(x), y)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                places = (seen + torch.arange(len(y))) * size + rank  # the sampler repeats samples to fill the ranks
                metric.update(taken[0], y, mask=places < len(data))
                seen += len(y)
            running = metric.compute(head=net[2])  # while training: each batch by the weights it met
            exact = watch.step()  # after the epoch: all samples by the same weights
            if rank == 0:
                print(
                    f"epoch {epoch + 1:3d}  NC1 {exact.nc1:.4f} (running {float(running['nc1']):.4f})  "
                    f"samples {exact.num_samples} (running {int(running['num_samples'])})"
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    main(**vars(parser.parse_args()))
