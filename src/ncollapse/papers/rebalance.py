"""The second stage of bce-vs-ce table 4: the classifier re-balanced on the frozen features of the first.

After Alshammari et al. 2022: a class-balanced loss (weights from the effective number of samples, beta = 0.9999), decay
of the classifier, and MaxNorm, a bound on the norm of each of its rows. There are two protocols. "printed" follows the
two papers, neither of which says which decay and bound belong to which loss: both are chosen on the held-out part of
the training set, as the decay of the first stage is; the features are those of evaluation. "cited" follows the public
code: decay 0.1, a bound 0.1 of the way from the smallest norm to the largest, applied after each epoch, and the best
epoch on the test set. Only the classifier is trained, but the network stays in training mode: its norms use the
statistics of each batch and go on tracking them, and images are augmented. Epochs are compared by the accuracy on the
test images; the accuracy that is reported averages the scores of each test image and its mirror image.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncollapse.papers.claims import Claim, Runs, of_one_length
from ncollapse.papers.experiment import Experiment
from ncollapse.papers.judge import Line, compare, judge_all
from ncollapse.papers.matching import Match, epochs_of
from ncollapse.runs.files import read_object, write_json
from ncollapse.runs.record import RunRecord

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Criterion = Callable[[Tensor, Tensor], Tensor]
    Batch = tuple[Tensor, Tensor]

FACTORS = (10, 50, 100)
BETA = 0.9999
DECAYS = (1e-4, 1e-3, 1e-2)
BOUNDS = (0.5, 1.0, math.inf)
CITED_DECAY, CITED_BOUND = 0.1, 0.1
EPOCHS, BATCH, RATE, MOMENTUM = 10, 64, 0.01, 0.9
MIRRORED = "mirrored"
"""The test set again, each image averaged with its mirror image."""
UNMIRRORED = "test_plain.accuracy"
"""The field of the accuracy on the test images alone, where the one with mirror images is judged."""


def balance_weights(counts: Sequence[int], beta: float = BETA) -> list[float]:
    """Weights of the classes, (1 - beta) / (1 - beta^n), scaled to mean 1.

    >>> [round(w, 3) for w in balance_weights([500, 50])]
    [0.186, 1.814]
    """
    raw = [(1 - beta) / (1 - beta ** max(count, 1)) for count in counts]
    mean = sum(raw) / len(raw)
    return [weight / mean for weight in raw]


def rebalance_all(
    records: Iterable[RunRecord], data_root: str | Path | None, device: str | None, deadline: float | None
) -> list[str]:
    """Carry out the second stage of every finished run that lacks it, and write its result to rebalanced.json.

    Returns what went wrong, one line for each run; the others are carried out all the same.
    """
    faults = []
    for record in records:
        late = deadline is not None and time.time() > deadline
        if record.status != "finished" or late or (record.path / "rebalanced.json").is_file():
            continue
        if not (record.path / "final.safetensors").is_file():
            faults.append(f"{record.run_id}: no second stage, its weights are not here (final.safetensors)")
            continue
        try:
            write_json(record.path / "rebalanced.json", rebalance(record, data_root, device))
        except Exception as error:
            faults.append(f"{record.run_id}: the second stage failed: {type(error).__name__}: {error}")
    return faults


def rebalance(record: RunRecord, data_root: str | Path | None, device: str | None = None) -> dict[str, Any]:
    """Retrain the classifier of a finished run; accuracies before and after, and the decay and bound chosen."""
    import torch

    from ncollapse.runs.checkpoint import unpack
    from ncollapse.train import Recipe
    from ncollapse.train.build import build_model, load_splits, make_loaders
    from ncollapse.train.distributed import join
    from ncollapse.train.evaluate import Extractor

    recipe = Recipe.from_dict(record.config)
    world = join(device)
    loaders = make_loaders(recipe, load_splits(recipe, data_root), world)
    model, _ = build_model(recipe, loaders, world)
    cited = recipe.data.validation == 0
    weights = "best.safetensors" if cited and (record.path / "best.safetensors").is_file() else "final.safetensors"
    model.load_state_dict(unpack((record.path / weights).read_bytes())[0])
    extract = Extractor(model, recipe.precision, world)
    weight = model.head.weight.detach()
    bias = model.head.bias.detach() if model.head.bias is not None else weight.new_zeros(len(weight))

    def look() -> Stage:
        splits = {name: extract(batches) for name, batches in loaders.measured.items()}
        if cited:
            splits[MIRRORED] = average_mirrored(extract, loaders.measured["test"], splits["test"])
        return Stage(splits, weight, bias, recipe.loss.name, loaders.counts, recipe.seed)

    stage = look()
    before = stage.score(weight, bias)
    if not cited:
        return {"before": before, **retrain_as_printed(stage)}

    def draw(epoch: int) -> Iterator[Batch]:
        model.train()
        for x, y in loaders.train.epoch(recipe.optim.epochs + epoch):
            with torch.no_grad():
                features = extract.extract(x)
            yield features, y

    return {"before": before, **retrain_as_cited(stage, draw, look)}


def average_mirrored(
    extract: Callable[[Iterable[Batch]], Batch], batches: Iterable[Batch], plain: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """The means of the features of images and of their mirror images; the classifier is linear, so are its scores."""
    features, labels = plain
    mirrored, _ = extract((x.flip(-1), y) for x, y in batches)
    return (features + mirrored) / 2, labels


@dataclass(frozen=True)
class Stage:
    """What the second stage starts from: features and labels by split, the classifier, the loss and the counts."""

    splits: dict[str, tuple[Tensor, Tensor]]
    weight: Tensor
    bias: Tensor
    loss: str
    counts: Sequence[int]
    seed: int

    def score(self, weight: Tensor, bias: Tensor) -> dict[str, float]:
        """The accuracy of the classifier W h - b on every split."""
        return {name: score(h, y, weight, bias) for name, (h, y) in self.splits.items()}


def retrain_as_printed(stage: Stage) -> dict[str, Any]:
    """The decay and the bound that are best on the held-out samples, and the accuracies with them."""
    import torch

    from ncollapse.losses import make_loss

    held_out = "validation" if "validation" in stage.splits else "train"
    weights = torch.tensor(balance_weights(stage.counts))
    criterion = make_loss(stage.loss, weight=weights).to(stage.weight.device)
    best: dict[str, Any] = {}
    for decay, bound in itertools.product(DECAYS, BOUNDS):
        after = stage.score(*retrain(stage, criterion, decay, bound))
        if not best or after[held_out] > best["after"][held_out]:
            best = {"decay": decay, "bound": bound, "after": after}
    return best


def retrain_as_cited(stage: Stage, draw: Callable[[int], Iterable[Batch]], look: Callable[[], Stage]) -> dict[str, Any]:
    """One decay and one bound, and the accuracies at the best epoch on the test set.

    draw: the features and labels of an epoch's batches, with the network in training mode.
    look: the stage with the features of evaluation, which change as the norms track their statistics.
    """
    norms = stage.weight.norm(dim=1)
    bound = float(norms.min() + CITED_BOUND * (norms.max() - norms.min()))
    criterion = balanced_loss(stage.loss, balance_weights(stage.counts))
    w, b, optimiser = start_again(stage, CITED_DECAY)
    found = []
    for epoch in range(EPOCHS):
        rate = (
            RATE * (1 + math.cos(math.pi * (epoch + 1) / EPOCHS)) / 2
        )  # the code steps its schedule before each epoch
        optimiser.param_groups[0]["lr"] = rate
        for features, labels in draw(epoch):
            take_step(optimiser, criterion, features, labels, w, b)
        bound_rows(w, bound)
        found.append(look().score(w.detach(), b.detach()))
    after = max(found, key=lambda accuracies: accuracies["test"])
    return {"decay": CITED_DECAY, "bound": bound, "after": after, "mode": "training"}


def balanced_loss(loss: str, weights: Sequence[float]) -> Criterion:
    """The class-balanced loss of the public code: binary cross-entropy, averaged over samples and classes.

    For CE its probabilities are those of the softmax, for BCE those of the sigmoid.
    """
    import torch
    from torch.nn import functional as F

    def criterion(logits: Tensor, labels: Tensor) -> Tensor:
        target = F.one_hot(labels, logits.shape[1]).to(logits.dtype)
        weight = torch.tensor(weights, dtype=logits.dtype, device=logits.device)[labels, None]
        if loss == "bce":
            return F.binary_cross_entropy_with_logits(logits, target, weight.expand_as(logits))
        return F.binary_cross_entropy(logits.softmax(1), target, weight.expand_as(logits))

    return criterion


def retrain(stage: Stage, criterion: Criterion, decay: float, bound: float) -> tuple[Tensor, Tensor]:
    """W and b after SGD on the classifier alone; rows of W are projected to norm <= `bound` after every step."""
    import torch

    features, labels = stage.splits["train"]
    w, b, optimiser = start_again(stage, decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, EPOCHS * -(-len(features) // BATCH))
    generator = torch.Generator().manual_seed(stage.seed)
    for _ in range(EPOCHS):
        for index in torch.randperm(len(features), generator=generator).to(features.device).split(BATCH):  # type: ignore[no-untyped-call]
            take_step(optimiser, criterion, features[index], labels[index], w, b)
            schedule.step()
            bound_rows(w, bound)
    return w.detach(), b.detach()


def start_again(stage: Stage, decay: float) -> tuple[Tensor, Tensor, torch.optim.SGD]:
    """The classifier of the first stage, to be trained on, and its optimiser."""
    import torch

    w, b = stage.weight.clone().requires_grad_(), stage.bias.clone().requires_grad_()
    return w, b, torch.optim.SGD([w, b], lr=RATE, momentum=MOMENTUM, weight_decay=decay)


def take_step(
    optimiser: torch.optim.SGD, criterion: Criterion, features: Tensor, labels: Tensor, w: Tensor, b: Tensor
) -> None:
    """One step on the scores W h - b."""
    optimiser.zero_grad()
    criterion(features @ w.T - b, labels).backward()  # type: ignore[no-untyped-call]
    optimiser.step()


def bound_rows(w: Tensor, bound: float) -> None:
    """Project the rows of W to norm <= `bound`."""
    w.data.mul_((bound / w.data.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp_max(1.0))


def score(features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> float:
    """Accuracy of the classifier W h - b."""
    found: torch.Tensor = (features @ weight.T - bias).argmax(1) == labels
    return float(found.float().mean())


def second_stage_lines(experiment: Experiment, matches: Sequence[Match]) -> list[Line]:
    """One line for each published cell and protocol."""
    lines: list[Line] = []
    for line in compare(experiment, [Match(found.point) for found in matches]):
        keys = without_decay(line.keys)
        if line.published is None or any(other.keys == keys for other in lines):
            continue
        tried = [r for found in matches if keys.items() <= found.point.keys.items() for r in found.records]
        line = replace(line, keys=keys, row=f"{line.row}, {keys.get('protocol', '')}".rstrip(", "))
        best = choose_by_validation(tried)
        if best:
            lengths = tuple(sorted(set(map(epochs_of, tried))))
            ids = tuple(record.run_id for record in tried)
            line = replace(line, values=tuple(map(reported, best.values())), epochs=lengths, runs=ids)
        lines.append(line)
        if any(MIRRORED in after for after in best.values()):
            alone = tuple(after["test"] for after in best.values())
            lines.append(replace(line, field=UNMIRRORED, published=None, values=alone))
    return judge_all(experiment, lines)


def without_decay(keys: dict[str, Any]) -> dict[str, Any]:
    """The keys of a published cell: those of a run but for its decay, which is chosen, and its seed."""
    return {key: value for key, value in keys.items() if key not in ("weight_decay", "seed")}


def choose_by_validation(records: Iterable[RunRecord]) -> dict[int | None, dict[str, float]]:
    """For each seed the accuracies after the second stage of the run that validates best.

    Without a validation split there is one decay, and so one run, only.
    """
    best: dict[int | None, dict[str, float]] = {}
    for record in records:
        after = (read_object(record.path / "rebalanced.json", []) or {}).get("after")
        if after and after.get("validation", 0.0) > best.get(record.seed, {}).get("validation", -1.0):
            best[record.seed] = after
    return best


def reported(after: dict[str, float]) -> float:
    """The accuracy on the test set that a protocol reports."""
    return after.get(MIRRORED, after["test"])


def check_protocols(runs: Runs) -> list[Claim]:
    """Table 4: BCE is more accurate than CE after both stages, in each protocol apart."""
    return [more_accurate(runs, protocol) for protocol in ("printed", "cited")]


def more_accurate(runs: Runs, protocol: str) -> Claim:
    """BCE is more accurate after both stages at every factor and seed."""
    found: dict[tuple[Any, int | None], dict[str, float]] = {}
    for factor in FACTORS:
        wanted = {"protocol": protocol, "factor": factor}
        mine = of_one_length([run for run in runs if wanted.items() <= run[0].items()])
        for loss in ("ce", "bce"):
            tried = [record for keys, record in mine if keys["loss"] == loss]
            for seed, after in choose_by_validation(tried).items():
                found.setdefault((factor, seed), {})[loss] = reported(after)
    gains = {place: 100 * (pair["bce"] - pair["ce"]) for place, pair in found.items() if len(pair) == 2}
    text = f"protocol {protocol}: BCE raises accuracy over CE after both stages"
    if not gains:
        return Claim(text, None, "runs of both losses with their second stage are needed")
    detail = ", ".join(f"{gain:+.2f} points at factor {factor}" for (factor, _), gain in gains.items())
    return Claim(text, all(gain > 0 for gain in gains.values()), detail)
