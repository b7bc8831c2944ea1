"""`ncollapse measure`: every number of the papers from a file of arrays, or from a checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from ncollapse import console
from ncollapse.commands.options import parse_args
from ncollapse.grammar import join
from ncollapse.metrics import Measurement, measure
from ncollapse.metrics.files import read_arrays
from ncollapse.metrics.table import make_table

if TYPE_CHECKING:
    from ncollapse.checkpoints import Checkpoint
    from ncollapse.data.normalisation import Normalisation


FILE_ONLY = ("numerical_rank", "fields", "reference", "min_count", "missing_classes")
CHECKPOINT_ONLY = ("root", "split", "layer", "image_size", "channels", "normalise")


@dataclass(frozen=True)
class Args:
    """Measure how collapsed, compact and separable the features of a classifier are.

    FILE is a .npz or .safetensors file with the arrays features [N, d], labels [N] and, for the numbers that need the
    classifier, weight [K, d] and bias [K], the threshold of z = W h - b. Without FILE, a checkpoint is measured, which
    takes the options --model, --weights and --data.
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
    split: Literal["train", "test"] | None = None
    """The part of the data set; by default train, or all samples of data without a test set. Of such data, train and
    test are the parts that training makes of them."""
    layer: str | None = None
    """The classifier's dotted name, where the network has several."""
    image_size: int | None = None
    """Scale images to this size; needed for image folders."""
    channels: int | None = None
    """Repeat the channel of grey images so many times."""
    normalise: str = "auto"
    """How pixels are normalised: auto, none, recipe, imagenet, model (timm's own), or MEAN,.../STD,... by channel."""
    fields: tuple[str, ...] = ()
    """Measure these fields only, or all; by default all up to 10,000 classes."""
    missing_classes: Literal["skip", "strict"] = "skip"
    """Classes without samples: skip them, or leave the fields that compare class means undefined."""
    min_count: int = 1
    """Leave out classes with fewer samples."""
    reference: Path | None = None
    """A file with the features and labels of other samples, whose class means nc4 and nearest_mean_accuracy use."""
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
        raise ValueError("FILE: expected either a file of arrays or --model, --weights and --data, got both")
    else:
        refuse_ignored(args, CHECKPOINT_ONLY, "works on a checkpoint only, not on a FILE of arrays")
        asked = () if args.fields == ("all",) else args.fields
        show(measure_file(args.file, args), as_json=args.json, asked=asked)
    return 0


def refuse_ignored(args: Args, names: Sequence[str], reason: str) -> None:
    """Raise for an option that would be ignored here."""
    for name in names:
        if getattr(args, name) != getattr(Args, name):
            raise ValueError(f"--{name.replace('_', '-')}: {reason}")


def measure_file(file: Path, args: Args) -> Measurement:
    """Measure the arrays of a file."""
    arrays = read_arrays(file)
    other = None if args.reference is None else read_arrays(args.reference)
    return measure(
        **arrays,
        numerical_rank=args.numerical_rank,
        fields="all" if args.fields == ("all",) else args.fields or None,
        missing_classes=args.missing_classes,
        min_count=args.min_count,
        reference=None if other is None else (other["features"], other["labels"]),
    )


def measure_model(args: Args) -> Checkpoint:
    """Measure a checkpoint; tensors of the file that the network does not have are named on standard error."""
    if args.model is None or args.weights is None or args.data is None:
        missing = [f"--{name}" for name in ("model", "weights", "data") if getattr(args, name) is None]
        got = "neither" if len(missing) == 3 else f"no {join(missing)}"
        raise ValueError(f"FILE: expected a file of arrays, or all of --model, --weights and --data, got {got}")
    refuse_ignored(args, FILE_ONLY, "works on a FILE of arrays only")
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


def show(
    measurement: Measurement,
    *,
    as_json: bool = False,
    normalisation: Normalisation | None = None,
    asked: Sequence[str] = (),
) -> None:
    """Print a measurement as a grouped table or as JSON, with the normalisation of the pixels it was measured on.

    asked: the fields that were asked for, where not all were; those that could not be measured are named.
    """
    if as_json:
        about = {} if normalisation is None else {"normalisation": normalisation.to_dict()}
        console.print_json({**measurement.to_dict(), **about})
        return
    screen, width = console.console(), console.terminal_width()
    for line in make_table(measurement, asked, width):
        style = "bold" if line.heading else None
        screen.print(line.text, style=style, soft_wrap=True, highlight=False, markup=False)
    if normalisation is not None:
        about_pixels = console.break_lines(f"measured on {normalisation.describe()}", width)
        screen.print(f"\n{about_pixels}", soft_wrap=True, highlight=False)
