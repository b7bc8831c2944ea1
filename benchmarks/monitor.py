"""What `NeuralCollapse.update` costs beside a training step: ResNet18, CIFAR images, batch 128, bf16, d = 512.

    python benchmarks/monitor.py --device cuda --json monitor.json
    python benchmarks/monitor.py --memory 50000                     # the peak memory of one measurement by nc.monitor

The step runs eagerly and, on a GPU, in a CUDA graph. Chunks of steps with and without the update alternate, and which
of a pair goes first alternates too. A chunk of eager steps is one step: they are bound by the host, whose speed wanders
over seconds. A chunk of replays is as long as a buffer takes to fill, so that the GPU is never waited for in between.
The overhead is the median difference of the pairs in which the buffer was worked off and that of the others, weighted
by how many there are; the interval is the middle 95 % of 1,000 resamples of the pairs. Updates alone then run where
torch raises if anything waits for the GPU, and under the profiler, which counts launches, copies to the host and waits.
Every part prints when it is done and the file is written anew: a run cut short leaves what it has. On a CPU the step is
float32, the batch 32, and the update checks its input at once, which counts as waits.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import ncollapse as nc
from ncollapse.features import tap
from ncollapse.metrics.streaming import BUFFERED_NUMBERS
from ncollapse.models import create
from ncollapse.models.norm import fusing

CLASSES, SIZE, DIM = 10, 32, 512
BUFFERED = BUFFERED_NUMBERS // DIM
"""Samples that wait in the metric's buffer at most."""
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "Memcpy DtoH", "aten::item")
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaMemcpyAsync")


class Step:
    """One training step on a fixed batch; `features` is what entered the classifier."""

    def __init__(self, device: torch.device, batch: int) -> None:
        torch.manual_seed(0)
        self.model = create("resnet18", CLASSES).to(device, memory_format=torch.channels_last)
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.x = torch.randn(batch, 3, SIZE, SIZE, device=device).to(memory_format=torch.channels_last)
        self.y = torch.arange(batch, device=device) % CLASSES
        self.features = torch.zeros(batch, DIM, device=device)

    def __call__(self) -> None:
        narrow = torch.autocast("cuda", torch.bfloat16, enabled=self.x.is_cuda, cache_enabled=False)
        with tap(self.model.head) as taken, narrow:
            loss = nn.functional.cross_entropy(self.model(self.x), self.y)
        self.features = taken[0]
        loss.backward()
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=False)


def capture(step: Step) -> Callable[[], None]:
    """The step as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with fusing(), torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with fusing(), torch.cuda.graph(graph):
        step()
    return graph.replay


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


@dataclass(frozen=True)
class Pair:
    """Milliseconds a step: without the update, with it, and the host's time inside it."""

    plain: float
    watched: float
    inside: float
    full: bool
    """Whether the buffer was worked off."""


def compare(step: Step, run: Callable[[], None], chunk: int, seconds: float) -> dict[str, float]:
    """What the update adds to a step, over as many pairs of chunks as `seconds` allow."""
    device = step.x.device
    metric = nc.NeuralCollapse(CLASSES, DIM).to(device)
    inside, held = 0.0, 0

    def update() -> bool:
        nonlocal inside, held
        before = time.perf_counter()
        metric.update(step.features, step.y)
        inside += 1e3 * (time.perf_counter() - before) / chunk
        held = held + len(step.y) if held + len(step.y) <= BUFFERED else len(step.y)
        return held == len(step.y)

    def time_chunk(watched: bool) -> tuple[float, bool]:
        full = False
        wait(device)
        began = time.perf_counter()
        for _ in range(chunk):
            run()
            full = (watched and update()) or full
        wait(device)
        return 1e3 * (time.perf_counter() - began) / chunk, full

    for _ in range(BUFFERED // len(step.y) + 1):
        update()
    time_chunk(True)
    pairs: list[Pair] = []
    began = time.perf_counter()
    while len(pairs) < 2 or time.perf_counter() - began < seconds:
        order, inside = (False, True) if len(pairs) % 2 else (True, False), 0.0
        found = {watched: time_chunk(watched) for watched in order}
        pairs.append(Pair(found[False][0], found[True][0], inside, found[True][1]))
    plain = statistics.median(pair.plain for pair in pairs)
    added = [pair.watched - pair.plain for pair in pairs]
    draw = random.Random(0)
    resamples = [draw.choices(range(len(pairs)), k=len(pairs)) for _ in range(1000)]
    spread = statistics.quantiles([typical([added[i] for i in r], [pairs[i].full for i in r]) for r in resamples], n=40)
    full = [pair.full for pair in pairs]
    return {
        "chunk": chunk,
        "pairs": len(pairs),
        "plain_ms": plain,
        "added_ms": typical(added, full),
        "inside_ms": typical([pair.inside for pair in pairs], full),
        "overhead": typical(added, full) / plain,
        "overhead_low": spread[0] / plain,
        "overhead_high": spread[-1] / plain,
    }


def typical(values: list[float], full: list[bool]) -> float:
    """The medians of two kinds of values, weighted by how many there are of each."""
    kinds = [[value for value, f in zip(values, full) if f == kind] for kind in (True, False)]
    return sum(len(kind) * statistics.median(kind) for kind in kinds if kind) / len(values)


def profile(features: Tensor, labels: Tensor, updates: int) -> dict[str, float]:
    """Launches, waits and GPU time of an update, the work on full buffers included."""
    metric = nc.NeuralCollapse(CLASSES, DIM).to(features.device)

    def update() -> None:
        for _ in range(updates):
            metric.update(features, labels)

    update()
    wait(features.device)
    if features.is_cuda:
        torch.cuda.set_sync_debug_mode("error")
    try:
        began = time.perf_counter()
        update()
        host = time.perf_counter() - began
    finally:
        if features.is_cuda:
            torch.cuda.set_sync_debug_mode("default")
    found, idle = trace(update, features.device), trace(lambda: None, features.device)
    result = {name: (found[name] - idle[name]) / updates for name in found}
    return {**result, "host_ms": 1e3 * host / updates}


def trace(work: Callable[[], None], device: torch.device) -> dict[str, float]:
    """What the profiler sees while something runs."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    wait(device)
    with torch.profiler.profile(activities=activities) as seen:
        work()
        wait(device)
    events = seen.key_averages()
    return {
        "waits": sum(event.count for event in events if event.key.startswith(WAITS)),
        "launches": sum(event.count for event in events if event.key.startswith(LAUNCHES)),
        "gpu_ms": sum(event.self_device_time_total for event in events) / 1e3,
    }


def measure_memory(samples: int, device: torch.device) -> dict[str, float]:
    """MiB above what was there before: the features of all samples, and the peak of one measurement by `nc.monitor`.

    d = 4096, float32. On a GPU it is the memory allocated there, on a CPU the largest resident size of this process,
    which should be fresh.
    """
    model = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, CLASSES)).to(device)
    data = torch.utils.data.TensorDataset(torch.randn(samples, 64), torch.arange(samples) % CLASSES)
    loader = torch.utils.data.DataLoader(data, batch_size=512)
    nc.monitor(model, loader, samples=2 * CLASSES).observe()  # imports and buffers that do not depend on the samples
    if device.type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    else:
        before = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = nc.monitor(model, loader).observe().seconds
    after = (
        torch.cuda.max_memory_allocated()
        if device.type == "cuda"
        else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    )
    return {"features_mib": samples * 4096 / 2**18, "peak_mib": (after - before) / 2**20, "seconds": seconds}


def main() -> None:
    began = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--batch", type=int, help="128 on a GPU, 32 on a CPU")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each kind of step, and two pairs at least")
    parser.add_argument("--memory", type=int, metavar="N", help="only the memory of nc.monitor on N samples")
    args = parser.parse_args()
    if args.memory:
        row = measure_memory(args.memory, torch.device(args.device))
        print(f"features {row['features_mib']:.0f} MiB, peak {row['peak_mib']:.0f} MiB, {row['seconds']:.1f} s")
        return
    device = torch.device(args.device)
    cuda = device.type == "cuda"
    batch = args.batch or (128 if cuda else 32)
    full = BUFFERED // batch  # updates until the buffer is worked off
    about = {"device": device_name(device), "torch": torch.__version__, "batch": batch}
    result: dict[str, dict[str, float]] = {}

    def say(text: str) -> None:
        print(f"{time.perf_counter() - began:5.1f} s  {text}", flush=True)
        if args.json:
            args.json.write_text(json.dumps({**about, **result}, indent=1) + "\n")

    say(f"NeuralCollapse.update beside a ResNet18 step (batch {batch}) on {about['device']}")
    step = Step(device, batch)
    for _ in range(3 if cuda else 1):
        step()
    wait(device)
    say("warm")
    for name, chunk in (("eager", 1), ("graph", full)) if cuda else (("eager", 1),):
        row = result[name] = compare(step, step if name == "eager" else capture(step), chunk, args.seconds)
        say(
            f"{name}: {row['plain_ms']:.3f} ms a step, the update adds {row['added_ms']:.3f} ms, of which the host is "
            f"{row['inside_ms']:.3f} ms inside it: {100 * row['overhead']:.2f} % ({100 * row['overhead_low']:.2f} to "
            f"{100 * row['overhead_high']:.2f}, {row['pairs']} pairs)"
        )
    row = result["update"] = profile(step.features.detach(), step.y, 2 * full if cuda else 16)
    say(
        f"an update: {row['launches']:.2f} launches, {row['waits']:.3f} waits or copies to the host, "
        f"{1e3 * row['gpu_ms']:.1f} us on the GPU, {1e3 * row['host_ms']:.1f} us on the host"
    )


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"


if __name__ == "__main__":
    main()
