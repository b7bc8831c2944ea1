"""What a training run is: frozen dataclasses, checked when they are made, from and to TOML and JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ncollapse.data.augment import Augment
from ncollapse.data.normalisation import choose_normalisation
from ncollapse.runs.identity import run_id

if TYPE_CHECKING:
    from ncollapse.losses import Loss
    from ncollapse.theory import Problem


def check(ok: bool, key: str, value: object, expected: str) -> None:
    """Raise ValueError unless `ok`; the message names the key, what was expected and what came."""
    if not ok:
        raise ValueError(f"recipe: {key}: expected {expected}, got {value!r}")


@dataclass(frozen=True)
class DataSpec:
    """Which samples to train on: a data set, at most one subset of it, a validation share, random labels."""

    name: str = "digits"
    """A name that `ncollapse data list` prints, folder:PATH or npz:PATH."""
    samples_per_class: int | None = None
    """Subset: this many training samples of each class."""
    per_class_counts: tuple[int, ...] | None = None
    """Subset: these numbers of training samples, class by class."""
    step_imbalance: float | None = None
    """Subset: the second half of the classes has this many times fewer samples than the first."""
    long_tail: float | None = None
    """Subset: exponentially fewer samples from the first class to the last, first / last being this ratio."""
    draw: Literal["random", "first"] = "random"
    """Which samples of a class a subset keeps: random ones, or the first of the data set."""
    random_labels: bool = False
    """Replace the training labels by random ones."""
    validation: float = 0.0
    """The share of the training set that is held out for validation."""
    image_size: int | None = None
    """Scale images to this side length in pixels; required for image folders."""
    channels: int | None = None
    """Repeat the one channel of grey images this many times."""
    normalise: str = "auto"
    """How pixels are normalised: auto (recipe where the data set has one, else none), none, recipe, imagenet, or
    MEAN,.../STD,... by channel."""
    seed: int = 0
    """The seed of the subset, the validation split and the random labels."""

    def __post_init__(self) -> None:
        from ncollapse.data.catalogue import KNOWN, is_known

        check(is_known(self.name), "data.name", self.name, f"one of {KNOWN}")
        subsets = ("samples_per_class", "per_class_counts", "step_imbalance", "long_tail")
        named = [key for key in subsets if getattr(self, key) is not None]
        check(len(named) <= 1, "data." + " and data.".join(named), "both", "one subset at most")
        check(self.draw in ("random", "first"), "data.draw", self.draw, "random or first")
        check(0 <= self.validation < 1, "data.validation", self.validation, "a share in [0, 1)")
        for key in ("image_size", "channels"):
            check(getattr(self, key) is None or getattr(self, key) > 0, *_at(self, f"data.{key}"), "> 0")
        check(self.samples_per_class is None or self.samples_per_class > 0, *_at(self, "data.samples_per_class"), "> 0")
        check(all(n >= 0 for n in self.per_class_counts or ()), *_at(self, "data.per_class_counts"), ">= 0 everywhere")
        check(self.step_imbalance is None or self.step_imbalance >= 1, *_at(self, "data.step_imbalance"), ">= 1")
        check(self.long_tail is None or self.long_tail >= 1, *_at(self, "data.long_tail"), ">= 1")
        words = "auto, none, recipe, imagenet or MEAN,.../STD,... for training"
        check(self.normalise != "model", "data.normalise", self.normalise, words)
        if self.normalise != "auto":
            try:
                choose_normalisation(self.normalise, self.name)
            except ValueError as error:
                raise ValueError(f"recipe: data.{error}") from None


@dataclass(frozen=True)
class ModelSpec:
    """Which network to train, and the classifier at its end: z = W h - b."""

    name: str = "resnet18"
    """One of our networks, timm:NAME, torchvision:NAME, or package.module:FACTORY for your own."""
    feature_dim: int | None = None
    """The width of the last stage; features stay outputs of a ReLU."""
    feature_dim_linear: int | None = None
    """The width of an additional linear layer before the classifier; features may then have any sign."""
    head: Literal["linear", "etf"] = "linear"
    """The classifier: a trainable linear layer, or a fixed simplex ETF."""
    bias: bool = True
    """Whether the classifier has a bias."""
    bias_init: float | Literal["theory"] = 0.0
    """The mean of the initial thresholds b (those of a linear head are uniform in +-1/sqrt(d) around it), or theory
    for the predicted optimum."""
    stem: Literal["small", "imagenet"] = "small"
    """The first layers of a ResNet or DenseNet: for images of about 32 pixels, or as for ImageNet."""
    weights: str | None = None
    """A file of pretrained weights to start from."""

    def __post_init__(self) -> None:
        from ncollapse.models.create import KNOWN, is_known

        check(is_known(self.name), "model.name", self.name, f"one of {KNOWN}")
        for key in ("feature_dim", "feature_dim_linear"):
            value = getattr(self, key)
            check(value is None or value > 0, f"model.{key}", value, "> 0")
        check(self.head in ("linear", "etf"), "model.head", self.head, "linear or etf")
        check(self.stem in ("small", "imagenet"), "model.stem", self.stem, "small or imagenet")
        number = isinstance(self.bias_init, (int, float)) and math.isfinite(self.bias_init)
        check(number or self.bias_init == "theory", "model.bias_init", self.bias_init, "a number or theory")


@dataclass(frozen=True)
class LossSpec:
    """Which loss to minimise; a parameter that is None takes the loss's own default."""

    name: str = "ce"
    """ce, bce, focal, ls, mse, or package.module:Class for a loss of your own; parameters may follow in brackets, as in
    my_losses:Tilted(slope=0.5)."""
    gamma: float | None = None
    """Focal loss: the exponent."""
    alpha: float | None = None
    """Label smoothing: the share spread over all classes. MSE of mse-landscape: the weight of the own class."""
    kappa: float | None = None
    """MSE of all-losses: the weight of the own class."""
    beta: float | None = None
    """MSE of all-losses: the target of the own class."""
    M: float | None = None
    """MSE of mse-landscape: the target of the own class."""
    label_smoothing: float | None = None
    """Cross-entropy and BCE: smooth the targets by this much."""
    class_reduction: Literal["sum", "mean"] | None = None
    """MSE: sum over the classes, as in the theorems (default), or mean, as in the code of two of the papers."""

    def __post_init__(self) -> None:
        if isinstance(self.name, str) and "(" in self.name:
            self._spell()
        self.make()

    def _spell(self) -> None:
        """Bring a name with parameters into one spelling, so that equal losses have equal run ids.

        Parameters that are fields here become those fields.
        """
        from ncollapse.losses.calls import join_call, split_call

        try:
            base, params = split_call(self.name)
        except ValueError as error:
            raise ValueError(f"recipe: loss.name: {error}") from None
        for key in [key for key in params if key in LossSpec.__dataclass_fields__ and key != "name"]:
            value = params.pop(key)
            whole = isinstance(value, int) and not isinstance(value, bool)
            value, given = float(value) if whole else value, getattr(self, key)
            check(given is None or given == value, f"loss.{key}", given, f"none beside {self.name}")
            object.__setattr__(self, key, value)
        object.__setattr__(self, "name", join_call(base, params))

    def make(self) -> Loss:
        """The loss itself."""
        from ncollapse.losses import LOSS_NAMES, is_loss_name, make_loss

        check(
            is_loss_name(self.name), "loss.name", self.name, f"one of {', '.join(LOSS_NAMES)}, or package.module:Class"
        )
        params = {key: value for key, value in asdict(self).items() if key != "name" and value is not None}
        try:
            return make_loss(self.name, **params)
        except (ValueError, TypeError) as error:
            raise ValueError(f"recipe: loss ({_shorten(self)}): {error}") from None


@dataclass(frozen=True)
class OptimSpec:
    """Which optimiser, for how long, and with which batches."""

    name: Literal["sgd", "adam", "adamw", "lbfgs"] = "sgd"
    """The optimiser."""
    lr: float = 0.01
    """The learning rate before any schedule."""
    momentum: float = 0.9
    """The momentum of SGD."""
    epochs: int = 100
    """How many times to go through the training set."""
    batch_size: int = 128
    """Samples a step."""
    weight_decay: float = 0.0
    """Decay of every parameter: added to the gradient for sgd, adam and lbfgs, decoupled for adamw."""
    clip_norm: float | None = None
    """Clip the norm of the whole gradient to this value."""
    scale_lr: bool = False
    """Multiply the learning rate by batch_size / 128."""

    def __post_init__(self) -> None:
        check(self.name in ("sgd", "adam", "adamw", "lbfgs"), "optim.name", self.name, "sgd, adam, adamw or lbfgs")
        check(math.isfinite(self.lr) and self.lr > 0, "optim.lr", self.lr, "> 0")
        check(0 <= self.momentum < 1, "optim.momentum", self.momentum, "in [0, 1)")
        check(self.epochs > 0, "optim.epochs", self.epochs, "> 0")
        check(self.batch_size > 0, "optim.batch_size", self.batch_size, "> 0")
        check(math.isfinite(self.weight_decay) and self.weight_decay >= 0, *_at(self, "optim.weight_decay"), ">= 0")
        check(self.clip_norm is None or self.clip_norm > 0, "optim.clip_norm", self.clip_norm, "> 0")

    @property
    def rate(self) -> float:
        """The rate the schedule starts from."""
        return self.lr * self.batch_size / 128 if self.scale_lr else self.lr


@dataclass(frozen=True)
class ScheduleSpec:
    """How the learning rate changes from epoch to epoch."""

    name: Literal["constant", "step", "cosine", "restarts"] = "constant"
    """constant; step: multiply by `factor` at each milestone, or every `period` epochs; cosine: half a cosine down to
    `min_lr`; restarts: the same again every `period` epochs."""
    milestones: tuple[float, ...] = ()
    """step: the epochs at which the rate changes; numbers below 1 are shares of all epochs."""
    factor: float = 0.1
    """step: what the rate is multiplied by."""
    min_lr: float = 0.0
    """cosine and restarts: the rate at the end."""
    period: int | None = None
    """step and restarts: the number of epochs between changes."""
    lag: int = 0
    """Delay the schedule by this many epochs; the initial rate lasts that much longer."""

    def __post_init__(self) -> None:
        names = ("constant", "step", "cosine", "restarts")
        check(self.name in names, "schedule.name", self.name, "constant, step, cosine or restarts")
        finite = all(0 < m < math.inf for m in self.milestones)
        check(finite, "schedule.milestones", self.milestones, "> 0 and finite everywhere")
        whole = all(m < 1 or float(m).is_integer() for m in self.milestones)
        check(whole, "schedule.milestones", self.milestones, "whole epochs, or shares of all epochs below 1")
        check(0 < self.factor < math.inf, "schedule.factor", self.factor, "> 0 and finite")
        check(0 <= self.min_lr < math.inf, "schedule.min_lr", self.min_lr, ">= 0 and finite")
        check(self.period is None or self.period > 0, "schedule.period", self.period, "> 0")
        check(self.lag >= 0, "schedule.lag", self.lag, ">= 0")
        needs = self.name == "restarts" or (self.name == "step" and not self.milestones)
        check(not needs or self.period is not None, "schedule.period", self.period, f"given for {self.name}")


@dataclass(frozen=True)
class DecaySpec:
    """Decays added to the loss: weight/2 |W|^2 + feature/2 |H_batch|^2 (a sum over the batch) + bias/2 |b|^2.

    With `weak_epochs` training begins with weaker decays, which can keep rare classes from vanishing (docs/reading.md).
    Predictions and certificates are always those of the full decays.
    """

    weight: float = 0.0
    """The decay lambda_W of the classifier's weight W."""
    feature: float = 0.0
    """The decay lambda_H of the features, summed over the batch."""
    bias: float = 0.0
    """The decay lambda_b of the classifier's bias b."""
    weak_epochs: int = 0
    """For this many epochs at the start, the three decays are multiplied by `weak_share`."""
    weak_share: float = 0.1
    """What the three decays are multiplied by in the first `weak_epochs` epochs."""

    def __post_init__(self) -> None:
        for key in ("weight", "feature", "bias", "weak_epochs"):
            check(math.isfinite(getattr(self, key)) and getattr(self, key) >= 0, *_at(self, f"decays.{key}"), ">= 0")
        check(0 <= self.weak_share <= 1, "decays.weak_share", self.weak_share, "a share in [0, 1]")
        decayed = self.weight > 0 or self.feature > 0 or self.bias > 0
        what = "0 without a decay of W, the features or b"
        check(self.weak_epochs == 0 or decayed, "decays.weak_epochs", self.weak_epochs, what)

    @property
    def stages(self) -> tuple[DecaySpec, ...]:
        """The decays of all epochs, each once."""
        return tuple(dict.fromkeys((self.at(1), self)))

    def at(self, epoch: int) -> DecaySpec:
        """The decays during an epoch, counted from 1.

        >>> decays = DecaySpec(weight=0.5, weak_epochs=20)
        >>> decays.at(20).weight, decays.at(21).weight
        (0.05, 0.5)
        """
        if epoch > self.weak_epochs:
            return self
        share = self.weak_share
        return replace(self, weight=share * self.weight, feature=share * self.feature, bias=share * self.bias)


@dataclass(frozen=True)
class Recipe:
    """Everything that defines a training run: two equal recipes train the same network.

    >>> from ncollapse.train import recipes
    >>> recipe = recipes.get("digits")
    >>> Recipe.from_json(recipe.to_json()) == recipe
    True
    """

    name: str = "custom"
    """A label; it does not enter the run id."""
    data: DataSpec = field(default_factory=DataSpec)
    model: ModelSpec = field(default_factory=ModelSpec)
    loss: LossSpec = field(default_factory=LossSpec)
    optim: OptimSpec = field(default_factory=OptimSpec)
    schedule: ScheduleSpec = field(default_factory=ScheduleSpec)
    decays: DecaySpec = field(default_factory=DecaySpec)
    augment: Augment = field(default_factory=Augment)
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """The precision of the network; the classifier and the loss are always computed in float32."""
    select: Literal["last", "best-test", "best-validation"] = "last"
    """Which epoch the summary describes."""
    measure_every: int = 1
    """Measure every so many epochs; the first and the last epoch are always measured."""
    seed: int = 0
    """The seed of the initial weights, the order of the samples and the augmentation."""

    def __post_init__(self) -> None:
        check(self.precision in ("fp32", "tf32", "bf16"), "precision", self.precision, "fp32, tf32 or bf16")
        choices = ("last", "best-test", "best-validation")
        check(self.select in choices, "select", self.select, "last, best-test or best-validation")
        held_out = self.select != "best-validation" or self.data.validation > 0
        check(held_out, "data.validation", self.data.validation, "> 0 with select = best-validation")
        check(self.measure_every > 0, "measure_every", self.measure_every, "> 0")
        weak, epochs = self.decays.weak_epochs, self.optim.epochs
        check(weak < epochs, "decays.weak_epochs", weak, f"fewer than the {epochs} of optim.epochs")
        for key, seed in (("seed", self.seed), ("data.seed", self.data.seed)):
            check(abs(seed) < 2**63, key, seed, "within 64 bits")

    @property
    def run_id(self) -> str:
        """Twelve hexadecimal digits of the configuration, apart from its name: equal runs share a folder."""
        return run_id(self.to_dict())

    def problem(
        self,
        *,
        num_classes: int | None = None,
        class_counts: tuple[int, ...] | None = None,
        features: Literal["free", "relu"] | None = None,
        samples: int | None = None,
        dim: int | None = None,
        feature_energy: float | None = None,
    ) -> Problem | None:
        """The theory's problem this run minimises, or None where the theory does not apply.

        It applies with decays of W and H in the loss and nothing else decayed, and a trainable head. The feature decay
        acts on the batch, so n = batch_size / K; where the number of samples is given (`samples`, or by the counts),
        the batch is the mean over an epoch, whose last one may be short. What is not given is taken from the data set's
        name and the model's name. Targets of mixup, CutMix and label smoothing are those of balanced classes.

        Without a feature decay there is no optimum unless the norm of the features is given: `feature_energy`, the mean
        of |h|^2 (of unmixed images), as a measurement of the trained network has it. A decay of all parameters then
        counts as a decay of W and b; under AdamW, whose decay is no part of the objective, there is still none.
        """
        from ncollapse.train.theory import pose

        return pose(self, num_classes, class_counts, features, samples, dim, feature_energy)

    def override(self, **changes: Any) -> Recipe:
        """A copy with some fields changed, double underscores for dots; every changed value is checked.

        >>> Recipe().override(optim__lr=0.1, seed=3).optim.lr
        0.1
        """
        from ncollapse.train.files import update

        nested: dict[str, Any] = {}
        for key, value in changes.items():
            if "." in key:
                raise ValueError(f"{key}: expected double underscores for dots, as in {key.replace('.', '__')}")
            part, _, name = key.partition("__")
            if name:
                nested.setdefault(part, {})[name] = value
            else:
                nested[part] = value
        return update(self, nested)

    def with_epochs(self, epochs: int) -> Recipe:
        """A copy for another number of epochs, its schedule and its weak decays stretched or shortened in proportion.

        >>> recipe = Recipe(schedule=ScheduleSpec("step", period=30))
        >>> recipe.optim.epochs, recipe.with_epochs(50).schedule.period
        (100, 15)
        """
        weak = self.decays.weak_epochs
        if epochs < 1 or (weak and epochs < 2):
            least = "at least 2 with decays.weak_epochs" if weak else "at least 1"
            raise ValueError(f"epochs: expected {least}, got {epochs}")
        share = epochs / self.optim.epochs
        weak = weak and min(max(1, round(weak * share)), epochs - 1)
        milestones = tuple(m if m < 1 else max(1, round(m * share)) for m in self.schedule.milestones)
        period = None if self.schedule.period is None else max(1, round(self.schedule.period * share))
        stretched = {"schedule__milestones": milestones, "schedule__period": period, "decays__weak_epochs": weak}
        return self.override(optim__epochs=epochs, **stretched)

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values. Fields added later appear only when set, so that earlier records still compare equal."""
        content: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        if self.loss.class_reduction is None:
            del content["loss"]["class_reduction"]
        return content

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1)

    def to_toml(self) -> str:
        from ncollapse.train.files import dump_toml

        return dump_toml(self.to_dict())

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Recipe:
        """From nested plain values; unknown keys and values of the wrong kind are refused."""
        from ncollapse.train.files import structure

        return structure(content, cls)

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_file(cls, path: str | Path) -> Recipe:
        """From a TOML or JSON file, by its suffix."""
        from ncollapse.train.files import read

        return cls.from_dict(read(Path(path)))


def _shorten(spec: LossSpec) -> str:
    return ", ".join(f"{key}={value}" for key, value in asdict(spec).items() if value is not None)


def _at(spec: object, key: str) -> tuple[str, Any]:
    return key, getattr(spec, key.split(".")[1])
