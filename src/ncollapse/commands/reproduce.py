"""The tables and figures of the papers as named experiments: run what is missing, lay the numbers side by side."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from ncollapse.commands.options import parse_args
from ncollapse.output import refuse_file

if TYPE_CHECKING:
    from ncollapse.papers.experiment import Experiment, Point
    from ncollapse.runs.record import RunRecord
    from ncollapse.train import Recipe


@dataclass(frozen=True)
class Args:
    """Reproduce tables and figures of the papers.

    Runs that are finished under OUT are skipped, so the same command continues where it stopped.
    """

    experiments: tyro.conf.Positional[tuple[str, ...]] = ()
    """Ids such as bce-vs-ce/table-6, with filters of their own on request, which for their keys replace those of
    --only (bce-vs-ce/table-9:loss=bce:bias_init=0,10), and with epochs of their own in place of --epochs
    (bce-vs-ce/table-11@40:loss=ce)."""
    list: bool = False
    """Name every experiment (or those given), what it needs and how it stands, and stop."""
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
    """Measure every so many epochs instead; the last epoch always is."""
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
    """Name the runs and their state, and stop."""
    json: bool = False
    """Print one JSON object instead of text."""


@dataclass(frozen=True)
class Choice:
    """An experiment, the points of it that were asked for, and those with the seeds and epochs they are run with."""

    experiment: Experiment
    asked: list[Point]
    points: list[Point]


def main(argv: list[str]) -> int:
    """Parse, run, print; 0 if every run asked for is finished, 1 if one failed or is still open."""
    args = parse_args(Args, join_repeated(argv, "--only"), "reproduce")
    if args.list:
        return show_list(args)
    if not args.experiments:
        raise ValueError("no experiment named; give ids such as bce-vs-ce/table-6, or --list")
    from ncollapse.papers.catalogue import require_data_folders
    from ncollapse.sweep.sweep import find_finished

    refuse_file(args.out, args.out)
    index = parse_index(args.index)
    chosen = [choose(word, args) for word in args.experiments]
    if args.measure_every is None:
        finished = find_finished(args.out)
        chosen = [use_finished(choice, finished) for choice in chosen]
    if args.dry_run:
        return show_plan(chosen, index, args)
    if args.engine != "ray":  # whose nodes may have the data where this one has not
        require_data_folders([p for c in chosen for p in c.points if not is_finished(args.out, p)], args.data_root)
    records = run_all(chosen, index, args)
    return show_results(join_choices(chosen), records, args)


def join_repeated(argv: list[str], flag: str) -> list[str]:
    """The words with the values of every later `flag` moved to its first place: all of them count, not the last alone.

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


def is_finished(out: Path, point: Point) -> bool:
    """Whether a run is done, so that it needs no data."""
    from ncollapse.sweep.sweep import run_status

    return run_status(out / point.recipe.run_id) == "finished"


def choose(word: str, args: Args) -> Choice:
    """What ID@EPOCHS:KEY=VALUE:... asks for: its own filters and epochs go before those of --only and --epochs."""
    from ncollapse.papers.catalogue import find
    from ncollapse.papers.experiment import expand, parse_only

    head, *own = word.split(":")
    name, sign, length = head.partition("@")
    if sign and not length.isdecimal():
        raise ValueError(f"{word}: {length!r} after @ must be a number of epochs, as in {name}@40")
    experiment, only = find(name), parse_only(args.only) | parse_only(own)
    epochs = int(length) if sign else args.epochs
    changes = {"measure_every": args.measure_every, "precision": args.precision}
    points = expand(experiment, only, args.seeds, epochs, **changes)
    if experiment.grid() and not points:
        filters = " ".join(f"{key}={','.join(values)}" for key, values in only.items())
        raise ValueError(f"--only {filters}: no run of {name} has all of these")
    return Choice(experiment, expand(experiment, only), points)


def use_finished(choice: Choice, finished: Callable[[Recipe], Recipe]) -> Choice:
    """The choice with runs that are finished but for when they were measured taken in."""
    return replace(choice, points=[replace(point, recipe=finished(point.recipe)) for point in choice.points])


def join_choices(chosen: list[Choice]) -> list[Choice]:
    """One choice for each experiment: named again with other filters or epochs, it still has one page."""
    found: dict[str, Choice] = {}
    for choice in chosen:
        known = found.setdefault(choice.experiment.id, Choice(choice.experiment, [], []))
        for to, points in ((known.asked, choice.asked), (known.points, choice.points)):
            here = {point.recipe.run_id for point in to}
            to += [point for point in points if point.recipe.run_id not in here]
    return list(found.values())


def run_all(chosen: list[Choice], index: tuple[int, int] | None, args: Args) -> list[RunRecord]:
    """Run what is not finished."""
    from ncollapse.sweep.sweep import sweep

    recipes = [point.recipe for choice in chosen for point in choice.points]
    started = time.time()
    with Telling(recipes, quiet=args.json) as telling:
        records = sweep(
            recipes,
            args.out,
            engine=args.engine,
            jobs=args.jobs,
            device=args.device,
            data_root=args.data_root or os.environ.get("NCOLLAPSE_DATA"),
            index=index,
            retry=args.retry,
            deterministic=args.deterministic,
            time_limit=args.time_limit,
            progress=telling,
        )
    two_stage = {p.recipe.run_id for c in chosen if c.experiment.protocol == "two-stage" for p in c.points}
    if two_stage:
        from ncollapse.papers.rebalance import rebalance_all

        deadline = None if args.time_limit is None else started + args.time_limit
        first_stage = [record for record in records if record.run_id in two_stage]
        for fault in rebalance_all(first_stage, args.data_root, args.device, deadline):
            print(fault, file=sys.stderr)
    return records


def show_results(chosen: list[Choice], records: list[RunRecord], args: Args) -> int:
    """Write the pages, print what came out, and say what is still open.

    A page covers all that was asked for, whichever share of it ran here: the last job of an array leaves it whole.
    """
    from ncollapse.console import print_json
    from ncollapse.papers import claims, markdown
    from ncollapse.papers.archive import collect
    from ncollapse.papers.coverage import cover
    from ncollapse.runs.record import read_run

    if args.records is not None:  # first: whatever may go wrong with a page, what was run is kept
        kept = collect(args.out, args.records)
        if not args.json:
            print(f"{len(kept)} records in {args.records}")
    from ncollapse.report.reproduction import write_experiment, write_landscape

    results: list[dict[str, Any]] = []
    for experiment, asked, points in ((c.experiment, c.asked, c.points) for c in chosen):
        folders = [args.out / point.recipe.run_id for point in points]
        found = [read_run(folder) for folder in folders if folder.is_dir()]
        lines, said = page_lines(experiment, asked, found), claims.check(experiment, asked, found)
        if experiment.protocol == "landscape":
            from ncollapse.papers import landscapes

            text = markdown.write_text(args.out, experiment, landscapes.to_markdown(experiment))
            written = write_landscape(text.with_suffix(".html"), experiment)
            verdict, detail = landscapes.conclude()
        else:
            coverage = cover(experiment.grid(), found)
            text = markdown.write_text(args.out, experiment, markdown.to_markdown(experiment, lines, said, coverage))
            written = write_experiment(text.with_suffix(".html"), experiment, lines, said, coverage, found)
            verdict, detail = markdown.conclude(lines, said, coverage, asks=experiment.asks)
        results.append(
            {
                "id": experiment.id,
                "verdict": verdict,
                "detail": detail,
                "page": str(written),
                "claims": said,
                "lines": lines,
            }
        )
        if not args.json:
            print_result(experiment, lines, said, f"{verdict}" + (f" ({detail})" if detail else ""))
            print(f"page: {written}")
    states = {record.run_id: record.status for record in records}
    if args.json:
        print_json({"experiments": results, "runs": states})
    else:
        print_states(records)
    return 0 if all(status == "finished" for status in states.values()) else 1


def page_lines(experiment: Experiment, points: list[Point], records: list[RunRecord]) -> list[Any]:
    """The numbers of an experiment; those of a two-stage protocol come from its second stage."""
    from ncollapse.papers import judge

    if experiment.protocol == "two-stage":
        from ncollapse.papers.rebalance import second_stage_lines

        return second_stage_lines(experiment, points, records)
    return judge.compare(experiment, points, records)


def print_result(experiment: Experiment, lines: list[Any], said: list[Any], verdict: str) -> None:
    """The numbers of what was run, the claims and the verdict, as wide as the terminal."""
    from ncollapse.papers import markdown

    width = shutil.get_terminal_size().columns
    print("\n" + fill(f"{experiment.id}: {experiment.title}", width))
    for line in markdown.to_text(lines, width):
        print(line)
    for claim in said:
        print(fill(f"- {markdown.mark(claim)}: {claim.text}" + (f" ({claim.detail})" if claim.detail else ""), width))
    print(fill(f"{experiment.id}: {verdict}", width))


def fill(text: str, width: int) -> str:
    """A sentence over as many lines as it takes; ids and paths stay whole."""
    return textwrap.fill(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


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


def show_list(args: Args) -> int:
    """Every id with its runs, its data, its estimated GPU minutes and its state."""
    from ncollapse.console import print_json
    from ncollapse.papers.archive import find_records
    from ncollapse.papers.catalogue import CATALOGUE, PACKED, estimate_minutes, find, needs, tell_state

    records = find_records(args.out)
    rows: list[dict[str, Any]] = []
    names = [word.partition(":")[0].partition("@")[0] for word in args.experiments]
    for experiment in map(find, names or CATALOGUE):
        points = experiment.grid()
        minutes = sum(estimate_minutes(point.recipe) for point in points)
        rows.append(
            {
                "id": experiment.id,
                "title": experiment.title,
                "runs": len(points),
                "data": needs(points),
                "gpu_minutes": round(minutes, 1),
                "state": tell_state(points, records, args.data_root),
            }
        )
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
    wide = not sys.stdout.isatty() or shutil.get_terminal_size().columns >= widest + 2 + max(map(len, titles))
    for line, title in zip(lines, titles):
        print(f"{line:<{widest}}  {title}" if wide else line)
    note = (
        "min: minutes on one H200, one run at a time, estimated from the measured step of ResNet18 and operation"
        f" counts; four small runs at a time (--engine packed) take {PACKED:g} of it. short: trained for fewer epochs"
        " than asked for."
    )
    print(fill(note, shutil.get_terminal_size().columns))
    return 0


def show_plan(chosen: list[Choice], index: tuple[int, int] | None, args: Args) -> int:
    """The runs the experiments expand to, each once, and how each stands."""
    from ncollapse.console import print_json
    from ncollapse.grammar import count
    from ncollapse.papers.catalogue import estimate_minutes
    from ncollapse.sweep.sweep import run_status, take_share

    plan: dict[str, tuple[str, Point]] = {}
    for choice in chosen:
        for point in choice.points:
            plan.setdefault(point.recipe.run_id, (choice.experiment.id, point))
    rows = [
        {
            "id": name,
            "run": run_id,
            **point.keys,
            "epochs": point.recipe.optim.epochs,
            "gpu_minutes": round(estimate_minutes(point.recipe), 2),
            "state": run_status(args.out / run_id),
        }
        for run_id, (name, point) in take_share(list(plan.items()), index)
    ]
    if args.json:
        print_json({"runs": rows})
    else:
        for row in rows:
            keys = [f"{k}={v}" for k, v in row.items() if k not in ("id", "run", "state", "gpu_minutes")]
            print("  ".join([str(row["run"]), *keys, str(row["state"])]))
        total = sum(float(str(row["gpu_minutes"])) for row in rows if row["state"] != "finished")
        ready = sum(row["state"] == "finished" for row in rows)
        print(f"{count(len(rows), 'run')}, {ready} finished; about {total:.1f} GPU minutes to go, one at a time")
    return 0


def parse_index(word: str | None) -> tuple[int, int] | None:
    """i/n as two numbers."""
    if word is None:
        return None
    try:
        share, shares = (int(part) for part in word.split("/"))
    except ValueError:
        raise ValueError(f"--index {word}: must be i/n, such as 1/4") from None
    return share, shares


class Telling:
    """Progress of a sweep on standard error: one line a run as it starts, ends, or passes a tenth of its epochs."""

    def __init__(self, recipes: Any, quiet: bool) -> None:
        self.quiet = quiet
        self.names = {recipe.run_id: describe(recipe) for recipe in recipes}
        self.last: dict[str, int] = {}
        self.started = time.time()

    def __enter__(self) -> Telling:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __call__(self, event: dict[str, Any]) -> None:
        if self.quiet:
            return
        run_id = str(event.get("run_id"))
        text = ""
        if "status" in event:
            text = str(event["status"]) + (f" ({event['reason']})" if event.get("reason") else "")
        elif "loss" in event and event.get("epoch") and event.get("epochs"):
            tenth = int(10 * event["epoch"] / event["epochs"])
            if self.last.get(run_id, -1) >= tenth:
                return
            self.last[run_id] = tenth
            values = [(name, event.get(name)) for name in ("loss", "nc1", "accuracy", "rate")]
            text = f"epoch {event['epoch']}/{event['epochs']} " + " ".join(
                f"{name} {value:.4g}" for name, value in values if isinstance(value, (int, float))
            )
        if text:
            elapsed = time.time() - self.started
            print(f"[{elapsed:7.1f} s] {run_id} {self.names.get(run_id, '')}: {text}", file=sys.stderr, flush=True)


def describe(recipe: Any) -> str:
    """A run in a few words."""
    parts = [
        recipe.data.name,
        recipe.model.name,
        recipe.loss.name,
        recipe.optim.name,
        f"batch {recipe.optim.batch_size}",
    ]
    return " ".join(parts + ([f"seed {recipe.seed}"] if recipe.seed else []))
