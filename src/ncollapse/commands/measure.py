"""`ncollapse measure`: every number of the papers from a file of arrays, or from a checkpoint."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from ncollapse import console
from ncollapse.commands.options import parse_args
from ncollapse.metrics import FIELDS, GROUPS, Measurement, Spread, measure
from ncollapse.metrics.files import read_arrays

if TYPE_CHECKING:
    from ncollapse.checkpoints import Checkpoint
    from ncollapse.data.normalisation import Normalisation


@dataclass(frozen=True)
class Args:
    """Measure how collapsed, compact and separable the features of a classifier are.

    FILE is a .npz or .safetensors file with the arrays features [N, d], labels [N] and, for the numbers that need the
    classifier, weight [K, d] and bias [K], the threshold of z = W h - b. Without FILE, a checkpoint is measured:
    --model with --weights on --data.
    """

    file: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")] = None
    """The file of arrays."""
    model: str | None = None
    """The network: package.module:factory, timm:NAME, torchvision:NAME or a name of ours such as resnet18."""
    weights: Path | None = None
    """Its weights: safetensors, a torch state dict (nothing in it is executed), or the index of their shards."""
    data: str | None = None
    """The data set to measure on: cifar10, digits, folder:PATH and so on (see ncollapse data list)."""
    root: Annotated[Path | None, tyro.conf.arg(aliases=["--data-root"])] = None
    """The folder of the data sets; by default NCOLLAPSE_DATA."""
    split: Literal["train", "test"] = "train"
    """The part of the data set."""
    layer: str | None = None
    """The classifier's dotted name, where the network has several."""
    image_size: int | None = None
    """Scale images to this size; needed for image folders."""
    channels: int | None = None
    """Repeat the channel of grey images so many times."""
    normalise: str = "auto"
    """How pixels are normalised: auto, none, recipe, imagenet, model (timm's own), or MEAN,.../STD,... by channel."""
    numerical_rank: bool = False
    """Also measure the numerical rank of each class's features."""
    json: bool = False
    """Print one JSON object instead of the table."""


def main(argv: list[str]) -> int:
    """Run the verb."""
    args = parse_args(Args, argv, "measure")
    if args.file is None:
        found = measure_model(args)
        show(found.measurement, as_json=args.json, normalisation=found.normalisation)
    elif args.model or args.weights or args.data:
        raise ValueError("FILE and --model, --weights, --data exclude each other: arrays or a checkpoint, not both")
    else:
        show(measure(**read_arrays(args.file), numerical_rank=args.numerical_rank), as_json=args.json)
    return 0


def measure_model(args: Args) -> Checkpoint:
    """Measure a checkpoint; tensors of the file that the network does not have are named on standard error."""
    if args.model is None or args.weights is None or args.data is None:
        raise ValueError("nothing to measure: give FILE, or all of --model, --weights and --data")
    if args.numerical_rank:
        raise ValueError("--numerical-rank works on a FILE of arrays only")
    from ncollapse.checkpoints import measure_checkpoint, shorten

    found = measure_checkpoint(
        args.model,
        args.weights,
        args.data,
        args.root,
        args.split,
        layer=args.layer,
        image_size=args.image_size,
        channels=args.channels,
        normalise=args.normalise,
    )
    if found.unexpected:
        names = shorten(found.unexpected)
        print(f"ncollapse measure: {len(found.unexpected)} unexpected in {args.weights}: {names}", file=sys.stderr)
    return found


def show(measurement: Measurement, *, as_json: bool = False, normalisation: Normalisation | None = None) -> None:
    """Print a measurement as a grouped table or as JSON, with the normalisation of the pixels it was measured on."""
    if as_json:
        about = {} if normalisation is None else {"normalisation": normalisation.to_dict()}
        console.print_json({**measurement.to_dict(), **about})
        return
    screen = console.console()
    lines = {
        row.name: (f"  {row.name}", text, fill_in(row.at_collapse, measurement.num_classes), row.meaning)
        for row in FIELDS
        if (text := write(getattr(measurement, row.name))) is not None
    }
    header = ("", "value", "at full collapse", "meaning")
    widths = [max(len(line[column]) for line in (header, *lines.values())) for column in range(4)]
    screen.print(lay_out(header, widths), style="bold", soft_wrap=True, highlight=False)
    for group, title in GROUPS.items():
        screen.print(title, style="bold", soft_wrap=True, highlight=False)
        for row in FIELDS:
            if row.group == group and row.name in lines:
                screen.print(lay_out(lines[row.name], widths), soft_wrap=True, highlight=False, markup=False)
    missing = [row.name for row in FIELDS if row.name not in (*lines, "empty_classes")]
    if missing:
        screen.print(f"\nnot measured: {', '.join(missing)}", soft_wrap=True)
    if normalisation is not None:
        screen.print(f"\nmeasured on {normalisation.describe()}", soft_wrap=True, highlight=False)


def lay_out(cells: tuple[str, ...], widths: list[int]) -> str:
    """One line of the table; lines stay whole: a narrow terminal wraps them, a file keeps them."""
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths)).rstrip()


def fill_in(at_collapse: str, num_classes: int) -> str:
    """The value at full collapse with K put in."""
    if num_classes < 2:
        return at_collapse
    rest = num_classes - 1
    known = {"K/(2(K−1))": num_classes / (2 * rest), "−1/(K−1)": -1 / rest, "K/(K−1)": num_classes / rest, "K−1": rest}
    for formula, value in known.items():
        at_collapse = at_collapse.replace(formula, number(value))
    return at_collapse


def write(value: Any) -> str | None:
    """A value as text, or None where it was not measured."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Spread):
        if math.isnan(value.mean):
            return None
        return number(value.mean) if math.isnan(value.std) else f"{number(value.mean)} ± {number(value.std)}"
    if isinstance(value, tuple):
        shown = [f"{item:.4g}" for item in value[:3]]
        return ", ".join(shown) + (", …" if len(value) > 3 else "") if value else None
    return number(value)


def number(value: float) -> str:
    """At most six significant digits."""
    return f"{value:.6g}"
