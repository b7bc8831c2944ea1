"""What recipes build: every one trains a step; data and settings that do not fit are named by the recipe's key."""

import numpy as np
import pytest
import torch

from ncollapse.runs.folder import RunFolder
from ncollapse.theory import predict
from ncollapse.train import recipes, run
from ncollapse.train.build import build_model, load_splits, make_loaders
from ncollapse.train.distributed import World
from ncollapse.train.loop import prepare


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("toy") / "toy.npz"
    images = rng.integers(0, 256, (40, 3, 8, 8), dtype=np.uint8)
    labels = np.arange(40) % 10
    np.savez(path, images=images, labels=labels, test_images=images[:20], test_labels=labels[:20])
    return f"npz:{path}"


@pytest.mark.parametrize("name", recipes.NAMES)
def test_every_recipe_builds_and_trains_a_step(name, toy, tmp_path):
    recipe = recipes.get(name)
    changes = {"data__name": toy, "data__image_size": None, "data__channels": None, "optim__batch_size": 4}
    if recipe.data.per_class_counts:
        changes["data__per_class_counts"] = [1, 1, 2, 2, 2, 2, 3, 3, 4, 4]
    if recipe.data.long_tail:
        changes["data__long_tail"] = 4.0
    if recipe.augment.resized_crop:
        changes["augment__resized_crop"] = 0.0
    if recipe.data.validation:
        changes["data__validation"] = 0.25
    if recipe.optim.name == "lbfgs":  # hundreds of passes a step: a smaller network of the same kind
        changes |= {"model__name": "resnet32", "model__stem": "small"}
    recipe = recipe.override(**changes)
    ready = prepare(recipe, RunFolder(tmp_path), World(0, 1, torch.device("cpu")), None, None, None)
    before = {key: value.clone() for key, value in ready.model.named_parameters()}
    x, y = next(iter(ready.loaders.train.epoch(1)))
    ready.step(x, y, len(x))
    loss, finite = ready.tally.read()
    assert finite == 1
    assert loss > 0
    moved = [key for key, value in ready.model.named_parameters() if not torch.equal(value, before[key])]
    assert "head.weight" in moved
    assert len(moved) > 0.9 * len(before)


def test_images_that_are_not_square_are_trained_on(tmp_path):
    labels = np.arange(20) % 2
    images = np.random.default_rng(0).integers(0, 256, (20, 5, 7, 3), dtype=np.uint8)
    np.savez(tmp_path / "wide.npz", images=images, labels=labels)
    recipe = recipes.get("digits").override(data__name=f"npz:{tmp_path / 'wide.npz'}", optim__epochs=1)
    assert run(recipe, tmp_path / "runs", device="cpu")["status"] == "finished"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__per_class_counts": (10, 20)}, r"data.per_class_counts = \(10, 20\): counts: expected 10 numbers"),
        (
            {"data__long_tail": 5.0, "model__bias_init": "theory"},
            "model.bias_init = 'theory': no closed form is known for bce with unequal",
        ),
        ({"model__head": "etf", "model__bias_init": "theory"}, "model.bias_init = 'theory': .* needs a problem"),
    ],
)
def test_what_is_refused_names_the_recipe_s_key(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        run(recipes.get("digits").override(**changes), tmp_path, device="cpu")


def test_a_network_with_fewer_features_than_classes_starts_at_the_bias_of_its_own_problem():
    recipe = recipes.get("digits").override(model__name="mlp-5", model__bias_init="theory")
    world = World(0, 1, torch.device("cpu"))
    loaders = make_loaders(recipe, load_splits(recipe, None), world)
    model, problem = build_model(recipe, loaders, world)
    assert problem.dim == 5
    best = predict(problem, method="numerical")
    assert model.get_classifier().bias.tolist() == pytest.approx([best.bias] * 10, rel=1e-4)
