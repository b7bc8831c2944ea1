"""The tables and figures of the papers as named experiments: run what is missing, lay the numbers side by side."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

if TYPE_CHECKING:
    from ncollapse.experiments.experiment import Experiment, Point
    from ncollapse.experiments.runs import RunRecord


@dataclass(frozen=True)
class Args:
    """Reproduce tables and figures of the papers.

    Runs that are finished under OUT are skipped, so the same command continues where it stopped.
    """

    experiments: tyro.conf.Positional[tuple[str, ...]] = ()
    """Ids such as bce-vs-ce/table-6, with filters of their own on request: bce-vs-ce/table-9:loss=bce:bias_init=0."""
    list: bool = False
    """Name every experiment, what it needs and how it stands, and stop."""
    only: tuple[str, ...] = ()
    """Filters KEY=VALUE, such as model=resnet18 optimizer=adamw; commas are alternatives."""
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


def main(argv: list[str]) -> int:
    """Parse, run, print; 0 if every run asked for is finished, 1 if one failed or is still open."""
    args = tyro.cli(
        Args,
        args=argv,
        prog="ncollapse reproduce",
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    if args.list:
        return show_list(args)
    if not args.experiments:
        raise ValueError("no experiment named; give ids such as bce-vs-ce/table-6, or --list")
    from ncollapse.experiments.catalogue import find
    from ncollapse.experiments.experiment import expand, parse_only

    only = parse_only(args.only)
    changes = (args.seeds, args.epochs, args.measure_every)
    chosen = []
    for word in args.experiments:
        name, *own = word.split(":")
        chosen.append((find(name), expand(find(name), only | parse_only(own), *changes)))
    if args.dry_run:
        return show_plan(chosen, args)
    records = run_all(chosen, args)
    return show_results(chosen, records, args)


def run_all(chosen: list[tuple[Experiment, list[Point]]], args: Args) -> list[RunRecord]:
    """Run what is not finished."""
    from ncollapse.experiments.sweep import sweep

    recipes = [point.recipe for _, points in chosen for point in points]
    started = time.time()
    with Telling(recipes, quiet=args.json) as telling:
        records = sweep(
            recipes,
            args.out,
            engine=args.engine,
            jobs=args.jobs,
            device=args.device,
            data_root=args.data_root or os.environ.get("NCOLLAPSE_DATA"),
            index=parse_index(args.index),
            retry=args.retry,
            deterministic=args.deterministic,
            time_limit=args.time_limit,
            progress=telling,
        )
    if any(experiment.protocol == "two-stage" for experiment, _ in chosen):
        from ncollapse.experiments.rebalance import rebalance_all

        rebalance_all(
            records, args.data_root, args.device, None if args.time_limit is None else started + args.time_limit
        )
    return records


def show_results(chosen: list[tuple[Experiment, list[Point]]], records: list[RunRecord], args: Args) -> int:
    """Write the pages, print what came out, and say what is still open."""
    from ncollapse.console import print_json
    from ncollapse.experiments import claims, page
    from ncollapse.experiments.records import collect

    results: list[dict[str, Any]] = []
    for experiment, points in chosen:
        lines = page_lines(experiment, points, records)
        said = claims.check(experiment, points, records)
        if experiment.protocol == "landscape":
            from ncollapse.experiments import landscapes

            pages = landscapes.write_landscape(args.out, experiment)
            verdict, detail = landscapes.conclude()
        else:
            pages = page.write_page(args.out, experiment, lines, said)
            verdict, detail = page.conclude(lines, said)
        results.append(
            {"id": experiment.id, "verdict": verdict, "detail": detail, "page": str(pages[-1]), "lines": lines}
        )
        if not args.json:
            print_lines(experiment, lines)
            print(f"{experiment.id}: {verdict}" + (f" ({detail})" if detail else "") + f"; page at {pages[-1]}")
    if args.records is not None:
        kept = collect(args.out, args.records)
        if not args.json:
            print(f"{len(kept)} records in {args.records}")
    states = {record.run_id: record.status for record in records}
    if args.json:
        print_json({"experiments": results, "runs": states})
    else:
        print_states(records)
    return 0 if all(status == "finished" for status in states.values()) else 1


def page_lines(experiment: Experiment, points: list[Point], records: list[RunRecord]) -> list[Any]:
    """The numbers of an experiment; those of a two-stage protocol come from its second stage."""
    from ncollapse.experiments import verdicts

    if experiment.protocol == "two-stage":
        from ncollapse.experiments.rebalance import second_stage_lines

        return second_stage_lines(experiment, points, records)
    return verdicts.compare(experiment, points, records)


def print_lines(experiment: Experiment, lines: list[Any]) -> None:
    """The table on the console, of what was run."""
    from rich.table import Table

    from ncollapse.console import console
    from ncollapse.experiments import page

    body = page.rows(lines, unrun=False)
    if not body:
        return
    table = Table(title=f"{experiment.id}: {experiment.title}", title_justify="left")
    for name in page.HEAD:
        table.add_column(name)
    for row in body:
        table.add_row(*row)
    console().print(table)


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
    from ncollapse.experiments.catalogue import CATALOGUE, estimate_minutes, needs, tell_state

    folders = [folder for folder in (args.out, Path("results", "runs")) if folder.is_dir()]
    rows = []
    for experiment in CATALOGUE.values():
        points = experiment.grid()
        minutes = sum(estimate_minutes(point.recipe) for point in points)
        state = tell_state(points, folders, args.data_root)
        rows.append(
            {
                "id": experiment.id,
                "title": experiment.title,
                "runs": len(points),
                "data": list(needs(points)),
                "gpu_minutes": round(minutes, 1),
                "state": state,
            }
        )
    if args.json:
        print_json({"experiments": rows})
        return 0
    width = max(len(str(row["id"])) for row in rows)
    print(f"{'id':<{width}}  {'runs':>4}  {'GPU min':>8}  {'data':<14}  state; what")
    for row in rows:
        data = ",".join(row["data"]) or "none"  # type: ignore[arg-type]
        head = f"{row['id']:<{width}}  {row['runs']:>4}  {row['gpu_minutes']:>8.0f}  {data:<14}"
        print(f"{head}  {row['state']}; {row['title']}")
    print(
        "GPU minutes: one run at a time on one H200, estimated from the measured step of ResNet18 and operation counts"
    )
    return 0


def show_plan(chosen: list[tuple[Experiment, list[Point]]], args: Args) -> int:
    """The runs an experiment expands to, and how each stands."""
    from ncollapse.console import print_json
    from ncollapse.experiments.catalogue import estimate_minutes
    from ncollapse.experiments.sweep import tell_standing

    rows = [
        {
            "id": experiment.id,
            "run": point.recipe.run_id,
            **point.keys,
            "gpu_minutes": round(estimate_minutes(point.recipe), 2),
            "state": tell_standing(args.out / point.recipe.run_id),
        }
        for experiment, points in chosen
        for point in points
    ]
    if args.json:
        print_json({"runs": rows})
    else:
        for row in rows:
            print("  ".join(str(value) for value in row.values()))
        total = sum(float(str(row["gpu_minutes"])) for row in rows)
        print(f"{len(rows)} runs, about {total:.1f} GPU minutes one at a time")
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
        import sys

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
