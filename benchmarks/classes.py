"""How the cost of `ncollapse.measure` grows with the number of classes, beside the usual way, all in one run.

    python benchmarks/classes.py                                        K = 100 to 50,000, d = 256 and 1024, on the CPU
    python benchmarks/classes.py --classes 1000 5000 --dims 256         a part of it
    python benchmarks/classes.py --noise 2                              classes that overlap (see below)
    python benchmarks/classes.py --device cuda                          K = 50,000, d = 1024, N = 1,000,000 in bfloat16

The other way is the algorithm published with the package neural-collapse (R. Wu and V. Papyan, "Linguistic collapse",
2024), written again here: float32 accumulators batch by batch (class means and variances by products with one-hot
labels, a d x d covariance), a d x d pseudo-inverse, all pairs of class means by differences in tiles, K x K matrices
for the distances to a simplex ETF, and two products for the agreement with the nearest class mean. Its consistency
checks (a hash of the means for each batch) are left out. `same` measures the same six fields, `all` every field.

The ways take turns, `--repeats` times; a ratio is the median of the rounds' ratios. Seconds are those of the processor,
because other work on the machine does not add to them. Above `--whole` classes (at K = 50,000 the other way needs 10 GB
for each K x K matrix), its tiles and batches are reduced one by one, and only one in `--share` of them is run and
scaled up. Samples that are closer to their class mean than any decision boundary need no other score, which saves time
where classes are apart, as they are here with the default `--noise 0.5` around means of variance 1. With `--noise 2` no
sample is that close. `--out FILE` adds the rows to a JSON file, replacing those of the same size and noise.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import ncollapse as nc

SAME = ("nc1", "nc1_quotient", "cdnv", "nc2_means", "nc3", "nc4")
CLASSES, DIMS, SAMPLES = (100, 1_000, 5_000, 20_000, 50_000), (256, 1024), 50_000
BATCH, TILE = 512, 64
Row = dict[str, float | int | str]


def make_data(
    samples: int, dim: int, classes: int, device: str = "cpu", dtype: torch.dtype = torch.float32, noise: float = 0.5
):
    """Features around class means, one sample of every class first, and a classifier near the means."""
    g = torch.Generator(device).manual_seed(0)
    means = torch.randn(classes, dim, generator=g, device=device)
    labels = torch.cat([torch.arange(classes), torch.randint(classes, (max(samples - classes, 0),))]).to(device)
    labels = labels[:samples]
    features = torch.empty(samples, dim, device=device, dtype=dtype)
    for start in range(0, samples, 1 << 14):
        part = labels[start : start + (1 << 14)]
        features[start : start + (1 << 14)] = means[part] + noise * torch.randn(
            len(part), dim, generator=g, device=device
        )
    weight = means.add_(0.1 * torch.randn(classes, dim, generator=g, device=device))
    return features, labels, weight.to(dtype)


class OtherWay:
    """The published algorithm; with `share` > 1 one in so many batches and tiles, scaled up."""

    def __init__(self, features: Tensor, labels: Tensor, weight: Tensor, share: int = 1) -> None:
        self.features, self.labels, self.weight, self.share = features, labels, weight.float(), share
        self.classes, self.dim = weight.shape
        self.device = features.device

    def batches(self):
        for start in range(0, len(self.labels), BATCH * self.share):
            part = slice(start, start + BATCH)
            yield self.features[part].float(), self.labels[part]

    def mark(self, labels: Tensor, counts: Tensor) -> Tensor:
        """One-hot labels [B, K], counted."""
        marks = labels[:, None] == torch.arange(self.classes, device=self.device)
        counts += marks.sum(0)
        return marks

    def run(self) -> dict[str, float]:
        """Its six numbers (of no meaning when only a part was run)."""
        counts, sums = torch.zeros(self.classes, device=self.device), torch.zeros_like(self.weight)
        for x, y in self.batches():
            sums += self.mark(y, counts).T.float() @ x
        means = sums / counts.clamp_min(1.0)[:, None]
        global_mean = means.mean(0)
        other = torch.zeros_like(counts)
        covariance, squares = torch.zeros(self.dim, self.dim, device=self.device), torch.zeros_like(counts)
        for x, y in self.batches():
            residuals = x - means[y]
            squares += (self.mark(y, other).T.float() @ residuals.square()).sum(1)
            self.mark(y, other)
            covariance += residuals.T @ residuals
        agree = 0
        norms = means.square().sum(1)
        for x, y in self.batches():
            self.mark(y, other)
            distances = x.square().sum(1)[:, None] + norms - 2 * (x @ means.T)
            agree += int((distances.argmin(1) == (x @ self.weight.T).argmax(1)).sum())
        centred = means - global_mean
        between = centred.T @ centred / self.classes
        covariance /= counts.sum()
        return {
            "nc1": float(torch.trace(torch.linalg.pinv(between) @ covariance)) / self.classes,
            "nc1_quotient": float(covariance.trace() / between.trace()),
            "cdnv": self.average_pairs(means, squares / counts.clamp_min(1.0)),
            "nc2_means": self.distance_to_simplex(centred, centred),
            "nc3": self.distance_to_simplex(self.weight, centred),
            "nc4": agree * self.share / len(self.labels),
        }

    def average_pairs(self, means: Tensor, variances: Tensor) -> float:
        """CDNV over all pairs, by differences of tiles of means."""
        whole = self.share == 1
        grid = torch.zeros(self.classes if whole else TILE, self.classes, device=self.device)
        for row in range(0, self.classes, TILE * self.share):
            left = slice(row, min(row + TILE, self.classes))
            place = left if whole else slice(0, left.stop - left.start)
            for column in range(0, self.classes, TILE):
                right = slice(column, min(column + TILE, self.classes))
                gaps = (means[left].unsqueeze(1) - means[right]).square().sum(-1)
                grid[place, right] = (variances[left][:, None] + variances[right]) / 2 / gaps
        total = sum(float(grid[row, row + 1 :].sum()) for row in range(len(grid)))
        return total / (self.classes * (self.classes - 1) / 2)

    def distance_to_simplex(self, left: Tensor, right: Tensor) -> float:
        """|G/|G| - simplex| with G = A B^T as a whole, or one in `share` of its blocks of rows."""
        size = self.classes if self.share == 1 else 1024
        found = 0.0
        for row in range(0, self.classes, size * self.share):
            gram = left[row : row + size] @ right.T
            gram /= torch.linalg.matrix_norm(gram)
            gram += 1 / self.classes / math.sqrt(self.classes - 1)
            gram.diagonal().sub_(1 / math.sqrt(self.classes - 1))
            found += float(torch.linalg.matrix_norm(gram))
        return found


def spend(call: Callable[[], object], device: str) -> tuple[float, float, float]:
    """Processor seconds (wall seconds on a GPU), wall seconds and MiB above what was held before."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held, start = torch.cuda.memory_allocated(), time.perf_counter()
        call()
        torch.cuda.synchronize()
        wall = time.perf_counter() - start
        return wall, wall, (torch.cuda.max_memory_allocated() - held) / 2**20
    reset_peak()
    before, start, wall = read_status("VmRSS"), time.process_time(), time.perf_counter()
    call()
    return time.process_time() - start, time.perf_counter() - wall, read_status("VmHWM") - before


def reset_peak() -> None:
    """Forget the peak of resident memory so far (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def read_status(name: str) -> float:
    """A line of /proc/self/status in MiB, NaN where there is none."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return math.nan
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def compare(classes: int, dim: int, samples: int, repeats: int, share: int, noise: float) -> Row:
    """The ways at one size, taking turns; the best of each and the median of the ratios."""
    data = make_data(samples, dim, classes, noise=noise)
    ways: dict[str, Callable[[], object]] = {
        "same": lambda: nc.measure(*data, fields=SAME),
        "other": lambda: OtherWay(*data, share=share).run(),
        "all": lambda: nc.measure(*data, fields="all"),
    }
    row: Row = {"K": classes, "d": dim, "N": samples, "noise": noise, "share": share, "rounds": repeats}
    rounds: list[dict[str, float]] = []
    for turn in range(repeats):
        spent: dict[str, float] = {}
        for name, way in ways.items():
            spent[name], _, memory = spend(way, "cpu")
            if turn == 0:
                row[f"{name}_mib"] = round(memory, 1)
        spent["other"] *= share
        rounds.append(spent)
    row |= {name: round(min(spent[name] for spent in rounds), 4) for name in ways}
    for name in ("same", "all"):
        row[f"{name}_ratio"] = round(statistics.median(spent[name] / spent["other"] for spent in rounds), 4)
    return row


def print_rows(rows: list[Row]) -> None:
    """One line a size, and the slopes of log time over log K between the two largest sizes of each dimension."""
    header = ("K", "d", "same s", "all s", "other s", "same / other", "all / other", "same MiB", "all MiB", "other MiB")
    print("  ".join(f"{name:>12}" for name in header))
    for row in rows:
        numbers = (row["same"], row["all"], row["other"], row["same_ratio"], row["all_ratio"])
        cells = [f"{row['K']:>12}", f"{row['d']:>12}", *(f"{number:>12.3f}" for number in numbers)]
        cells += [f"{row[f'{name}_mib']:>12.0f}" for name in ("same", "all", "other")]
        print("  ".join(cells) + ("  (scaled up)" if row["share"] > 1 else ""))
    for dim in sorted({row["d"] for row in rows}):
        sized = sorted((row for row in rows if row["d"] == dim), key=lambda row: row["K"])
        for first, last in itertools.pairwise(sized):
            slopes = {
                name: math.log(last[name] / first[name]) / math.log(last["K"] / first["K"])
                for name in ("same", "all", "other")
            }
            text = ", ".join(f"{name} {slope:.2f}" for name, slope in slopes.items())
            print(f"slope over K from {first['K']} to {last['K']} at d = {dim}: {text}")


def keep_row(path: Path, row: Row) -> None:
    """Write a row to a JSON file, in the place of an older one of the same size and noise."""
    found = json.loads(path.read_text()) if path.exists() else {"rows": []}
    names = ("d", "noise", "K", "N")
    others = [old for old in found["rows"] if any(old[name] != row[name] for name in names)]
    found["rows"] = sorted([*others, row], key=lambda old: [old[name] for name in names])
    found["about"] = f"CPU seconds, {torch.get_num_threads()} thread(s), torch {torch.__version__}, float32"
    lines = ",\n".join("  " + json.dumps(old) for old in found["rows"])
    path.write_text(f'{{"about": {json.dumps(found["about"])}, "rows": [\n{lines}\n]}}\n')


def time_gpu(classes: int, dim: int, samples: int, device: str) -> list[Row]:
    """The large case on a GPU: class-level fields, every field, and the other way at one smaller size."""
    rows: list[Row] = []
    small = make_data(20_000, 256, 1_000, device)
    nc.measure(*small, fields="all")  # loads the libraries
    data = make_data(samples, dim, classes, device, torch.bfloat16)
    for name, fields in (("class-level", None), ("class-level", None), ("same", SAME), ("all", "all")):
        seconds, _, memory = spend(lambda fields=fields: nc.measure(*data, fields=fields), device)
        rows.append({"K": classes, "d": dim, "N": samples, "way": name, "seconds": seconds, "mib": memory})
    del data
    sizes = (5_000, 256, 50_000)
    data = make_data(sizes[2], sizes[1], sizes[0], device)
    ways = {"same": lambda: nc.measure(*data, fields=SAME), "other": lambda: OtherWay(*data).run()}
    for name, way in ways.items():
        way()
        seconds, _, memory = spend(way, device)
        rows.append({"K": sizes[0], "d": sizes[1], "N": sizes[2], "way": name, "seconds": seconds, "mib": memory})
    return rows


def main() -> None:
    """Print the table and one line of JSON, which also goes to $OUT/classes.json where OUT is set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", default=list(CLASSES))
    parser.add_argument("--dims", type=int, nargs="+", default=list(DIMS))
    parser.add_argument("--samples", type=int, default=None)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--noise", type=float, default=0.5)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--share", type=int, default=16)
    parser.add_argument("--whole", type=int, default=20_000)
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message="measure: ")
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.device.startswith("cuda"):
        rows = time_gpu(max(args.classes), max(args.dims), args.samples or 1_000_000, args.device)
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16 features at the large size")
        for row in rows:
            print(f"K {row['K']} d {row['d']} N {row['N']} {row['way']}: {row['seconds']:.3f} s, {row['mib']:.0f} MiB")
    else:
        print(
            f"CPU, {torch.get_num_threads()} threads, torch {torch.__version__}, float32, N = {args.samples or SAMPLES}"
        )
        nc.measure(*make_data(1000, 64, 100), fields="all")  # loads the libraries
        samples = args.samples or SAMPLES
        rows = []
        for dim in args.dims:
            for classes in args.classes:
                share = args.share if classes > args.whole else 1
                rows.append(compare(classes, dim, samples, args.repeats, share, args.noise))
                print_rows(rows[-1:])
                if args.out:
                    keep_row(args.out, rows[-1])
        print_rows(rows)
    print(json.dumps(rows))
    if os.environ.get("OUT"):
        (Path(os.environ["OUT"]) / "classes.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
