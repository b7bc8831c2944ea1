"""Keep the small records of finished runs: python scripts/collect_results.py RUNS... [--into results/runs]

Each of RUNS is a folder of runs, or an archive written by `ncollapse reproduce --records FILE.tar.gz`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ncollapse.papers.archive import collect, unpack
from ncollapse.runs.record import read_runs


def main(sources: list[str], target: str) -> None:
    """Copy or unpack the records, and say how many there are now and how large."""
    Path(target).mkdir(parents=True, exist_ok=True)
    for source in sources:
        if source.endswith((".tar.gz", ".tgz")):
            unpack(source, target)
        else:
            collect(source, target)
    sizes = [sum(file.stat().st_size for file in run.path.iterdir()) for run in read_runs(target)]
    print(
        f"{len(sizes)} records in {target}, {sum(sizes) / 1e6:.2f} MB, the largest {max(sizes, default=0) / 1e3:.0f} kB"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--into", default="results/runs")
    args = parser.parse_args()
    main(args.runs, args.into)
