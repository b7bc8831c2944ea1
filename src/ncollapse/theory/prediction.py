"""`predict`: the global minimum of the last layer's objective, as an object that answers like a measurement."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, Unpack

from ncollapse.console import clean
from ncollapse.heads import register_bias_rule
from ncollapse.losses import Loss
from ncollapse.metrics import Measurement, measure
from ncollapse.theory.arguments import ProblemArguments
from ncollapse.theory.balanced import predict_balanced
from ncollapse.theory.configuration import Configuration, configure, factor
from ncollapse.theory.imbalanced import predict_imbalanced
from ncollapse.theory.mixed import predict_mixed
from ncollapse.theory.numerical import minimise_numerically
from ncollapse.theory.optimum import NoClosedFormError, Optimum
from ncollapse.theory.problem import Problem
from ncollapse.theory.published import published_optimum
from ncollapse.theory.sensitivity import differentiate
from ncollapse.theory.solver import Progress, solve

METHODS = ("auto", "closed", "numerical")
MOST_CLASSES = 100  # in fewer dimensions: more take minutes
SIZES = ("num_samples", "num_classes", "dim", "counts", "empty_classes")  # of the sample, which no theory predicts


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction(Optimum):
    """The global minimum of a problem, in the words of a measurement.

    Fields of `Measurement` that are not listed here (nc1, nc2, compactness, ...) are those of the predicted
    configuration, measured when first asked for, so that `measurement.compare(prediction)` goes field by field.

    Attributes:
        phase: `collapsed` (W = H = 0), `mean-only` (W and H of rank one, no class separated), `centred` (a simplex ETF
            whose mean is 0), `saturated` (W keeps a mean because the bias may not grow), `orthogonal-frame` (H >= 0,
            orthogonal class means), `asymmetric` (a numerical optimum that treats classes unequally).
        positive_score, negative_score: w_k . h of the own class and of the others, averaged over the samples.
        bias: the threshold b of W h - b; 0.0 without a bias, and where it is not unique.
        weight_energy, feature_energy: |W|_F^2 and the mean of |h|^2.
        objective: the minimum of f.
        lower_bound: a certified lower bound on the minimum, where it was found numerically, so that the global minimum
            lies between `lower_bound` and `objective`; NaN for closed forms, and for losses without a bound.
        gap, mean_component: a and c of the logits a (I - J/K) + c J/K - b; NaN where the optimum is not of that form.
        rank: how many dimensions the optimum needs; the prediction holds in every dimension that is no smaller.
        separates: whether the bias lies between the negative and the positive scores, in every class (bce-vs-ce
            Lemma C.9, corrected).
        unique: False where other scores are optimal too (two classes, ReLU features and a bias without decay: the
            features of one class may shrink to 0 while the two biases move apart). A common shift of the biases under a
            loss of logit differences, and rotations of W and H, do not count.
        critical_bias_decay: the bias decay above which the phase is saturated (inf: never).
        separation_mu, collapse_mu: the mu = sqrt(n weight_decay feature_decay) from which on classes are no longer
            separated, and from which on W = H = 0.
        transition: for focal loss, where and how separation ends.
        class_gaps: for class counts, the margin of each class (0: collapsed).
        collapse_count, collapse_ratio: for class counts, the count at or below which a class of this data collapses,
            and the ratio largest/smallest from which on the smallest classes do when they alone are thinned out.
        solution: the minimiser's result, for a numerical prediction.
        notes: what a reader should know besides.
    """

    @classmethod
    def of(cls, optimum: Optimum) -> Prediction:
        """The prediction with the fields of an optimum."""
        return cls(**{item.name: getattr(optimum, item.name) for item in fields(optimum)})

    @property
    def mu(self) -> float:
        """The problem's sqrt(n weight_decay feature_decay)."""
        return self.problem.mu

    @property
    def class_norms(self) -> tuple[float, ...]:
        """The norm of each class mean."""
        return self._norms[0]

    @property
    def weight_norms(self) -> tuple[float, ...]:
        """The norm of each row of W."""
        return self._norms[1]

    @property
    def collapse_weight_decay(self) -> float:
        """The weight decay from which on classes are no longer separated, all else equal (the bias decay included)."""
        root = math.sqrt(self.problem.weight_decay) * self.separation_mu / self.mu
        return root * root

    def configuration(self, dim: int | None = None) -> Configuration:
        """An optimal (features, labels, weight, bias) in `dim` dimensions (default: the problem's, or K).

        One feature a class, repeated in proportion to the class counts; non-negative for `features="relu"`. `bias` is 0
        for a problem without one.
        """
        return configure(self, dim)

    def sensitivity(self) -> dict[str, dict[str, float]]:
        """The derivative of each predicted number with respect to each decay, within the present phase.

        >>> p = predict("ce", num_classes=10, per_class=1, weight_decay=5e-3, feature_decay=5e-3)
        >>> round(p.sensitivity()["positive_score"]["weight_decay"], 3)
        -94.241
        """
        return differentiate(self)

    def printed_theorem(self) -> dict[str, Any] | None:
        """What the printed theorem would say (bce-vs-ce Theorems 3.1, 3.2), or None where it is right or silent."""
        return published_optimum(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the problem as a dict."""
        values: dict[str, Any] = {
            item.name: getattr(self, item.name) for item in fields(self) if item.name not in ("solution", "_detail")
        }
        values["problem"] = self.problem.to_dict()
        if self.transition is not None:
            values["transition"] = {item.name: getattr(self.transition, item.name) for item in fields(self.transition)}
        values |= {"mu": self.mu, "collapse_weight_decay": self.collapse_weight_decay}
        if self.class_gaps is not None or self.solution is not None:  # else equal, and as many as there are classes
            values |= {"class_norms": self.class_norms, "weight_norms": self.weight_norms}
        return values

    def to_json(self) -> str:
        """One JSON object; NaN and infinities are null."""
        return json.dumps(clean(self.to_dict()), allow_nan=False)

    @cached_property
    def measurement(self) -> Measurement:
        """The predicted configuration, measured. Fields that a collapsed optimum leaves undefined are NaN."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return measure(*self.configuration(), problem=self.problem)

    @cached_property
    def _norms(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        k = self.problem.num_classes
        equal = self.rank in (0, k - 1, k) or self.phase == "mean-only"  # a simplex of lower rank has others
        if self.problem.balanced and self.method == "closed" and equal:
            return (math.sqrt(self.feature_energy),) * k, (math.sqrt(self.weight_energy / k),) * k
        features, weight = factor(self)
        return tuple(features.norm(dim=1).tolist()), tuple(weight.norm(dim=1).tolist())

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name in Measurement.__dataclass_fields__ and name not in SIZES:
            return getattr(self.measurement, name)
        raise AttributeError(f"a Prediction has no {name!r}")


def predict(
    problem: Problem | str | Loss = "ce",
    num_classes: int | None = None,
    *,
    method: Literal["auto", "closed", "numerical"] = "auto",
    progress: Progress | None = None,
    **arguments: Unpack[ProblemArguments],
) -> Prediction:
    """Predict what the last layer converges to: the global minimum of the unconstrained feature model.

    Args:
        problem: a `Problem`; or the loss alone ("ce", "bce", "focal", "ls", "mse" or a loss object), with the other
            arguments of `Problem` by keyword.
        num_classes: K.
        method: "closed" uses the closed forms and their scalar equations, solved to rounding error; it raises a
            ValueError where none is known. "numerical" minimises with `solve`, in about ten seconds at most, and states
            the certified bracket of the minimum (`lower_bound`, `objective`). "auto" uses a closed form where one is
            known and minimises otherwise; `prediction.method` says which.
        progress: called after each start of the minimiser with the number of starts and the best value.
        arguments: the number of samples (one of per_class, batch_size, class_counts); weight_decay, feature_decay and
            bias_decay; dim, bias and features ("free" or "relu"); and the loss's own parameters, such as gamma.

    >>> decays = {"weight_decay": 5e-4, "feature_decay": 5e-4, "bias_decay": 5e-4}
    >>> p = predict("bce", num_classes=10, batch_size=128, features="relu", **decays)
    >>> p.phase, round(p.positive_score, 4), round(p.negative_score, 4), round(p.bias, 4), round(p.weight_energy, 2)
    ('saturated', 7.81, -2.0517, 3.5777, 355.67)
    """
    if method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
    given: dict[str, Any] = dict(arguments) | ({} if num_classes is None else {"num_classes": num_classes})
    if not isinstance(problem, Problem):
        problem = Problem(problem, **given)
    elif given:
        problem = problem.replace(**given)
    return Prediction.of(_find_optimum(problem, method, progress))


def predict_if_known(problem: Problem | None) -> Prediction | None:
    """The prediction where there is a problem with a closed form, else None."""
    if problem is None:
        return None
    try:
        return predict(problem, method="closed")
    except ValueError:
        return None


def _find_optimum(problem: Problem, method: str, progress: Progress | None) -> Optimum:
    if method == "numerical":
        return minimise_numerically(problem, progress=progress)
    try:
        if problem.mixing is not None:
            return predict_mixed(problem)
        return predict_balanced(problem) if problem.balanced else predict_imbalanced(problem)
    except NoClosedFormError:
        if method == "closed":
            raise
        return minimise_numerically(problem, progress=progress)


def find_initial_bias(problem: Problem) -> float:
    """The mean bias of the optimum, which is searched for where no closed form is known: with few dimensions."""
    try:
        return predict(problem, method="closed").bias
    except NoClosedFormError:
        dim, k = problem.dim, problem.num_classes
        if dim is None or dim >= k or not problem.balanced:
            raise
        if k > MOST_CLASSES:
            raise NoClosedFormError(
                f"{k} classes in {dim} dimensions: the optimal bias is known with as many dimensions as classes, and"
                f" with fewer for up to {MOST_CLASSES} classes"
            ) from None
        bias = solve(problem, restarts=16).bias  # a number of starts, no time limit: the same bias on every machine
        return 0.0 if bias is None else float(bias.mean())


register_bias_rule("theory", find_initial_bias)
