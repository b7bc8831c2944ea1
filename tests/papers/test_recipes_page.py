"""docs/recipes.md says which settings a paper states and which are ours, as the recipes have them."""

from pathlib import Path

import pytest

from ncollapse.papers import publications
from ncollapse.papers.publications import PAPERS
from ncollapse.train import recipes

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "recipes.md").read_text()


def read_row(name):
    """What the table says of a recipe: stated by the paper, from the authors' code, ours."""
    rows = [line for line in TEXT.splitlines() if line.startswith("| `") and f"`{name}`" in line.split("|")[1]]
    (row,) = rows or [
        line for line in TEXT.splitlines() if line.startswith("| `") and f"/{name.partition('/')[2]}`" in line
    ]
    return [cell.strip() for cell in row.split("|")[3:6]]


def test_the_printed_biases_of_bce_are_those_of_the_page():
    found = {"sgd": {}, "adamw": {}}
    for table in ("table-12", "table-13"):
        for cell in publications.load("bce-vs-ce")[table].cells:
            if cell.field == "train.bias" and cell.where["loss"] == "bce":
                found[cell.where["optimizer"]][tuple(cell.where.values())] = cell.value
    (least,) = [key for key, value in found["sgd"].items() if value == min(found["sgd"].values())]
    assert {"cifar10", "resnet50", "DA1+DA2"} <= set(least)
    said = " ".join(TEXT.split())
    assert f"ResNet50 on CIFAR-10 with SGD, mixup and CutMix has {found['sgd'].pop(least):.2f}." in said
    for name, words in (("sgd", "SGD"), ("adamw", "AdamW")):
        low, high = min(found[name].values()), max(found[name].values())
        assert f"{low:.2f} to {high:.2f} with {words}" in said


@pytest.mark.parametrize("name", [name for name in recipes.NAMES if name.split("/")[0] in PAPERS[2:]])
def test_the_precision_is_named_as_ours(name):
    stated, _, ours = read_row(name)
    assert recipes.get(name).precision in ours
    assert "bf16" not in stated


def test_what_the_papers_do_not_state_of_mini_imagenet_is_ours():
    stated, _, ours = read_row("mse-landscape/mini-imagenet")
    assert "the first after 200 epochs" in stated
    others = read_row("all-losses")[2]
    for words in (ours, others):
        assert "images of 84 x 84, the small stem, crop and flip" in words
    assert "200 epochs in all" in ours
    for recipe in (recipes.get("mse-landscape/mini-imagenet"), recipes.get("all-losses", data="mini-imagenet")):
        assert (recipe.data.image_size, recipe.model.stem) == (84, "small")
        assert recipe.augment.crop
        assert recipe.augment.flip
    assert "all-losses does not state its split" in (ROOT / "docs" / "data.md").read_text()


def test_misprints_and_readings_are_named():
    assert "printed 5×10⁴ and read as 5e-4" in read_row("all-losses")[0]
    stated, _, ours = read_row("bce-vs-ce/setting-3")
    assert "B.3, which names no data set" in stated
    assert "that accuracy is of the test set" in ours
    assert recipes.get("bce-vs-ce/setting-3").select == "best-test"
