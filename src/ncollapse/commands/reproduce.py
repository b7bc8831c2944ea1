"""The tables and figures of the papers as named experiments: run what is missing, print the numbers side by side."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from ncollapse.commands.options import parse_args, parse_index
from ncollapse.console import break_lines, print_json, terminal_width
from ncollapse.output import refuse_file

if TYPE_CHECKING:
    from ncollapse.papers.outcome import Outcome
    from ncollapse.papers.selection import Selection
    from ncollapse.runs.record import RunRecord


@dataclass(frozen=True)
class Args:
    """Reproduce tables and figures of the papers.

    Runs that are finished under OUT are skipped, so the same command continues where it stopped.
    """

    experiments: tyro.conf.Positional[tuple[str, ...]] = ()
    """Ids such as bce-vs-ce/table-6. An id may have filters of its own, which replace those of --only for their keys
    (bce-vs-ce/table-9:loss=bce:bias_init=0,10), and epochs of its own, which replace those of --epochs
    (bce-vs-ce/table-11@40:loss=ce); @40/5 measures every 5 epochs, @/5 in runs of full length."""
    list: bool = False
    """List every experiment (or those given, or those of the papers given) with what it needs and its state; with
    --only its runs that fit."""
    only: tuple[str, ...] = ()
    """Filters KEY=VALUE, such as model=resnet18 optimizer=adamw; all must hold, commas are alternatives."""
    out: Path = Path("runs")
    """The folder of the runs."""
    data_root: Path | None = None
    """The folder of the data sets; NCOLLAPSE_DATA by default."""
    engine: Literal["local", "packed", "ray"] = "local"
    """Processes, threads that share one GPU, or a Ray cluster."""
    jobs: int | None = None
    """How many runs at a time."""
    index: str | None = None
    """The i-th of n shares of the runs, as i/n, for job arrays."""
    seeds: int | None = None
    """Repeat every run with seeds 0 to SEEDS - 1."""
    epochs: int | None = None
    """Train this long instead; recorded, and stated on the page."""
    measure_every: int | None = None
    """Measure every so many epochs instead; the first and the last epoch always are."""
    precision: Literal["fp32", "tf32", "bf16"] | None = None
    """Train in this precision instead of the recipes' own."""
    time_limit: float | None = None
    """Seconds after which every run stops at the end of its epoch, to be resumed by the same command."""
    records: Path | None = None
    """Write small records (no weights) of the finished runs to this folder or .tar.gz file."""
    retry: bool = False
    """Run failed runs again."""
    device: str | None = None
    """cpu, cuda, or one device such as cuda:1."""
    deterministic: bool = False
    """The same bits every time, at some cost."""
    dry_run: bool = False
    """List the runs and their state, and stop."""
    json: bool = False
    """Print one JSON object instead of text."""


def main(argv: list[str]) -> int:
    """Parse, run, print; 0 if every run asked for is finished, 1 if one failed or is not finished."""
    args = parse_args(Args, join_repeated(argv, "--only"), "reproduce")
    if args.list:
        return print_list(args)
    if not args.experiments:
        raise ValueError("experiment: expected ids such as bce-vs-ce/table-6, or --list, got none")
    from ncollapse.papers.archive import collect
    from ncollapse.papers.catalogue import require_data
    from ncollapse.papers.reproduce import run_selections
    from ncollapse.papers.selection import merge_selections, recipes_to_run
    from ncollapse.sweep.progress import SweepProgress

    refuse_file(args.out, args.out)
    index, selections = parse_index(args.index), parse_selections(args)
    if args.dry_run:
        return print_plan(selections, index, args)
    if args.engine != "ray":  # whose nodes may have data that this one has not
        require_data(recipes_to_run(selections, args.out, index, retry=args.retry), args.data_root)
    recipes = [point.recipe for selection in selections for point in selection.points]
    records, faults = run_selections(
        selections,
        args.out,
        data_root=args.data_root or os.environ.get("NCOLLAPSE_DATA"),
        device=args.device,
        time_limit=args.time_limit,
        engine=args.engine,
        jobs=args.jobs,
        index=index,
        retry=args.retry,
        deterministic=args.deterministic,
        progress=None if args.json else SweepProgress(recipes),
    )
    for fault in faults:
        print(fault, file=sys.stderr)
    if args.records is not None:  # before the pages: if one cannot be written, what was run is kept
        kept = collect(args.out, args.records)
        if not args.json:
            print(f"{len(kept)} records in {args.records}")
    return print_results(merge_selections(selections), records, args)


def parse_selections(args: Args) -> list[Selection]:
    """The runs that the ids and filters of the command line ask for."""
    from ncollapse.papers.selection import select_runs, use_finished
    from ncollapse.sweep.sweep import find_finished

    options: dict[str, Any] = {"only": args.only, "seeds": args.seeds, "epochs": args.epochs}
    options |= {"measure_every": args.measure_every, "precision": args.precision}
    selections = [select_runs(word, **options) for word in args.experiments]
    if all(selection.measured for selection in selections):
        return selections
    finished = find_finished(args.out)
    return [selection if selection.measured else use_finished(selection, finished) for selection in selections]


def join_repeated(argv: list[str], flag: str) -> list[str]:
    """The words with the values of every later `flag` moved to its first place, so that all of them count.

    >>> join_repeated(["a", "--only", "x=1", "--json", "--only=y=2", "--only", "z=3", "w=4"], "--only")
    ['a', '--only', 'x=1', 'y=2', 'z=3', 'w=4', '--json']
    """
    rest: list[str] = []
    values: list[str] = []
    place: int | None = None
    taking = False
    for word in argv:
        if word == flag or word.startswith(f"{flag}="):
            place = len(rest) if place is None else place
            values += [word.removeprefix(f"{flag}=")] if word != flag else []
            taking = word == flag
        else:
            taking = taking and not word.startswith("-")
            (values if taking else rest).append(word)
    return rest if place is None else [*rest[:place], flag, *values, *rest[place:]]


def print_results(selections: list[Selection], records: list[RunRecord], args: Args) -> int:
    """Write the pages, print what came out, and say which runs are not finished."""
    from ncollapse.papers.reproduce import evaluate_selection
    from ncollapse.report.reproduction import write_outcome

    results: list[dict[str, Any]] = []
    for selection in selections:
        outcome = evaluate_selection(selection, args.out)
        page = write_outcome(args.out, outcome)
        results.append(
            {
                "id": outcome.experiment.id,
                "verdict": outcome.verdict,
                "detail": outcome.detail,
                "page": str(page),
                "claims": outcome.claims,
                "beyond": outcome.beyond,
                "lines": outcome.lines,
            }
        )
        if not args.json:
            print_outcome(outcome)
            print(f"page: {page}")
    states = {record.run_id: record.status for record in records}
    if args.json:
        print_json({"experiments": results, "runs": states})
    else:
        print_states(records)
    return 0 if all(status == "finished" for status in states.values()) else 1


def print_outcome(outcome: Outcome) -> None:
    """The numbers of what was run, the claims and the verdict, as wide as the terminal."""
    from ncollapse.papers.markdown import describe_claim, to_text

    width = terminal_width()
    print("\n" + break_lines(f"{outcome.experiment.id}: {outcome.experiment.title}", width))
    for line in to_text(outcome.lines, width):
        print(line)
    for claim in outcome.claims:
        print(break_lines(f"- {describe_claim(outcome, claim)}", width))
    for claim in outcome.beyond:
        print(break_lines(f"- ours, beyond the paper: {describe_claim(outcome, claim)}", width))
    detail = f" ({outcome.detail})" if outcome.detail else ""
    print(break_lines(f"{outcome.experiment.id}: {outcome.verdict}{detail}", width))


def print_states(records: list[RunRecord]) -> None:
    """How many runs are finished, and why the others are not."""
    count: dict[str, int] = {}
    for record in records:
        count[record.status] = count.get(record.status, 0) + 1
    print("runs: " + ", ".join(f"{n} {status}" for status, n in sorted(count.items())) if count else "runs: none")
    for record in records:
        if record.status == "failed":
            reason = (record.summary or {}).get("reason") or "unknown"
            print(f"{record.run_id} failed: {reason} (--retry runs it again)")


def print_list(args: Args) -> int:
    """Every id with its runs, its data, its estimated GPU minutes and its state; with --only of the runs that fit."""
    from ncollapse.papers.archive import find_records
    from ncollapse.papers.catalogue import CATALOGUE, get_experiment, list_entries, list_ids
    from ncollapse.papers.cost import PACKED, PACKED_PERCEPTRONS
    from ncollapse.papers.experiment import parse_only

    words = [word.partition(":")[0].partition("@")[0] for word in args.experiments]
    names = dict.fromkeys(name for word in words for name in list_ids(word) or [word])
    only = parse_only(args.only)
    rows = list_entries(map(get_experiment, names or CATALOGUE), find_records(args.out), args.data_root, only)
    if not rows:
        raise ValueError(f"only: expected filters that a listed run fits, got {' '.join(args.only)}")
    if args.json:
        print_json({"experiments": rows})
        return 0
    id_width = max(len(row["id"]) for row in rows)
    data = [",".join(row["data"]) or "none" for row in rows]
    data_width = max(map(len, data))
    lines = [f"{'id':<{id_width}} runs   min  {'data':<{data_width}} state"]
    lines += [
        f"{row['id']:<{id_width}} {row['runs']:>4} {row['gpu_minutes']:>5.0f}  {name:<{data_width}} {row['state']}"
        for row, name in zip(rows, data)
    ]
    titles = ["what", *(row["title"] for row in rows)]
    widest = max(map(len, lines))
    wide = not sys.stdout.isatty() or terminal_width() >= widest + 2 + max(map(len, titles))
    for line, title in zip(lines, titles):
        print(f"{line:<{widest}}  {title}" if wide else line)
    note = (
        "min: minutes on one H200, one run at a time, estimated from measured steps"
        f"; three runs at a time (--engine packed) take {PACKED:g} of it, and four perceptrons"
        f" {PACKED_PERCEPTRONS:g}. short: trained for fewer epochs"
        " than asked for. The state is that of the runs under OUT and of the records kept in results/runs."
    )
    print(break_lines(note, terminal_width()))
    return 0


def print_plan(selections: list[Selection], index: tuple[int, int] | None, args: Args) -> int:
    """The runs that the experiments expand to, each once, with its state."""
    from ncollapse.grammar import count
    from ncollapse.papers.selection import plan_rows

    rows = plan_rows(selections, args.out, index)
    if args.json:
        print_json({"runs": rows})
        return 0
    for row in rows:
        keys = [f"{k}={v}" for k, v in row.items() if k not in ("id", "run", "state", "gpu_minutes")]
        print("  ".join([str(row["run"]), *keys, str(row["state"])]))
    ready = sum(row["state"] == "finished" for row in rows)
    failed = 0 if args.retry else sum(row["state"] == "failed" for row in rows)
    skipped = ("finished",) if args.retry else ("finished", "failed")
    total = sum(float(row["gpu_minutes"]) for row in rows if row["state"] not in skipped)
    said = f"{ready} finished" + (f", {failed} failed (--retry runs them again)" if failed else "")
    print(f"{count(len(rows), 'run')}, {said}; about {total:.1f} GPU minutes to go, one at a time")
    return 0
