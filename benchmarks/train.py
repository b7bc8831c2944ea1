"""Training against the honest baseline, in one run: ratios per step, per epoch with its measurement, and packed.

    python benchmarks/train.py --device cuda --data-root DIR --json OUT
    python benchmarks/train.py --models resnet18 resnet50 vit-small      steps of several networks: see networks.py

The baseline is what the papers' public code does, on the same network and batches: eager PyTorch, a DataLoader whose 8
workers transform image by image, the loss read back every step, and the collapse metrics summed sample by sample with
a pseudo-inverse at the end. It gets bfloat16 autocast, channels-last memory and cuDNN's search, which theirs lacks, so
that the ratios are of the engine alone. Ours is `ncollapse.train` as `ncollapse train` runs it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from networks import COLUMNS, show_table, time_networks, without_our_kernels, write_table
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from ncollapse import data
from ncollapse.models import create
from ncollapse.runs.folder import RunFolder
from ncollapse.train import recipes
from ncollapse.train.backend import own_stream, switches
from ncollapse.train.distributed import World
from ncollapse.train.loop import prepare
from ncollapse.train.measuring import extract_splits, measure_splits

MEAN, STD = data.NORMALISATION["cifar10"]


class PerSample(TorchDataset[tuple[Tensor, int]]):
    """CIFAR images, transformed one at a time as a torchvision pipeline does."""

    def __init__(self, dataset: data.Dataset, augment: bool) -> None:
        self.images, self.labels, self.augment = dataset.images, dataset.labels.tolist(), augment
        self.mean, self.std = torch.tensor(MEAN)[:, None, None], torch.tensor(STD)[:, None, None]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index]
        if self.augment:
            padded = nn.functional.pad(image, (4, 4, 4, 4))
            top, left = torch.randint(9, (2,)).tolist()
            image = padded[:, top : top + 32, left : left + 32]
            if torch.rand(()) < 0.5:
                image = image.flip(2)
        return (image.float() / 255 - self.mean) / self.std, self.labels[index]


def synchronise(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def time_baseline(train: data.Dataset, test: data.Dataset, device: torch.device, args: Any) -> dict[str, float]:
    """Seconds a step (loader apart), and of one epoch with its measurement, the way the papers' code does it."""
    torch.backends.cudnn.benchmark = True
    model = create(args.model, 10).to(device).to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    cast = torch.autocast(device.type, torch.bfloat16)

    def step(x: Tensor, y: Tensor) -> float:
        x = x.to(device, memory_format=torch.channels_last, non_blocking=True)
        with cast:
            loss = nn.functional.cross_entropy(model(x), y.to(device, non_blocking=True))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        return loss.item()

    options: dict[str, Any] = {
        "batch_size": args.batch,
        "num_workers": args.workers,
        "pin_memory": device.type == "cuda",
    }
    loader = DataLoader(PerSample(train, True), shuffle=True, **options)
    x, y = next(iter(DataLoader(PerSample(train, True), batch_size=args.batch)))
    for _ in range(10):
        step(x, y)
    began = synchronise(device)
    for _ in range(args.steps):
        step(x, y)
    step_s = (synchronise(device) - began) / args.steps
    began = synchronise(device)
    for x, y in loader:
        step(x, y)
    train_s = synchronise(device) - began
    began = synchronise(device)
    for split in (train, test):
        measure_by_sample(model, DataLoader(PerSample(split, False), **options), device, cast)
    return {"step_s": step_s, "train_s": train_s, "measure_s": synchronise(device) - began}


@torch.no_grad()
def measure_by_sample(model: Any, loader: Any, device: torch.device, cast: Any) -> tuple[float, float]:
    """NC1 and NC3 with class sums and covariances accumulated sample by sample in float32, and pinv."""
    model.eval()
    sums, counts = {}, {}

    def features() -> Any:
        for x, y in loader:
            with cast:
                h = model.features(x.to(device, memory_format=torch.channels_last))
            yield h.float(), y

    for h, y in features():
        for i in range(len(y)):
            label = y[i].item()
            sums[label] = sums[label] + h[i] if label in sums else h[i]
            counts[label] = counts.get(label, 0) + 1
    means = {label: sums[label] / counts[label] for label in sums}
    within = torch.zeros(model.num_features, model.num_features, device=device)
    for h, y in features():
        for i in range(len(y)):
            away = h[i] - means[y[i].item()]
            within += away[:, None] @ away[None, :]
    within /= sum(counts.values())
    centred = torch.stack([means[label] for label in sorted(means)])
    centred = centred - centred.mean(0)
    between = centred.T @ centred / len(means)
    nc1 = torch.trace(within @ torch.linalg.pinv(between)) / len(means)
    product = model.head.weight @ centred.T
    ideal = (torch.eye(len(means)) - 1 / len(means)).to(device) / (len(means) - 1) ** 0.5
    nc3 = torch.linalg.norm(product / torch.linalg.norm(product) - ideal)
    model.train()
    return float(nc1), float(nc3)


def open_run(folder: str, device: torch.device, args: Any, seed: int = 0, compile: bool = False) -> Any:
    """A run of ours, ready to step."""
    recipe = recipes.get("bce-vs-ce/setting-3", loss="ce", model=args.model).override(
        seed=seed, optim__batch_size=args.batch, data__samples_per_class=args.per_class
    )
    return prepare(recipe, RunFolder(Path(folder)), World(0, 1, device), args.data_root, compile, None)


def time_ours(device: torch.device, args: Any, compile: bool) -> dict[str, float]:
    """The same of ours, and the seconds until the first step."""
    with tempfile.TemporaryDirectory() as folder, switches(device, "bf16", False), own_stream(device):
        began = synchronise(device)
        run = open_run(folder, device, args, compile=compile)
        measure_splits(run, extract_splits(run))
        ready = synchronise(device)
        train_one_epoch(run, 1)
        start = synchronise(device)
        train_one_epoch(run, 2)
        trained = synchronise(device)
        measure_splits(run, extract_splits(run))
        measured = synchronise(device)
    steps = run.loaders.train.steps
    times = {"prepare_s": ready - began, "step_s": (trained - start) / steps, "train_s": trained - start}
    return {**times, "measure_s": measured - trained}


def train_one_epoch(run: Any, epoch: int) -> None:
    batch, samples = run.recipe.optim.batch_size, sum(run.loaders.counts)
    for i, (x, y) in enumerate(run.loaders.train.epoch(epoch)):
        run.step(x, y, min(batch, samples - i * batch))
    run.tally.read()


def time_packed(device: torch.device, args: Any, together: int) -> float:
    """Models x steps a second of several runs in threads on one GPU."""
    ready, clock = threading.Barrier(together), []

    def work(seed: int, folder: str) -> None:
        torch.cuda.set_device(device)
        with own_stream(device):
            try:
                run = open_run(folder, device, args, seed)
                train_one_epoch(run, 1)
            except BaseException:
                ready.abort()  # or the others would wait for it
                raise
            ready.wait()
            began = time.perf_counter()
            train_one_epoch(run, 2)
            clock.append((time.perf_counter() - began, run.loaders.train.steps))

    with tempfile.TemporaryDirectory() as folder, switches(device, "bf16", False):
        threads = [threading.Thread(target=work, args=(seed, folder)) for seed in range(together)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return sum(steps for _, steps in clock) / max(seconds for seconds, _ in clock)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data-root")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=200, help="steps timed for the baseline")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--per-class", type=int, help="training samples a class; default all of CIFAR-10")
    parser.add_argument("--packed", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--compile", action="store_true", help="time the compiled step too")
    parser.add_argument("--models", nargs="+", help="time a step of these networks beside PyTorch's other ways instead")
    parser.add_argument(
        "--columns", nargs="+", choices=COLUMNS, default=list(COLUMNS), help="which ways, with --models"
    )
    parser.add_argument("--autotune", nargs="*", default=[], help="networks compiled with mode='max-autotune'")
    args = parser.parse_args()
    device = torch.device(args.device, 0) if args.device == "cuda" else torch.device(args.device)
    if args.models:
        table = time_networks(args.models, device, args.batch, args.columns, args.autotune)
        print(show_table(table))
        if args.json:
            gpu = torch.cuda.get_device_name(device)
            command = f"python benchmarks/train.py --models {' '.join(args.models)} --columns {' '.join(args.columns)}"
            command += f" --autotune {' '.join(args.autotune)}" if args.autotune else ""
            versions = {"gpu": gpu, "torch": torch.__version__, "batch": args.batch}
            found = {"command": command, **versions, "networks": table}
            write_table(args.json, found)
        return
    train, test = (data.load("cifar10", args.data_root, split) for split in ("train", "test"))
    if args.per_class:
        train = data.samples_per_class(train, args.per_class)
        test = data.samples_per_class(test, min(args.per_class, 1000))

    figures: dict[str, Any] = {"device": str(device), "model": args.model, "batch": args.batch}
    if device.type == "cuda":
        figures["gpu"] = torch.cuda.get_device_name(device)
    figures["ours"] = time_ours(device, args, False)
    print("ours", figures["ours"], flush=True)
    if args.compile:
        figures["compiled"] = time_ours(device, args, True)
        print("compiled", figures["compiled"], flush=True)
    if device.type == "cuda":
        figures["packed_steps_per_s"] = {str(n): time_packed(device, args, n) for n in args.packed}
        print("packed, models x steps a second", figures["packed_steps_per_s"], flush=True)
    with without_our_kernels():  # they are part of the engine
        figures["baseline"] = time_baseline(train, test, device, args)
    print("baseline", figures["baseline"], flush=True)

    ours, baseline = figures["ours"], figures["baseline"]
    epoch = {name: times["train_s"] + times["measure_s"] for name, times in (("ours", ours), ("baseline", baseline))}
    figures["ratio_step"] = baseline["step_s"] / ours["step_s"]
    figures["ratio_epoch_with_measurement"] = epoch["baseline"] / epoch["ours"]
    print(f"per step {figures['ratio_step']:.2f}x, per epoch with its measurement "
          f"{figures['ratio_epoch_with_measurement']:.1f}x")  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
