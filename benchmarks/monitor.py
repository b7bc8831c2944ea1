"""What `NeuralCollapse.update` costs beside a training step: ResNet18, CIFAR images, batch 128, bf16, d = 512.

    python benchmarks/monitor.py --device cuda --json monitor.json

The step runs eagerly and, on a GPU, in a CUDA graph. Chunks of steps with and without the update alternate; the
overhead is the median over pairs of chunks. A profile of updates alone counts launches, copies to the host and waits.
On a CPU the step is float32 and the update checks its input at once, which counts as waits.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import ncollapse as nc
from ncollapse.features import tap
from ncollapse.models import create

BATCH, CLASSES, SIZE = 128, 10, 32
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "Memcpy DtoH", "aten::item")
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaMemcpyAsync")


class Step:
    """One training step on a fixed batch; `features` is what entered the classifier."""

    def __init__(self, device: torch.device) -> None:
        torch.manual_seed(0)
        self.model = create("resnet18", CLASSES).to(device, memory_format=torch.channels_last)
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.x = torch.randn(BATCH, 3, SIZE, SIZE, device=device).to(memory_format=torch.channels_last)
        self.y = torch.arange(BATCH, device=device) % CLASSES
        self.features = torch.zeros(BATCH, 512, device=device)

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
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def compare(step: Step, run: Callable[[], None], chunk: int, pairs: int) -> dict[str, float]:
    """Milliseconds a step without and with the update, and the overhead."""
    device = step.x.device
    metric = nc.NeuralCollapse(CLASSES, 512).to(device)

    def time_chunk(watched: bool) -> float:
        wait(device)
        began = time.perf_counter()
        for _ in range(chunk):
            run()
            if watched:
                metric.update(step.features, step.y)
        wait(device)
        return 1e3 * (time.perf_counter() - began) / chunk

    time_chunk(True)
    times = [(time_chunk(False), time_chunk(True)) for _ in range(pairs)]
    plain, watched = (statistics.median(column) for column in zip(*times))
    overhead = statistics.median(after / before - 1 for before, after in times)
    return {"plain_ms": plain, "watched_ms": watched, "overhead": overhead}


def profile(features: Tensor, labels: Tensor, updates: int) -> dict[str, float]:
    """Launches, waits and GPU time of an update, the work on full buffers included."""
    metric = nc.NeuralCollapse(CLASSES, 512).to(features.device)
    for _ in range(updates):
        metric.update(features, labels)

    def update() -> None:
        for _ in range(updates):
            metric.update(features, labels)

    began = time.perf_counter()
    update()
    host = time.perf_counter() - began
    found, idle = trace(update, features.is_cuda), trace(lambda: None, features.is_cuda)
    result = {name: (found[name] - idle[name]) / updates for name in found}
    return {**result, "host_ms": 1e3 * host / updates}


def trace(work: Callable[[], None], cuda: bool) -> dict[str, float]:
    """What the profiler sees while something runs; on a GPU torch raises where it would wait."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if cuda:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
    with torch.profiler.profile(activities=activities) as seen:
        work()
        if cuda:
            torch.cuda.set_sync_debug_mode("default")
            torch.cuda.synchronize()
    events = seen.key_averages()
    return {
        "waits": sum(event.count for event in events if event.key.startswith(WAITS)),
        "launches": sum(event.count for event in events if event.key.startswith(LAUNCHES)),
        "gpu_ms": sum(event.self_device_time_total for event in events) / 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--chunk", type=int, help="steps between two looks at the clock")
    parser.add_argument("--pairs", type=int, default=9, help="chunks of each kind")
    args = parser.parse_args()
    device = torch.device(args.device)
    cuda = device.type == "cuda"
    chunk = args.chunk or (128 if cuda else 1)
    step = Step(device)
    for _ in range(5 if cuda else 1):
        step()
    result: dict[str, dict[str, float]] = {"eager": compare(step, step, chunk, args.pairs)}
    if cuda:
        result["graph"] = compare(step, capture(step), chunk, args.pairs)
    result["update"] = profile(step.features.detach(), step.y, 256)

    print(f"NeuralCollapse.update beside a ResNet18 step (batch {BATCH}) on {device_name(device)}")
    print("step     plain ms   watched ms   overhead")
    for name in ("eager", "graph"):
        if name in result:
            row = result[name]
            print(f"{name:<8} {row['plain_ms']:8.3f} {row['watched_ms']:12.3f} {100 * row['overhead']:9.2f} %")
    row = result["update"]
    print(
        f"an update: {row['launches']:.2f} launches, {row['waits']:.3f} waits or copies to the host, "
        f"{1e3 * row['gpu_ms']:.1f} us on the GPU, {1e3 * row['host_ms']:.1f} us on the host"
    )
    if args.json:
        about = {"device": device_name(device), "torch": torch.__version__, "batch": BATCH, "pairs": args.pairs}
        args.json.write_text(json.dumps({**about, "chunk": chunk, **result}, indent=1) + "\n")


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"


if __name__ == "__main__":
    main()
