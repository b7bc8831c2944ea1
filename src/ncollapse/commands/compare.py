"""`ncollapse compare`: which loss to train with, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ncollapse.commands.options import parse_args
from ncollapse.console import console, print_json, progress
from ncollapse.output import writing_to

if TYPE_CHECKING:
    from rich.progress import Progress

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
    """The optimisers; the recipe's own by default. sgd adam adamw lbfgs."""
    seeds: int = 3
    """How many seeds each; two or more give intervals."""
    out: Path = Path("comparison")
    """The folder of the runs and the page."""
    recipe: str | None = None
    """The settings all runs share: a recipe's name or a TOML or JSON file."""
    epochs: int | None = None
    """Train this long instead of the recipe's epochs."""
    image_size: int | None = None
    """Scale images to this size; needed for image folders."""
    channels: int | None = None
    """Repeat the channel of grey images so many times."""
    data_root: Path | None = None
    """The folder of the data sets; NCOLLAPSE_DATA by default."""
    engine: Literal["local", "packed", "ray"] = "local"
    """Processes, threads that share one GPU, or a Ray cluster."""
    jobs: int | None = None
    """How many runs at a time."""
    device: str | None = None
    """cpu, cuda, or one device such as cuda:1."""
    deterministic: bool = False
    """The same bits every time, at some cost."""
    retry: bool = False
    """Run failed runs again."""
    json: bool = False
    """Print one JSON object instead of tables."""


def main(argv: list[str]) -> int:
    """Parse, run, print; 0 if every run finished, else 1."""
    args = parse_args(Args, argv, "compare")
    from ncollapse.compare.findings import to_dict
    from ncollapse.compare.plan import compare, plan
    from ncollapse.report import write_report
    from ncollapse.report.terminal import print_findings

    form = {"image_size": args.image_size, "channels": args.channels}
    recipes = plan(args.data, args.losses, args.optimisers, args.seeds, args.recipe, args.epochs, **form)
    options = {
        name: getattr(args, name) for name in ("data_root", "engine", "jobs", "device", "deterministic", "retry")
    }
    display = progress()
    try:
        records, findings = compare(recipes, args.out, progress=follow(display, recipes), **options)
    finally:
        if display.live.is_started:
            display.stop()
    unfinished = [r for r in records if r.status != "finished"]
    page, fault = None, None
    try:  # first: whatever may be wrong with the terminal, the page is there
        with writing_to(f"--out {args.out}"):
            page = write_report(args.out)
    except (OSError, ValueError) as error:
        fault = error
    if not args.json:
        print_findings(console(), findings, unfinished)
    if fault is not None:
        raise fault
    if args.json:
        runs = [{"run_id": r.run_id, "status": r.status, "reason": (r.summary or {}).get("reason")} for r in unfinished]
        print_json({"variants": to_dict(findings), "unfinished": runs, "report": str(page)})
    else:
        print(page)
    return 1 if unfinished else 0


def follow(display: Progress, recipes: Sequence[Recipe]) -> Any:
    """A listener that turns the events of all runs into one progress bar over their epochs, shown from the first on."""
    labels = {r.run_id: f"{r.loss.name} {r.optim.name} seed {r.seed}" for r in recipes}
    epochs = {r.run_id: r.optim.epochs for r in recipes}
    done = dict.fromkeys(epochs, 0)
    ended: set[str] = set()
    task = display.add_task("comparing", total=sum(epochs.values()), detail="")

    def listen(event: dict[str, Any]) -> None:
        run = str(event.get("run_id"))
        if run not in done:
            return
        display.start()
        status = event.get("status")
        if status in ("skipped", "finished", "failed"):
            done[run] = epochs[run]
            ended.add(run)
        elif isinstance(event.get("epoch"), int):
            done[run] = max(done[run], min(int(event["epoch"]), epochs[run]))
        detail = f"{len(ended)} of {len(epochs)} runs done"
        if status in ("failed", "lost"):
            display.console.print(
                f"{labels[run]} {status}: {event.get('reason') or 'see its summary.json'}", markup=False
            )
        elif status == "skipped" and event.get("reason") == "failed":
            display.console.print(f"{labels[run]} failed before and is left out: --retry runs it again", markup=False)
        elif isinstance(event.get("nc1"), float):
            detail += f", {labels[run]}: NC1 {event['nc1']:.3g}"
        display.update(task, completed=sum(done.values()), detail=detail)

    return listen
