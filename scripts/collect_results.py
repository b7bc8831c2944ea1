"""Keep the small records of finished runs: python scripts/collect_results.py RUNS [results/runs]

RUNS is a folder of runs, or an archive written by `ncollapse reproduce --records FILE.tar.gz`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ncollapse.papers.archive import collect, unpack
from ncollapse.runs.record import read_runs


def main(source: str, target: str = "results/runs") -> None:
    """Copy or unpack the records, and say how many there are now and how large."""
    Path(target).mkdir(parents=True, exist_ok=True)
    if source.endswith((".tar.gz", ".tgz")):
        unpack(source, target)
    else:
        collect(source, target)
    sizes = [sum(file.stat().st_size for file in run.path.iterdir()) for run in read_runs(target)]
    print(
        f"{len(sizes)} records in {target}, {sum(sizes) / 1e6:.2f} MB, the largest {max(sizes, default=0) / 1e3:.0f} kB"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
