"""`ncollapse train RECIPE`: one network by a recipe, measured every epoch, resumable."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, is_dataclass, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar, get_type_hints

import tyro

from ncollapse import console
from ncollapse.arguments import find_value
from ncollapse.commands.field_help import field_help
from ncollapse.commands.options import parse_args
from ncollapse.train import Recipe, recipes, run
from ncollapse.train.changes import SHORT_NAMES, apply_changes
from ncollapse.train.distributed import leave

if TYPE_CHECKING:
    from ncollapse.integrations.trackers import Tracker

USAGE = "usage: ncollapse train RECIPE --out DIR [--resume] [--deterministic] [--optim.lr 0.01 ...]"
T = TypeVar("T")
CHOICES = ("loss", "data", "model")
"""`--loss.name`, `--data.name` and `--model.name` go to the recipe's builder first: they may bring companions."""


@dataclass(frozen=True)
class Args(Generic[T]):
    """Train by a recipe; every field of the recipe is an option. The run goes to DIR/<hash of the configuration>."""

    recipe: Annotated[T, tyro.conf.arg(name="")]
    out: Path
    """Folder of runs."""
    epochs: int | None = None
    """Train for this many epochs; the schedule is stretched or shortened with them."""
    augmentation: Annotated[tuple[str, ...], tyro.conf.arg(name="augment", metavar="WORD ...")] = ()
    """Replace the augmentation: none, standard (crop=4 flip), strong (mixup and CutMix too), or fields such as
    crop=4 flip rotation=15."""
    resume: bool = False
    """Continue the run where its last checkpoint is; start it if there is none."""
    deterministic: bool = False
    """Ask for deterministic algorithms: on a CPU a resumed run then ends bit for bit as one never stopped."""
    data_root: Path | None = None
    """Folder of the data sets; default: the environment variable NCOLLAPSE_DATA."""
    device: str | None = None
    """cpu, cuda or cuda:N; default: a GPU where there is one."""
    compile: bool | None = None
    """Compile the network (GPU); default: no, since our fused kernels are faster."""
    tracker: Literal["tensorboard", "mlflow"] | None = None
    """Also log every line of history to DIR/tensorboard, or to the MLflow server that MLFLOW_TRACKING_URI names."""
    dry_run: bool = False
    """Say what would be trained and what it costs, and stop."""
    json: bool = False
    """Print the summary as one JSON object."""


def main(argv: list[str]) -> int:
    """Find the recipe, let the options change it, train, print what came out."""
    if not argv or argv[0].startswith("-"):
        asked = bool(argv) and argv[0] in ("-h", "--help")
        if argv and not asked:
            raise ValueError(f"RECIPE: expected it first, as in ncollapse train digits {argv[0]} ..., got {argv[0]}")
        names = "\n  ".join(recipes.NAMES)
        tail = "ncollapse train RECIPE --help lists the options with that recipe's values."
        print(
            f"{USAGE}\n\nRECIPE: a .toml or .json file, or one of\n  {names}\n\n{tail}",
            file=None if asked else sys.stderr,
        )
        return 0 if asked else 2
    args, recipe = parse(argv)
    if args.dry_run:
        return show_preview(recipe, args)
    shown = _Progress(recipe, quiet=args.json or not sys.stderr.isatty())
    try:
        with shown, track(args.tracker, recipe, args.out) as trackers:
            summary = run(
                recipe,
                args.out,
                data_root=args.data_root,
                device=args.device,
                resume=args.resume,
                deterministic=args.deterministic,
                compile=args.compile,
                progress=shown.update,
                trackers=trackers,
            )
    except KeyboardInterrupt:
        print("ncollapse train: interrupted; the same command with --resume continues it", file=sys.stderr)
        return 130
    finally:
        leave()
    if int(os.environ.get("RANK", "0")):
        return 0  # of the processes of torchrun one speaks
    if args.json:
        console.print_json(summary)
    else:
        _print_summary(summary, args.out / recipe.run_id, trained=shown.seen)
    return 0


def parse(argv: list[str]) -> tuple[Args[Any], Recipe]:
    """Return the options, and the recipe with the changes they make, checked as a recipe file is."""
    start = _loosen(find_recipe(argv[0], argv[1:]))
    kind: Any = Args[type(start)]  # type: ignore[misc]
    args: Args[Any] = parse_args(kind, argv[1:], f"train {argv[0]}", pairs=True, default=Args(start, tyro.MISSING))
    recipe = Recipe.from_dict(asdict(args.recipe))
    return args, apply_changes(recipe, {"epochs": args.epochs}, args.augmentation)


def show_preview(recipe: Recipe, args: Args[Any]) -> int:
    """Print what a run would do, without starting it."""
    from ncollapse.sweep.preview import preview

    shown = preview([recipe], args.out, data_root=args.data_root, device=args.device)
    if args.json:
        console.print_json({"run": recipe.run_id, "preview": shown})
    else:
        print("\n".join([*shown.lines(), recipe.run_id]))
    return 0


def find_recipe(name: str, options: list[str]) -> Recipe:
    """A recipe from a file, or by its name with the loss, the data and the network that the options choose."""
    path = Path(name)
    if path.suffix in (".toml", ".json"):
        if not path.is_file():
            raise FileNotFoundError(f"RECIPE: no file {name}")
        return Recipe.from_file(path)
    wishes = {choice: find_value(options, f"--{choice}.name") for choice in CHOICES}
    wishes["model"] = find_value(options, "--model") or wishes["model"]
    return recipes.choose(name, **{choice: value for choice, value in wishes.items() if value is not None})


def _loosen(spec: Any, prefix: str = "") -> Any:
    """Return the same fields and values in dataclasses without checks, for the parser to fill field by field.

    Every field brings its help text, and the short name it has on `compare` as well.
    """
    texts, hints = field_help(type(spec)), get_type_hints(type(spec))
    values, kinds = {}, []
    for item in fields(spec):
        value = getattr(spec, item.name)
        dotted = f"{prefix}{item.name}"
        if is_dataclass(value):
            value = _loosen(value, f"{dotted}.")
            kind: Any = type(value)
        else:
            aliases = [
                f"--{short.replace('_', '-')}"
                for short, long in SHORT_NAMES.items()
                if short not in (long, "epochs") and long == dotted
            ]
            kind = Annotated[hints[item.name], tyro.conf.arg(help=texts[item.name], aliases=aliases)]
        values[item.name] = value
        kinds.append((item.name, kind))
    made = make_dataclass(type(spec).__name__, kinds, frozen=True, namespace={"__doc__": type(spec).__doc__})
    return made(**values)


@contextmanager
def track(name: str | None, recipe: Recipe, out: Path) -> Iterator[list[Tracker]]:
    """The tracker of that name for this run, closed in the end; of several processes, the first one's alone."""
    if name is None or os.environ.get("RANK", "0") != "0":
        yield []
        return
    from ncollapse.integrations.trackers import MLflowTracker, TensorBoardTracker

    if name == "tensorboard":
        tracker: Tracker = TensorBoardTracker(out / "tensorboard" / recipe.run_id)
    else:
        params: dict[str, Any] = {"run_id": recipe.run_id}
        for key, value in recipe.to_dict().items():
            params |= (
                {f"{key}.{name}": item for name, item in value.items()} if isinstance(value, dict) else {key: value}
            )
        tracker = MLflowTracker(name=recipe.name, params=params)
    with tracker:
        yield [tracker]


class _Progress:
    """A bar on a terminal, a line every tenth of the run elsewhere."""

    def __init__(self, recipe: Recipe, quiet: bool) -> None:
        self.recipe, self.quiet, self.seen = recipe, quiet, False
        self.bar = None if quiet else console.progress()

    def __enter__(self) -> _Progress:
        if self.bar is not None:
            self.bar.start()
            self.task = self.bar.add_task(self.recipe.name, total=self.recipe.optim.epochs, detail="")
        return self

    def __exit__(self, *exception: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def update(self, event: dict[str, Any]) -> None:
        self.seen = True
        done = event["epoch"] - 1 + event["step"] / event["steps"]
        rate = f"{event['rate']:.0f} steps/s"
        measured = "nc1" in event
        if measured:
            named = {"NC1": "nc1", "accuracy": "accuracy", "loss": "loss", "NC2": "nc2", "NC3": "nc3"}
            detail = "  ".join([*(f"{title} {event[name]:.3g}" for title, name in named.items()), rate])
        if self.bar is not None:
            self.bar.update(self.task, completed=done)
            if measured:
                self.bar.update(self.task, detail=detail)
        elif measured and event["epoch"] % max(1, event["epochs"] // 10) == 0:
            print(f"epoch {event['epoch']}/{event['epochs']}  {detail}", file=sys.stderr)


def _print_summary(summary: dict[str, Any], folder: Path, trained: bool) -> None:
    from rich.table import Table

    out = console.console()
    if not trained:
        out.print(f"{folder} is finished; nothing was trained", soft_wrap=True)
    prediction = summary.get("prediction") or {}
    table = Table(title=f"epoch {summary['selected_epoch']} of {summary['epochs']}")
    for heading in ("", "train", "test", "predicted"):
        table.add_column(heading, justify="left" if not heading else "right")
    rows = ("accuracy", "uniform_accuracy", "nc1", "nc2", "nc3", "positive_score", "negative_score", "bias")
    for name in (*rows, "weight_energy", "feature_energy"):
        values = [summary[split].get(name) for split in ("train", "test")]
        table.add_row(name, *(_number(value) for value in (*values, prediction.get(name))))
    out.print(table)
    certificate = summary.get("certificate")
    if certificate is not None:
        out.print(f"certified gap to the global optimum: {certificate['relative_gap']:.2%} of the objective")
    out.print(f"{folder}", soft_wrap=True)


def _number(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("mean")
    return "" if value is None or isinstance(value, (list, str)) else f"{value:.5g}"
