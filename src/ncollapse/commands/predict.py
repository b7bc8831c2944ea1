"""`ncollapse predict`: what the last layer converges to, before any training."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from ncollapse import console
from ncollapse.commands.options import parse_args, spelling
from ncollapse.theory import Prediction, predict

LOSS_PARAMS = ("gamma", "alpha", "kappa", "beta", "M", "label_smoothing", "class_reduction")
MEANINGS = {
    "positive_score": "w_k . h of the own class",
    "negative_score": "w_j . h of the other classes",
    "bias": "threshold b of W h - b",
    "weight_energy": "|W|^2, called rho",
    "feature_energy": "mean |h|^2",
    "objective": "loss and decays together",
    "lower_bound": "certified: no last layer has a lower objective",
    "gap": "a of the logits a (I - J/K) + c J/K - b",
    "mean_component": "c of those logits",
}
THRESHOLDS = {
    "critical_bias_decay": "bias decay above which W keeps a mean",
    "separation_mu": "mu from which on classes are not separated",
    "collapse_mu": "mu from which on W = H = 0",
    "collapse_weight_decay": "weight decay from which on classes are not separated",
    "collapse_count": "class size at or below which a class collapses",
    "collapse_ratio": "imbalance from which on the smallest classes collapse",
}
CLASS_COLUMNS = ("class", "samples", "margin", "|h|", "|w|")


@dataclass(frozen=True)
class Args:
    """Predict the scores, bias and norms that a last layer converges to: the global minimum of its objective.

    Give the number of samples as --batch-size (of a feature decay that acts on batches), --per-class or --class-counts.
    """

    loss: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="LOSS")]
    """ce, bce, focal, ls or mse, or package.module:Class for a loss of your own."""
    weight_decay: float
    """lambda_W of lambda_W/2 |W|^2, the decay of the classifier."""
    feature_decay: float
    """lambda_H of lambda_H/2 |H|^2, summed over the samples of a batch, or with --per-class of the data set."""
    bias_decay: float = 0.0
    """lambda_b of lambda_b/2 |b|^2."""
    num_classes: int | None = None
    """K; not needed with --class-counts."""
    batch_size: float | None = None
    """Samples in a batch."""
    per_class: float | None = None
    """Samples in a class, n."""
    class_counts: tuple[float, ...] | None = None
    """Samples in each class, where they differ."""
    dim: int | None = None
    """Feature dimension d; left out: d >= K."""
    features: Literal["free", "relu"] = "free"
    """relu: features are not negative, as behind a ReLU."""
    no_bias: bool = False
    """A classifier without a bias."""
    gamma: float | None = None
    """The exponent of the focal loss (default 3)."""
    alpha: float | None = None
    """The smoothing of ls (default 0.1), or with --M the weight of the target in mse."""
    kappa: float | None = None
    """The weight of the target in mse, with --beta."""
    beta: float | None = None
    """The target of mse, with --kappa."""
    M: Annotated[float | None, tyro.conf.arg(name="M")] = None
    """The target of mse, with --alpha."""
    label_smoothing: float | None = None
    """The smoothing of the labels in ce and bce (default 0)."""
    class_reduction: Literal["sum", "mean"] | None = None
    """Whether mse is summed over the classes (default) or averaged."""
    method: Literal["auto", "closed", "numerical"] = "auto"
    """closed: a closed form or an error. numerical: minimise. auto: a closed form if one is known, else minimise."""
    sensitivity: bool = False
    """Also show the derivatives with respect to the decays."""
    json: bool = False
    """Print one JSON object instead of tables."""


def main(argv: list[str]) -> int:
    """Run the verb."""
    args = parse_args(Args, argv, "predict")
    params = {name: value for name in LOSS_PARAMS if (value := getattr(args, name)) is not None}
    if args.no_bias and args.bias_decay:
        raise ValueError("--bias-decay: expected none with --no-bias, where there is no bias to decay")
    with spelling(Args):
        prediction = follow(
            args.loss,
            num_classes=args.num_classes,
            weight_decay=args.weight_decay,
            feature_decay=args.feature_decay,
            bias_decay=args.bias_decay,
            batch_size=args.batch_size,
            per_class=args.per_class,
            class_counts=args.class_counts,
            dim=args.dim,
            features=args.features,
            bias=not args.no_bias,
            method=args.method,
            **params,
        )
    if args.json:
        console.print_json(
            {
                **prediction.to_dict(),
                "sensitivity": prediction.sensitivity(),
                "printed_theorem": prediction.printed_theorem(),
            }
        )
    else:
        show(prediction, sensitivity=args.sensitivity)
    return 0


def follow(loss: str, **arguments: Any) -> Prediction:
    """Predict, with a display of the minimiser's starts on standard error, if that is a terminal, while it runs."""
    if not sys.stderr.isatty():
        return predict(loss, **arguments)
    with console.progress() as display:
        task = display.add_task("minimising", total=None, visible=False, detail="")

        def show_start(starts: int, best: float) -> None:
            display.update(task, visible=True, completed=starts, detail=f"starts; lowest objective {best:.9g}")

        prediction = predict(loss, progress=show_start, **arguments)
        display.update(task, visible=False)
    return prediction


def show(prediction: Prediction, *, sensitivity: bool = False) -> None:
    """Print the prediction, beside what the printed theorem would say, and its thresholds."""
    problem, printed, width = prediction.problem, prediction.printed_theorem(), console.terminal_width()
    size = f"K = {problem.num_classes}, n = {number(problem.per_class)}, mu = {number(prediction.mu)}"
    heading = f"{problem.loss.name}, {size}, {problem.features} features: {prediction.phase} phase"
    lines = [console.break_lines(heading, width)]
    head = ["", "predicted"] + ([f"printed {printed['theorem'].split(' ', 1)[1]}"] if printed else []) + ["meaning"]
    rows = []
    for name, meaning in MEANINGS.items():
        value = getattr(prediction, name)
        if not math.isnan(value):
            said = [number(printed[name]) if name in printed else ""] if printed else []
            rows.append([name, number(value), *said, meaning])
    lines += ["", *console.lay_out([head, *rows], width)]
    lines += ["", f"bias separates the scores: {'yes' if prediction.separates else 'no'}"]
    if prediction.class_gaps is not None:
        lines += ["", *console.lay_out([CLASS_COLUMNS, *tabulate_classes(prediction)])]
    known = [
        [name, number(value), meaning]
        for name, meaning in THRESHOLDS.items()
        if (value := getattr(prediction, name)) is not None and not math.isnan(value)
    ]
    if known:
        lines += ["", *console.lay_out([["threshold", "value", "meaning"], *known], width)]
    if prediction.transition is not None and prediction.transition.first_order:
        reach = prediction.transition
        lines += [
            "",
            f"first-order transition: mu_lo {reach.mu_lo:.6g}, mu_c {reach.mu_c:.6g}, mu_hi {reach.mu_hi:.6g}",
        ]
    if sensitivity:
        table = prediction.sensitivity()
        decays = list(table["objective"])
        rows = [[name, *(number(row[decay]) for decay in decays)] for name, row in table.items()]
        lines += ["", *console.lay_out([["derivative by", *decays], *rows])]
    lines += ["", *(console.break_lines(note, width) for note in prediction.notes)] if prediction.notes else []
    screen = console.console()
    for line in lines:
        screen.print(line, soft_wrap=True, highlight=False, markup=False)


def tabulate_classes(prediction: Prediction) -> list[list[str]]:
    """One row a class: its size, its margin and its two norms."""
    columns: tuple[Any, ...] = (
        prediction.problem.class_counts,
        prediction.class_gaps,
        prediction.class_norms,
        prediction.weight_norms,
    )
    return [[str(index), *map(number, row)] for index, row in enumerate(zip(*columns, strict=True))]


def number(value: float) -> str:
    """At most six significant digits."""
    return "never" if value == math.inf else f"{value:.6g}"
