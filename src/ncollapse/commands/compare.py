"""`ncollapse compare`: which loss to train with, and why."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ncollapse.commands.ahead import drawing_ahead
from ncollapse.commands.options import parse_args, parse_index
from ncollapse.console import console, print_json
from ncollapse.output import writing_to
from ncollapse.processes import importing
from ncollapse.sweep.spawn import early_workers

if TYPE_CHECKING:
    from ncollapse.compare import Comparison
    from ncollapse.compare.tuning import Choice
    from ncollapse.sweep.preview import Preview
    from ncollapse.train import Recipe


@dataclass(frozen=True)
class Args:
    """Train the same network under several losses and seeds, compare them and write a page.

    Finished runs are never repeated: the same command continues where it stopped.
    """

    data: str = "digits"
    """The data set, such as digits, mnist, cifar10, folder:PATH or npz:PATH."""
    losses: tuple[str, ...] = ("ce", "bce")
    """The losses, of ce bce focal ls mse; each is compared with the first of them in this order."""
    optimisers: tuple[str, ...] = ()
    """The optimisers, of sgd adam adamw lbfgs; the recipe's own by default."""
    seeds: int = 3
    """How many seeds each; two or more give intervals."""
    out: Path = Path("comparison")
    """The folder of the runs and the page."""
    recipe: str | None = None
    """The settings all runs share: a recipe's name or a TOML or JSON file. By default digits for digits, gaussian and
    npz:PATH, bce-vs-ce/setting-2 for other data."""
    model: str | None = None
    """The network: one of ours, timm:NAME, torchvision:NAME, or package.module:FACTORY for your own."""
    epochs: int | None = None
    """Train for this many epochs; the schedule is stretched or shortened with them."""
    batch_size: int | None = None
    """Samples a step."""
    lr: float | None = None
    """The learning rate before any schedule, for every loss; --tune chooses one for each."""
    weight_decay: float | None = None
    """Decay of every parameter."""
    augment: tuple[str, ...] = ()
    """The augmentation: none, standard (crop=4 flip), strong (mixup and CutMix too), or fields such as crop=4 flip
    rotation=15."""
    tune: tuple[str, ...] = ()
    """First choose values for each loss on a validation share, one seed: lr=0.01,0.03,0.1 or weight-decay=0,5e-4."""
    image_size: int | None = None
    """Scale images to this size; needed for image folders."""
    channels: int | None = None
    """Repeat the channel of grey images this many times."""
    normalise: str | None = None
    """How pixels are normalised: auto, none, recipe, imagenet, or MEAN,.../STD,... by channel."""
    measure_every: int | None = None
    """Measure every so many epochs; the last epoch is always measured."""
    precision: Literal["fp32", "tf32", "bf16"] | None = None
    """Train in this precision instead of the recipe's own."""
    data_root: Path | None = None
    """The folder of the data sets; NCOLLAPSE_DATA by default."""
    engine: Literal["local", "packed", "ray"] = "local"
    """Processes, threads that share one GPU, or a Ray cluster."""
    jobs: int | None = None
    """How many runs at a time."""
    index: str | None = None
    """The i-th of n shares of the runs, as i/n, for job arrays."""
    time_limit: float | None = None
    """Seconds after which every run stops at the end of its epoch, to be resumed by the same command."""
    device: str | None = None
    """cpu, cuda, or one device such as cuda:1."""
    deterministic: bool = False
    """The same bits every time, at some cost."""
    retry: bool = False
    """Run failed runs again."""
    dry_run: bool = False
    """Say which runs there are, what they train and what they cost, and stop."""
    json: bool = False
    """Print one JSON object instead of tables."""


CHANGES = (
    *("model", "epochs", "batch_size", "lr", "weight_decay", "image_size", "channels", "normalise"),
    *("measure_every", "precision"),
)
SWEEP = ("data_root", "engine", "jobs", "device", "deterministic", "retry", "time_limit")


def main(argv: list[str]) -> int:
    """Parse, run, print; 0 if every run finished, else 1."""
    args = parse_args(Args, argv, "compare")
    with early_workers(count_early(args)):
        return carry_out(args)


def count_early(args: Args) -> int:
    """How many workers to start before anything is imported here: those of a new comparison."""
    if args.out.exists() or args.index is not None or args.dry_run or args.engine != "local":
        return 0
    runs = len(args.losses) * max(1, len(args.optimisers)) * max(1, args.seeds)
    return min(args.jobs or os.cpu_count() or 1, runs)


def carry_out(args: Args) -> int:
    """Plan, run and show a comparison."""
    with importing():
        from ncollapse.compare.plan import compare, plan
        from ncollapse.compare.tuning import apply_earlier, check_tuning, parse_grid, tune
        from ncollapse.sweep.preview import preview
        from ncollapse.sweep.progress import follow
        from ncollapse.sweep.sweep import check_options

    index, grid = parse_index(args.index), parse_grid(args.tune)
    changes = {name: getattr(args, name) for name in CHANGES}
    recipes = plan(args.data, args.losses, args.optimisers, args.seeds, args.recipe, augment=args.augment, **changes)
    tuned = check_tuning(recipes, grid, index)
    check_options(args.out, args.engine, args.jobs, args.device, index, args.time_limit)
    local = args.engine != "ray"  # whose nodes may have a GPU where this one has none
    expected = apply_earlier(recipes, grid, args.out)
    shown = preview(expected, args.out, tuning=tuned, timed=local, data_root=args.data_root, device=args.device)
    if args.dry_run:
        return show_plan(expected, shown, args)
    print("\n".join(shown.lines()), file=sys.stderr, flush=True)
    options = {name: getattr(args, name) for name in SWEEP}
    choices: list[Choice] = []
    if grid:
        with follow(tuned, "tuning", quiet=args.json) as show:
            recipes, choices = tune(recipes, grid, args.out, progress=show, **options)
        print("\n".join(f"tuned {choice.describe()}" for choice in choices), file=sys.stderr, flush=True)
    drawn = recipes if args.engine == "local" else []  # drawing in this process would disturb runs that train in it
    with drawing_ahead(drawn, args.out) as draw, follow(recipes, "comparing", quiet=args.json) as show:

        def progress(event: dict[str, Any]) -> None:
            show(event)
            draw(event)

        comparison = compare(recipes, args.out, index=index, progress=progress, **options)
    return show_results(comparison, choices, args)


def show_results(comparison: Comparison, choices: Sequence[Choice], args: Args) -> int:
    """Print the tables, write the page and print where it is."""
    from ncollapse.compare import to_dict
    from ncollapse.compare.classes import tabulate_classes
    from ncollapse.report import write_report
    from ncollapse.report.class_table import print_class_table
    from ncollapse.report.terminal import print_comparison

    unfinished = [record for record in comparison.records if record.status != "finished"]
    tables = tabulate_classes(comparison.findings)
    page, fault = None, None
    try:  # first: whatever may be wrong with the terminal, the page is there
        with writing_to(f"--out {args.out}"):
            page = write_report(args.out, comparison=comparison)
    except (OSError, ValueError) as error:
        fault = error
    if not args.json:
        output = console()
        print_comparison(output, comparison)
        for table in tables:
            print_class_table(output, table)
    if fault is not None:
        raise fault
    if args.json:
        runs = [{"run_id": r.run_id, "status": r.status, "reason": (r.summary or {}).get("reason")} for r in unfinished]
        found = {"verdict": comparison.verdict, "variants": to_dict(comparison.findings)}
        found["classes"] = [table.to_dict() for table in tables]
        print_json({**found, "tuning": list(choices), "unfinished": runs, "report": str(page)})
    else:
        print(page)
    return 1 if unfinished else 0


def show_plan(recipes: Sequence[Recipe], shown: Preview, args: Args) -> int:
    """Print what would be run, and nothing else."""
    from ncollapse.sweep.progress import describe_recipe
    from ncollapse.sweep.sweep import run_status, take_share

    chosen = take_share(recipes, parse_index(args.index))
    rows = [{"run": r.run_id, "what": describe_recipe(r), "state": run_status(args.out / r.run_id)} for r in chosen]
    if args.json:
        print_json({"preview": shown, "runs": rows})
        return 0
    print("\n".join(shown.lines()))
    for row in rows:
        print("  ".join(row.values()))
    return 0
