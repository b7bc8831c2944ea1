"""The loop against a plain one: the same batches through torch's own modules, losses written out, decays one by one."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from ncollapse.losses import BCELoss
from ncollapse.models import create
from ncollapse.train import DecaySpec, recipes, run
from ncollapse.train.build import build_model, load_splits, make_loaders
from ncollapse.train.distributed import World
from ncollapse.train.objective import Objective

EPOCHS, BATCH, RATES = 3, 48, (0.03, 0.03, 0.006)
DECAYS = {"weight": 3e-3, "feature": 2e-3, "bias": 5e-2}


def make_recipe(optimiser, loss, **changes):
    plain = {"optim__name": optimiser, "optim__epochs": EPOCHS, "optim__batch_size": BATCH, "optim__scale_lr": True}
    plain |= {"optim__lr": 0.03 * 128 / BATCH, "model__name": "mlp-24", "data__samples_per_class": 11}
    plain |= {"schedule__name": "step", "schedule__milestones": [2], "schedule__factor": 0.2}
    plain |= {f"decays__{name}": value for name, value in DECAYS.items()}
    return recipes.get("digits", loss=loss).override(**plain, **changes)


def write_out(model, x, y, name):
    """(objective, mean loss) of a batch."""
    h, head = model.features(x), model.get_classifier()
    z = h @ head.weight.T - head.bias
    if name == "bce":
        loss = F.binary_cross_entropy_with_logits(z, F.one_hot(y, 10).float(), reduction="sum") / len(y)
    else:
        loss = F.cross_entropy(z, y)
    whole = loss + DECAYS["weight"] / 2 * (head.weight**2).sum() + DECAYS["feature"] / 2 * (h**2).sum()
    return whole + DECAYS["bias"] / 2 * (head.bias**2).sum(), loss


def train_plainly(recipe):
    """(parameters by name, mean loss of each epoch)."""
    loaders = make_loaders(recipe, load_splits(recipe, None), World(0, 1, torch.device("cpu")))
    model, _ = build_model(recipe, loaders, World(0, 1, torch.device("cpu")))
    spec, weights = recipe.optim, list(model.parameters())
    kinds = {
        "sgd": lambda: torch.optim.SGD(weights, momentum=spec.momentum, weight_decay=spec.weight_decay),
        "adam": lambda: torch.optim.Adam(weights, weight_decay=spec.weight_decay),
        "adamw": lambda: torch.optim.AdamW(weights, weight_decay=spec.weight_decay),
    }
    optimiser = kinds[spec.name]()
    losses = []
    for epoch, rate in enumerate(RATES, 1):
        optimiser.param_groups[0]["lr"] = rate
        total, count = 0.0, 0
        for x, y in loaders.train.epoch(epoch):
            optimiser.zero_grad()
            whole, loss = write_out(model, x, y, recipe.loss.name)
            whole.backward()
            if spec.clip_norm:
                norm = sum((p.grad**2).sum() for p in weights).sqrt()
                for p in weights:
                    p.grad *= min(1.0, spec.clip_norm / (float(norm) + 1e-6))
            optimiser.step()
            total, count = total + loss.item() * len(y), count + len(y)
        assert count == 110  # a last batch of 14 included
        losses.append(total / count)
    return dict(model.named_parameters()), losses


@pytest.mark.parametrize(
    ("optimiser", "loss", "changes"),
    [
        ("sgd", "bce", {"optim__weight_decay": 0.02}),
        ("sgd", "ce", {"optim__clip_norm": 0.05, "optim__momentum": 0.5}),
        ("adam", "ce", {"optim__weight_decay": 0.02}),
        ("adamw", "bce", {"optim__weight_decay": 0.2, "model__bias_init": 2.0}),
    ],
)
def test_loop_equals_a_plain_one(optimiser, loss, changes, tmp_path):
    recipe = make_recipe(optimiser, loss, **changes)
    run(recipe, tmp_path, device="cpu")
    expected, losses = train_plainly(recipe)
    folder = tmp_path / recipe.run_id
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert [row["lr"] for row in rows] == pytest.approx(RATES)
    assert [row["loss"] for row in rows] == pytest.approx(losses, rel=1e-4)
    weights = load_file(folder / "final.safetensors")
    for name, parameter in expected.items():
        assert torch.allclose(weights[name], parameter, atol=2e-5), name


@pytest.mark.parametrize("sizes", [(10,), (7, 3), (5, 5), (10, 0)])
def test_objective_of_the_shares_averages_to_the_whole(sizes):
    torch.manual_seed(0)
    model = create("mlp-24", 10, in_channels=5, image_size=1, bias_init=1.0)
    x, y = torch.randn(10, 5), torch.arange(10)
    objective = Objective(model, BCELoss(), DecaySpec(**DECAYS), weight_decay=0.04, world=len(sizes))
    parts = [objective(a, b, 10) for a, b in zip(x.split(sizes), y.split(sizes))]
    whole, loss = write_out(model, x, y, "bce")
    whole = whole + 0.02 * sum((p**2).sum() for p in model.parameters())
    assert sum(part[0].item() for part in parts) / len(sizes) == pytest.approx(whole.item(), rel=1e-5)
    assert sum(part[1].item() for part in parts) / len(sizes) == pytest.approx(loss.item(), rel=1e-5)
