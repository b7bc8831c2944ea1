"""The second stage of bce-vs-ce table 4: the classifier re-balanced on the frozen features of the first.

After Alshammari et al. 2022: a class-balanced loss (weights from the effective number of samples, beta = 0.9999), decay
of the classifier, and MaxNorm, a bound on the norm of each of its rows. Neither paper says which decay and bound
belong to which loss, so both are chosen on the held-out part of the training set, as the decay of the first stage is.
Features are taken without augmentation.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncollapse.papers.experiment import Experiment, Point
from ncollapse.papers.judge import Line, compare, judge, match
from ncollapse.runs.files import read_object, write_json
from ncollapse.runs.record import RunRecord

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BETA = 0.9999
DECAYS = (1e-4, 1e-3, 1e-2)
BOUNDS = (0.5, 1.0, math.inf)
EPOCHS, BATCH, RATE, MOMENTUM = 10, 64, 0.01, 0.9


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
    """The second stage of every finished run that lacks it; what it gives is written to rebalanced.json.

    Returns what went wrong, a line a run: the others go on.
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
    from ncollapse.runs.checkpoint import unpack
    from ncollapse.train import Recipe
    from ncollapse.train.build import build_model, load_splits, make_loaders
    from ncollapse.train.distributed import join
    from ncollapse.train.evaluate import Extractor

    recipe = Recipe.from_dict(record.config)
    world = join(device)
    loaders = make_loaders(recipe, load_splits(recipe, data_root), world)
    model, _ = build_model(recipe, loaders, world)
    model.load_state_dict(unpack((record.path / "final.safetensors").read_bytes())[0])
    extract = Extractor(model, recipe.precision, world)
    splits = {name: extract(batches) for name, batches in loaders.measured.items()}
    weight = model.head.weight.detach()
    bias = model.head.bias.detach() if model.head.bias is not None else weight.new_zeros(len(weight))
    before = {name: score(h, y, weight, bias) for name, (h, y) in splits.items()}
    held_out = "validation" if "validation" in splits else "train"
    best: dict[str, Any] = {}
    for decay, bound in itertools.product(DECAYS, BOUNDS):
        w, b = retrain(splits["train"], weight, bias, recipe.loss.name, loaders.counts, decay, bound, recipe.seed)
        after = {name: score(h, y, w, b) for name, (h, y) in splits.items()}
        if not best or after[held_out] > best["after"][held_out]:
            best = {"decay": decay, "bound": bound, "after": after}
    return {"before": before, **best}


def retrain(
    train: tuple[Tensor, Tensor],
    weight: Tensor,
    bias: Tensor,
    loss: str,
    counts: Sequence[int],
    decay: float,
    bound: float,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """SGD on the classifier alone, z = W h - b, rows of W projected to norm <= `bound` after every step."""
    import torch

    from ncollapse.losses import make_loss

    features, labels = train
    criterion = make_loss(loss, weight=torch.tensor(balance_weights(counts))).to(features.device)
    w, b = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    optimiser = torch.optim.SGD([w, b], lr=RATE, momentum=MOMENTUM, weight_decay=decay)
    steps = EPOCHS * -(-len(features) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS):
        for index in torch.randperm(len(features), generator=generator).to(features.device).split(BATCH):  # type: ignore[no-untyped-call]
            optimiser.zero_grad()
            criterion(features[index] @ w.T - b, labels[index]).backward()
            optimiser.step()
            schedule.step()
            with torch.no_grad():
                w.mul_((bound / w.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp_max(1.0))
    return w.detach(), b.detach()


def score(features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> float:
    """Accuracy of the classifier W h - b."""
    found: torch.Tensor = (features @ weight.T - bias).argmax(1) == labels
    return float(found.float().mean())


def second_stage_lines(experiment: Experiment, points: Sequence[Point], records: Iterable[RunRecord]) -> list[Line]:
    """One line a published cell: of the decays of the first stage, for each seed the one that validates best."""
    matched = match(points, records)
    lines: list[Line] = []
    for line in compare(experiment, points, ()):
        published = line.published
        if published is None or any(other.published == published for other in lines):
            continue
        tried = [
            record
            for point, found in matched
            if all(point.keys.get(k) == v for k, v in published.where.items())
            for record in found
        ]
        best: dict[int | None, dict[str, float]] = {}
        for record in tried:
            after = (read_object(record.path / "rebalanced.json", []) or {}).get("after")
            if after and after.get("validation", 0.0) > best.get(record.seed, {}).get("validation", -1.0):
                best[record.seed] = after
        if best:
            lengths = {int(record.get("optim.epochs", 0)) for record in tried}
            values = tuple(after["test"] for after in best.values())
            line = replace(line, values=values, epochs=tuple(sorted(lengths)))
        line = replace(line, keys=dict(published.where))  # the decay is chosen, not a place of the table
        lines.append(line)
    return [judge(line, lines) for line in lines]
