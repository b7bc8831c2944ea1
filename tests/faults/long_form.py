"""The long form: `make faults`, or `python -m faults [--only PREFIX ...] [--scale 0.1] [--first-seed N] [--jobs N]`.

Every case is a function of its seed: `python -m faults --only kill/train --first-seed 17 --cases 1` repeats one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed

import torch

from faults import api, files, kills, limits
from faults.campaign import Family, Tally, format_table, run_cases

FAMILIES: list[Family] = [*files.FAMILIES, *kills.FAMILIES, *limits.FAMILIES, *api.FAMILIES]
CHUNKS = 12


def run_chunk(index: int, first: int, stop: int) -> Tally:
    torch.set_num_threads(1)
    return run_cases(FAMILIES[index], range(first, stop))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[""], help="families whose names begin so")
    parser.add_argument("--scale", type=float, default=1.0, help="this share of the cases")
    parser.add_argument("--cases", type=int, help="so many cases of each family")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    args = parser.parse_args()
    began = shown = time.monotonic()
    tallies: dict[int, Tally] = {}
    with ProcessPoolExecutor(args.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = []
        for index, family in enumerate(FAMILIES):
            if not family.name.startswith(tuple(args.only)):
                continue
            tallies[index] = Tally(family.name)
            cases = args.cases or max(1, round(args.scale * family.cases))
            size = -(-cases // CHUNKS)
            for start in range(0, cases, size):
                bounds = (args.first_seed + start, args.first_seed + min(cases, start + size))
                waiting.append((index, pool.submit(run_chunk, index, *bounds)))
        places = {future: index for index, future in waiting}
        for done in as_completed(places):
            tallies[places[done]].add(done.result())
            if time.monotonic() - shown > 10:
                shown = time.monotonic()
                total = sum(tally.cases for tally in tallies.values())
                print(f"{total} cases, {shown - began:.0f} s", file=sys.stderr, flush=True)
    promises = {family.name: family.promise for family in FAMILIES}
    print(format_table(list(tallies.values()), promises))
    print(f"\n{time.monotonic() - began:.0f} seconds with {args.jobs} processes; first seed {args.first_seed}.")
    return 1 if any(tally.failures for tally in tallies.values()) else 0
