"""How long `ncollapse.measure` takes, beside the ways it replaces, all in one run.

    python benchmarks/measure.py                      ratios on this machine's CPU, and peak memory
    python benchmarks/measure.py --device cuda --large    N = 1.28M, d = 2048, K = 1000 in bfloat16
    python benchmarks/measure.py --calls [--device cuda]  milliseconds a call at the sizes of a training loop

`measure` computes every default field (all but the numerical rank). The others:
(a) the papers' way: class sums sample by sample, one outer product a sample added to a d x d matrix, then a d x d
    pseudo-inverse, NC1 only; timed on a part of the samples and scaled up, since it is linear in them;
(b) the accumulator way: float32, class means in one pass, the d x d covariance in a second, a d x d pseudo-inverse,
    NC1 to NC4 only;
(c) compactness alone by all pairs of samples of a class.
Best of several repetitions; the ways take turns, so that a busy moment hits them alike. `--calls` has no other way
beside it: it is for comparing versions of `measure` and `collect` with each other, in seconds of the processor on a CPU
and of the clock on a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

import ncollapse as nc
from ncollapse.metrics import collect

Data = tuple[Tensor, Tensor, Tensor, Tensor]
SIZES = ((50_000, 512, 10), (10_000, 2048, 100))
LARGE = (1_280_000, 2048, 1000)
CALLS = ((1_438, 256, 10), (50_000, 512, 10), (10_000, 512, 100))
BATCH = 1000


def make_data(samples: int, dim: int, classes: int, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Data:
    """Non-negative features around class means, and a classifier near those means."""
    g = torch.Generator(device).manual_seed(0)
    means = torch.randn(classes, dim, generator=g, device=device)
    labels = torch.arange(samples, device=device) % classes
    features = torch.empty(samples, dim, device=device, dtype=dtype)
    for start in range(0, samples, 1 << 16):
        part = labels[start : start + (1 << 16)]
        noise = torch.randn(len(part), dim, generator=g, device=device)
        features[start : start + (1 << 16)] = (means[part] + 0.5 * noise).relu().to(dtype)
    weight = means + 0.1 * torch.randn(classes, dim, generator=g, device=device)
    return features, labels, weight, torch.randn(classes, generator=g, device=device)


def outer_products(data: Data, share: int = 50) -> float:
    """(a) for one in `share` samples; returns the seconds for all of them."""
    features, labels, weight, _ = data
    samples, dim = features.shape
    part = range(samples // share)
    start = time.perf_counter()
    sums, counts = torch.zeros(len(weight), dim), torch.zeros(len(weight), 1)
    for i in part:
        label = labels[i].item()
        sums[label] += features[i]
        counts[label] += 1
    means = sums / counts
    within = torch.zeros(dim, dim)
    for i in part:
        residual = features[i] - means[labels[i]]
        within += residual[:, None] @ residual[None, :]
    loop = (time.perf_counter() - start) * samples / len(part)
    start = time.perf_counter()
    centred = means - features.mean(0)
    torch.trace(within / len(part) @ torch.linalg.pinv(centred.T @ centred / len(weight))) / len(weight)
    return loop + time.perf_counter() - start


def accumulate(data: Data) -> tuple[float, ...]:
    """(b) NC1 to NC4 by float32 accumulators."""
    features, labels, weight, bias = data
    samples, dim = features.shape
    classes = len(weight)
    counts = torch.bincount(labels, minlength=classes).float()[:, None]
    sums = torch.zeros(classes, dim)
    for start in range(0, samples, BATCH):
        sums.index_add_(0, labels[start : start + BATCH], features[start : start + BATCH])
    means = sums / counts
    centred = means - sums.sum(0) / samples
    within = torch.zeros(dim, dim)
    agree = 0
    for start in range(0, samples, BATCH):
        batch = features[start : start + BATCH]
        residuals = batch - means[labels[start : start + BATCH]]
        within += residuals.T @ residuals
        nearest = torch.cdist(batch, means).argmin(1)
        agree += int(((batch @ weight.T - bias).argmax(1) == nearest).sum())
    nc1 = torch.trace(within / samples @ torch.linalg.pinv(centred.T @ centred / classes)) / classes
    simplex = (torch.eye(classes) - 1 / classes) / (classes - 1) ** 0.5
    gram, cross = weight @ weight.T, weight @ centred.T
    nc2, nc3 = ((m / m.norm() - simplex).norm() for m in (gram, cross))
    return float(nc1), float(nc2), float(nc3), agree / samples


def compare_pairs(data: Data) -> float:
    """(c) compactness by all pairs."""
    features, labels, weight, _ = data
    units = torch.nn.functional.normalize(features - features.mean(0), dim=1)
    means = []
    for k in range(len(weight)):
        own = units[labels == k]
        means.append((own @ own.T).mean())
    return float((torch.stack(means).mean() + 1) / 2)


def seconds(call: Callable[[], object]) -> float:
    """One timing."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def compare(samples: int, dim: int, classes: int, repeats: int) -> dict[str, float | int]:
    """Best times of the four ways at one size, and the peak memory `measure` takes beyond its input."""
    data = make_data(samples, dim, classes)
    nc.measure(data[0][:200], data[1][:200], *data[2:])  # loads the libraries
    memory = measure_memory(data)
    best = {"measure": float("inf"), "b": float("inf")}
    for _ in range(repeats):
        best["measure"] = min(best["measure"], seconds(lambda: nc.measure(*data)))
        best["b"] = min(best["b"], seconds(lambda: accumulate(data)))
    best["a"] = outer_products(data)
    best["c"] = seconds(lambda: compare_pairs(data))
    return {"N": samples, "d": dim, "K": classes, **best, "peak_extra_mb": memory}


def measure_memory(data: Data) -> float:
    """Peak resident memory during one `measure` minus that before it, in MB (Linux; NaN elsewhere)."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # forget the peak so far
        before = read_status("VmRSS")
        nc.measure(*data)
        return (read_status("VmHWM") - before) / 1024
    except OSError:
        return float("nan")


def read_status(name: str) -> int:
    """A line of /proc/self/status, in kB."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))


def time_large(device: str, repeats: int) -> list[dict[str, float | int]]:
    """The large case at N/4, N/2 and N."""
    rows: list[dict[str, float | int]] = []
    samples, dim, classes = LARGE
    features, labels, weight, bias = make_data(samples, dim, classes, device, torch.bfloat16)
    for part in (4, 2, 1):
        cut = samples // part
        best = float("inf")
        for _ in range(repeats + 1):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
            start = time.perf_counter()
            nc.measure(features[:cut], labels[:cut], weight, bias)
            torch.cuda.synchronize()
            best = min(best, time.perf_counter() - start)
        peak = (torch.cuda.max_memory_allocated() - held) / 2**20
        rows.append({"N": cut, "d": dim, "K": classes, "measure": best, "peak_extra_mb": peak})
    return rows


def time_calls(device: str, repeats: int) -> list[dict[str, float | int]]:
    """Median milliseconds of one `measure` and of one `collect`."""
    rows: list[dict[str, float | int]] = []
    for samples, dim, classes in CALLS:
        data = make_data(samples, dim, classes, device)
        row: dict[str, float | int] = {"N": samples, "d": dim, "K": classes}
        for name, call in (("measure", nc.measure), ("collect", collect)):
            times = [_time_call(call, data, device) for _ in range(max(repeats, 3_000_000 // (samples * dim)) + 2)]
            row[name] = statistics.median(times[2:]) * 1e3
        rows.append(row)
    return rows


def _time_call(call: Callable[..., object], data: Data, device: str) -> float:
    """Both calls end by reading their results, so that a GPU is done when they return."""
    clock = time.perf_counter if device.startswith("cuda") else time.process_time
    start = clock()
    call(*data)
    return clock() - start


def main() -> None:
    """Print one table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--large", action="store_true", help="the large case (a GPU)")
    parser.add_argument("--calls", action="store_true", help="milliseconds a call")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.calls:
        rows = time_calls(args.device, args.repeats)
        print(f"{args.device}, {torch.get_num_threads()} threads, torch {torch.__version__}, float32 features")
        print(f"{'N':>7} {'d':>6} {'K':>5} {'measure ms':>11} {'collect ms':>11}")
        for row in rows:
            print(f"{row['N']:>7} {row['d']:>6} {row['K']:>5} {row['measure']:>11.2f} {row['collect']:>11.2f}")
    elif args.large:
        if not args.device.startswith("cuda"):
            parser.error("--large needs --device cuda")
        rows = time_large(args.device, args.repeats)
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16 features")
        print(f"{'N':>9} {'d':>6} {'K':>6} {'measure s':>10} {'us a sample':>12} {'peak MB':>9}")
        for row in rows:
            each = row["measure"] / row["N"] * 1e6
            print(
                f"{row['N']:>9} {row['d']:>6} {row['K']:>6} {row['measure']:>10.3f} {each:>12.3f} "
                f"{row['peak_extra_mb']:>9.0f}"
            )
    else:
        rows = [compare(*size, args.repeats) for size in SIZES]
        print(f"CPU, {torch.get_num_threads()} threads, torch {torch.__version__}, float32 features")
        print(f"{'N':>7} {'d':>6} {'K':>5} {'measure s':>10} {'/ (a)':>8} {'/ (b)':>7} {'/ (c)':>7} {'peak MB':>9}")
        for row in rows:
            a, b, c = (row["measure"] / row[name] for name in "abc")
            size = f"{row['N']:>7} {row['d']:>6} {row['K']:>5}"
            print(f"{size} {row['measure']:>10.3f} {a:>8.4f} {b:>7.3f} {c:>7.3f} {row['peak_extra_mb']:>9.0f}")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
