"""How long `ncollapse.certify` takes beside `ncollapse.measure` on the same features, in one run.

    python benchmarks/certify.py                    N = 50000, d = 512, K = 10, on this machine's CPU
    python benchmarks/certify.py --device cuda --samples 1280000 --dim 2048 --classes 1000

Best of several repetitions; the two take turns, so that a busy moment hits them alike.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

import ncollapse as nc


def take(function: Callable[[], object], device: str) -> float:
    """Seconds of one call: of processor time on a CPU, of wall-clock time with the device's queue on CUDA."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    start = clock()
    function()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    generator = torch.Generator(args.device).manual_seed(0)
    options = {"generator": generator, "device": args.device}
    features = torch.randn(args.samples, args.dim, **options).relu_()
    labels = torch.arange(args.samples, device=args.device) % args.classes
    weight = 0.05 * torch.randn(args.classes, args.dim, **options)
    bias = torch.zeros(args.classes, device=args.device)
    decays = {"weight_decay": 5e-4, "feature_decay": 5e-4, "bias_decay": 5e-4, "batch_size": 128}
    ways: dict[str, Callable[[], object]] = {"measure": lambda: nc.measure(features, labels, weight, bias)}
    for loss in ("ce", "bce", "mse"):
        for model in ("free", "relu"):
            problem = nc.Problem(loss, args.classes, features=model, **decays)
            ways[f"certify {loss} {model}"] = lambda problem=problem: nc.certify(  # type: ignore[misc]
                features, labels, weight, bias, problem
            )
    best = dict.fromkeys(ways, float("inf"))
    for repeat in range(args.repeats + 1):  # the first round warms up
        for name, function in ways.items():
            seconds = take(function, args.device)
            best[name] = min(best[name], seconds) if repeat else best[name]
    print(f"N = {args.samples}, d = {args.dim}, K = {args.classes}, {args.device}, {torch.get_num_threads()} threads")
    for name, seconds in best.items():
        print(f"{name:<18}{seconds * 1e3:>10.1f} ms{seconds / best['measure']:>8.2f} x measure")


if __name__ == "__main__":
    main()
