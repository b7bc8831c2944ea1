"""`ncollapse certify`: how far a trained last layer is from the global optimum."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ncollapse import console
from ncollapse.commands.options import parse_args, spelling
from ncollapse.metrics.files import read_arrays
from ncollapse.theory import Certificate, Problem, certify

LOSS_PARAMS = ("alpha", "M", "kappa", "beta", "label_smoothing", "class_reduction")


@dataclass(frozen=True)
class Args:
    """Bound from below what any last layer could reach, and say how far this one is above.

    FILE is a .npz or .safetensors file with the arrays features [N, d], labels [N], weight [K, d] and, where the
    classifier has one, bias [K], the threshold of z = W h - b. Give the loss and the decays of the training.
    """

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """The file of arrays."""
    weight_decay: float
    """lambda_W of lambda_W/2 |W|^2, the decay of the classifier."""
    feature_decay: float
    """lambda_H of lambda_H/2 |H|^2, summed over the samples (of a batch, with --batch-size)."""
    loss: str = "bce"
    """The loss: ce, bce, ls or mse, averaged over samples and summed over classes (but see --class-reduction)."""
    bias_decay: float = 0.0
    """lambda_b of lambda_b/2 |b|^2."""
    batch_size: float | None = None
    """The batches that the feature decay acted on; without it, on all samples at once."""
    features: Literal["free", "relu"] = "free"
    """Compare with all features, or only with non-negative ones, which is tighter."""
    alpha: float | None = None
    """The smoothing of ls (default 0.1), or with --M the weight of the target in mse."""
    M: Annotated[float | None, tyro.conf.arg(name="M")] = None
    """The target of mse, with --alpha."""
    kappa: float | None = None
    """The weight of the target in mse, with --beta."""
    beta: float | None = None
    """The target of mse, with --kappa."""
    label_smoothing: float | None = None
    """The smoothing of the labels in ce and bce (default 0)."""
    class_reduction: Literal["sum", "mean"] | None = None
    """Whether mse is summed over the classes (default) or averaged."""
    json: bool = False
    """Print one JSON object instead of the table."""


def main(argv: list[str]) -> int:
    """Run the verb."""
    args = parse_args(Args, argv, "certify")
    arrays = read_arrays(args.file)
    if "weight" not in arrays:
        raise ValueError(f"{args.file}: weight [K, d] missing; a certificate needs the classifier")
    params = {name: value for name in LOSS_PARAMS if (value := getattr(args, name)) is not None}
    classes, samples = len(arrays["weight"]), len(arrays["labels"])
    with spelling(Args):
        problem = Problem(
            args.loss,
            classes,
            weight_decay=args.weight_decay,
            feature_decay=args.feature_decay,
            bias_decay=args.bias_decay,
            batch_size=samples if args.batch_size is None else args.batch_size,
            features=args.features,
            **params,
        )
        certificate = certify(**arrays, problem=problem)
    if args.json:
        console.print_json(certificate.to_dict())
    else:
        show(certificate)
    return 0


def show(certificate: Certificate) -> None:
    """Print a certificate as a table."""
    model = "non-negative" if certificate.features == "relu" else "any"
    rows = (
        ("objective", f"{certificate.objective:.9g}", f"of this last layer, {certificate.num_samples} samples"),
        ("  mean loss", f"{certificate.data_loss:.9g}", "the rest are the decays"),
        ("lower bound", f"{certificate.lower_bound:.9g}", f"no last layer with {model} features is below"),
        ("gap", f"{certificate.gap:.3e}", f"{certificate.relative_gap:.3%} of the objective"),
        ("dual norm", f"{certificate.dual_norm:.6g}", "at a critical point: at most 1 means globally optimal"),
        (
            "scatter",
            f"{certificate.within_class_bound:.3e}",
            "implied: mean |h - class mean|^2 is at most this",
        ),
        ("nc1", f"{certificate.nc1_bound:.3e}", "implied: nc1 is at most this"),
        ("nc2", f"{certificate.nc2_bound:.3e}", "implied: nc2 is at most this"),
        ("nc3", f"{certificate.nc3_bound:.3e}", "implied: nc3 is at most this"),
        ("accuracy", f"{certificate.accuracy_bound:.4f}", "implied: at least this share is classified right"),
        (
            "  uniform",
            f"{certificate.uniform_accuracy_bound:.4f}",
            "implied, with one threshold for all classes",
        ),
    )
    screen = console.console()
    for line in console.lay_out([row for row in rows if row[1] != "nan"], console.terminal_width()):
        screen.print(line, soft_wrap=True, highlight=False)
