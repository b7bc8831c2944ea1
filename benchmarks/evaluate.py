"""Milliseconds to extract the features of 60,000 random images of 32 x 32 pixels, by network, on a GPU.

    python benchmarks/evaluate.py --models resnet18 resnet50 --json OUT

Every way runs as in a run of `ncollapse train`: in bfloat16, in batches of 2,000, captured in a CUDA graph.

    folded      batch norms folded into cuDNN's fused convolutions, as ncollapse runs it
    searched    the same, with cuDNN's search among the fused kernels (with `--search`, as it may take minutes)
    unfolded    convolutions, each followed by the fused norm kernel
    torch       torch's own kernels

`ready s` are the seconds until the first batch is done, most of which cuDNN spends on finding kernels. It keeps them by
thread, and every way is captured by a thread of its own. `error` is the relative distance of the features from those of
float32. `--kernels` adds what a batch spends its time on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from kernels import profile_step
from networks import without_our_kernels
from torch import Tensor

from ncollapse.models import Network, create, folded
from ncollapse.train import capture
from ncollapse.train.backend import own_stream, switches
from ncollapse.train.distributed import World
from ncollapse.train.evaluate import Extractor
from ncollapse.train.verify import exact_convolutions
from ncollapse.train.verify_folding import find_folding_fault, randomise_norms

IMAGES, BATCH, ROUNDS = 60_000, 2_000, 5
COMPARED = 256
WAYS = ("folded", "searched", "unfolded", "torch")


@contextmanager
def choose(way: str) -> Iterator[None]:
    """Let what is captured meanwhile run in this way."""
    before = folded.FOLDS, folded.SEARCHES
    folded.FOLDS, folded.SEARCHES = way in ("folded", "searched"), way == "searched"
    try:
        if way == "torch":
            with without_our_kernels():
                yield
        else:
            yield
    finally:
        folded.FOLDS, folded.SEARCHES = before


def wait() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def time_ways(name: str, ways: list[str], device: torch.device, kernels: bool) -> dict[str, Any]:
    """What each way takes, and how far its features are from float32."""
    torch.manual_seed(0)
    network = create(name, 10).to(device).to(memory_format=torch.channels_last)
    x = torch.randn(BATCH, 3, 32, 32, device=device, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    with torch.no_grad(), exact_convolutions():
        network = randomise_norms(network, x[:COMPARED].float())
        exact = network.features(x[:COMPARED].float())
    began = wait()
    fault = find_folding_fault(network, x[:16].float())
    found: dict[str, Any] = {"verify_s": round(wait() - began, 2), "fault": fault}
    labels = torch.zeros(BATCH, dtype=torch.int64, device=device)
    extractors: dict[str, Extractor] = {}
    for way in ways:
        with choose(way):
            found[way] = make_ready(way, network, x, exact, extractors)
    spent: dict[str, list[float]] = {way: [] for way in extractors}
    for _ in range(ROUNDS):  # in turn, so that a change of the GPU's clock meets all of them
        for way, extract in extractors.items():
            began = wait()
            extract([(x, labels)] * (IMAGES // BATCH))
            spent[way].append(wait() - began)
    for way, extract in extractors.items():
        found[way]["ms"] = round(1e3 * statistics.median(spent[way]), 2)
        if kernels:
            found[way] |= profile_step(lambda extract=extract: extract.extract(x))  # type: ignore[misc]
    return found


def make_ready(
    way: str, network: Network, x: Tensor, exact: Tensor, extractors: dict[str, Extractor]
) -> dict[str, Any]:
    """Capture one way; seconds until it is ready and error, or what failed."""
    capture._make_thread.cache_clear()  # the next capture starts a thread, for which cuDNN has found nothing yet
    extract = Extractor(network, "bf16", World(0, 1, x.device), pool=torch.cuda.graph_pool_handle())
    began = wait()
    with torch.no_grad():
        features = extract.extract(x)[:COMPARED]
    ready = wait() - began
    if way in ("folded", "searched") and not folded.FOLDS:
        return {"failed": "cuDNN has no fused kernels for these batches"}
    extractors[way] = extract
    return {"ready_s": round(ready, 2), "error": float((features - exact).norm() / exact.norm())}


def show(name: str, found: dict[str, Any]) -> None:
    print(f"{name}: comparison {found['verify_s']} s, fault: {found['fault']}")
    print(f"  {'way':10} {'ms':>8} {'ready s':>8} {'error':>9}")
    for way, figures in found.items():
        if not isinstance(figures, dict):
            continue
        if "failed" in figures:
            print(f"  {way:10} {figures['failed']}")
            continue
        print(f"  {way:10} {figures['ms']:8.1f} {figures['ready_s']:8.2f} {figures['error']:9.2e}")
        if "kernels_us" in figures:
            print(f"  {'':10} {figures['kernels_us']}, {figures['launches']:.0f} launches")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["resnet18"])
    parser.add_argument("--search", action="store_true", help="let cuDNN search among the fused kernels, too")
    parser.add_argument("--kernels", action="store_true", help="show what a batch spends its time on")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("a GPU is needed")
    device = torch.device("cuda", torch.cuda.current_device())
    ways = [way for way in WAYS if args.search or way != "searched"]
    table: dict[str, Any] = {}
    with switches(device, "bf16", False), own_stream(device):
        torch.conv2d(torch.zeros(1, 8, 8, 8, device=device), torch.zeros(8, 8, 3, 3, device=device))  # loads cuDNN
        for name in args.models:
            table[name] = time_ways(name, ways, device, args.kernels)
            show(name, table[name])
    if args.json:
        command = f"python benchmarks/evaluate.py --models {' '.join(args.models)}"
        facts = {"command": command, "gpu": torch.cuda.get_device_name(device), "torch": torch.__version__}
        cudnn = torch.backends.cudnn.version()
        figures = {**facts, "cudnn": cudnn, "images": IMAGES, "batch": BATCH, "networks": table}
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
