"""Recipes: checked, hashed, read and written."""

import json
import re
import tomllib
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
import torch

from ncollapse.commands.field_help import field_help
from ncollapse.data import Augment
from ncollapse.theory import predict
from ncollapse.train import DataSpec, DecaySpec, OptimSpec, Recipe, ScheduleSpec, recipes
from ncollapse.train.changes import parse_augment
from ncollapse.train.schedule import milestones, rate_at
from ncollapse.train.theory import count_samples, mean_batch


@pytest.mark.parametrize("name", recipes.NAMES)
def test_every_recipe_survives_both_formats(name):
    recipe = recipes.get(name)
    assert recipe.name == name
    assert Recipe.from_json(recipe.to_json()) == recipe
    again = Recipe.from_dict(tomllib.loads(recipe.to_toml()))
    assert again == recipe
    assert again.run_id == recipe.run_id


def test_run_id_is_of_the_configuration_alone():
    recipe = recipes.get("digits")
    assert len(recipe.run_id) == 12
    assert recipe.override(name="other").run_id == recipe.run_id
    assert recipe.override(seed=1).run_id != recipe.run_id
    ints = Recipe(schedule=ScheduleSpec("step", milestones=(30, 60)))
    assert ints.run_id == Recipe(schedule=ScheduleSpec("step", milestones=(30.0, 60.0))).run_id
    assert len({recipes.get(name).run_id for name in recipes.NAMES}) == len(recipes.NAMES)
    late = recipe.override(schedule__lag=1)
    assert late.run_id != recipe.run_id


def test_run_ids_of_kept_records_are_those_of_their_recipes():
    """Also of those from before recipes could say all that they say now."""
    folders = [file.parent for file in (Path(__file__).parents[2] / "results" / "runs").glob("*/config.json")]
    assert len(folders) > 70
    configs = {folder.name: json.loads((folder / "config.json").read_text()) for folder in folders}
    assert {Recipe.from_dict(config).run_id for config in configs.values()} == set(configs)
    assert any("lag" not in config["schedule"] for config in configs.values())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"optim": {"lrr": 0.1}}, ("optim.lrr", "optim.lr")),
        ({"optims": {}}, ("optims", "optim")),
        ({"optim": 3}, ("optim", "table")),
        ({"optim": {"lr": -1.0}}, ("optim.lr", "-1.0", "> 0")),
        ({"schedule": {"lag": -1}}, ("schedule.lag", "-1", ">= 0")),
        ({"optim": {"lr": "fast"}}, ("optim.lr: expected a number, got 'fast'",)),
        ({"optim": {"epochs": 2.5}}, ("optim.epochs: expected an integer, got 2.5",)),
        ({"optim": {"name": "sgdd"}}, ("optim.name: expected one of 'sgd', 'adam', 'adamw', 'lbfgs', got 'sgdd'",)),
        ({"loss": {"name": "cee"}}, ("loss.name", "cee", "bce")),
        ({"data": {"name": "cifar11"}}, ("data.name", "cifar11", "cifar10", "npz:PATH")),
        ({"data": {"name": "npz:"}}, ("data.name", "npz:PATH")),
        ({"data": {"image_size": 0}}, ("data.image_size", "0")),
        ({"model": {"name": "resnet19"}}, ("model.name", "resnet19", "resnet18", "timm:NAME")),
        ({"loss": {"name": "ce", "gamma": 3.0}}, ("loss", "gamma")),
        ({"model": {"bias_init": "prior"}}, ("model.bias_init: expected a number or 'theory', got 'prior'",)),
        ({"data": {"long_tail": 10.0, "samples_per_class": 3}}, ("data.samples_per_class", "data.long_tail")),
        ({"data": {"validation": 1.0}}, ("data.validation", "1.0")),
        ({"select": "best-validation"}, ("data.validation", "best-validation")),
        ({"schedule": {"name": "restarts"}}, ("schedule.period",)),
        ({"decays": {"feature": -1e-4}}, ("decays.feature",)),
        ({"decays": {"weak_epochs": 2.5}}, ("decays.weak_epochs: expected an integer, got 2.5",)),
        ({"decays": {"weight": 1e-3, "weak_epochs": 100}}, ("decays.weak_epochs", "100", "optim.epochs")),
        ({"augment": {"crop": -1}}, ("augment.crop", "-1")),
        ({"precision": "fp8"}, ("precision", "fp8")),
        ({"schedule": {"name": "step", "milestones": [float("inf")]}}, ("schedule.milestones", "finite")),
        ({"schedule": {"name": "step", "milestones": [0.5, 3.5]}}, ("schedule.milestones", "whole epochs")),
        ({"schedule": {"name": "cosine", "min_lr": float("inf")}}, ("schedule.min_lr", "finite")),
        ({"schedule": {"name": "step", "period": 3, "factor": float("nan")}}, ("schedule.factor", "finite")),
        ({"seed": 10**23}, ("seed", "64 bits")),
        ({"data": {"seed": -(2**63)}}, ("data.seed", "64 bits")),
        ({"data": {"draw": "last"}}, ("data.draw: expected one of 'random', 'first', got 'last'",)),
    ],
)
def test_bad_content_is_named(content, words):
    with pytest.raises(ValueError, match="recipe") as caught:
        Recipe.from_dict(content)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("key", "bad", "good"),
    [
        ("data.validation", -1e-9, 0.0),
        ("data.validation", 1.0, 0.999),
        ("data.samples_per_class", 0, 1),
        ("data.step_imbalance", 0.999, 1.0),
        ("data.long_tail", 0.999, 1.0),
        ("optim.lr", 0.0, 1e-9),
        ("optim.momentum", -1e-9, 0.0),
        ("optim.momentum", 1.0, 0.999),
        ("optim.epochs", 0, 1),
        ("optim.batch_size", 0, 1),
        ("optim.weight_decay", -1e-9, 0.0),
        ("optim.clip_norm", 0.0, 1e-9),
        ("schedule.factor", 0.0, 1e-9),
        ("schedule.min_lr", -1e-9, 0.0),
        ("schedule.period", 0, 1),
        ("schedule.lag", -1, 0),
        ("decays.weight", -1e-9, 0.0),
        ("decays.feature", -1e-9, 0.0),
        ("decays.bias", -1e-9, 0.0),
        ("decays.weak_epochs", -1, 0),
        ("decays.weak_share", -1e-9, 0.0),
        ("decays.weak_share", 1.001, 1.0),
        ("measure_every", 0, 1),
    ],
)
def test_bounds_are_where_they_are_said_to_be(key, bad, good):
    def make(value):
        room, _, name = key.rpartition(".")
        return Recipe.from_dict({room: {name: value}} if room else {name: value})

    with pytest.raises(ValueError, match=rf"^recipe: {key}: expected .*, got {re.escape(repr(bad))}"):
        make(bad)
    assert make(good)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optim__lr": "fast"}, "recipe: optim.lr: expected a number, got 'fast'"),
        ({"augment__flip": 3}, "recipe: augment.flip: expected true or false, got 3"),
        ({"precision": "fp8"}, "recipe: precision: expected one of 'fp32', 'tf32', 'bf16', got 'fp8'"),
        ({"model__bias_init": "prior"}, "recipe: model.bias_init: expected a number or 'theory', got 'prior'"),
        ({"model__bias_init": True}, "recipe: model.bias_init: expected a number or 'theory', got True"),
    ],
)
def test_a_bad_override_is_named_as_in_a_file(changes, message):
    with pytest.raises(ValueError, match="recipe") as caught:
        Recipe().override(**changes)
    assert str(caught.value) == message
    assert Recipe().override(model__bias_init=2).model.bias_init == 2.0


def test_an_override_of_nothing_is_named():
    with pytest.raises(ValueError, match=r"optimm is not a key; did you mean optim\?"):
        Recipe().override(optimm__lr=1.0)
    with pytest.raises(ValueError, match=r"optim\.rate is not a key"):
        Recipe().override(optim__rate=1.0)
    with pytest.raises(ValueError, match="recipe: seed: "):
        Recipe().override(seed__x=1.0)
    with pytest.raises(ValueError, match=r"optim\.lr: expected double underscores for dots, as in optim__lr"):
        Recipe().override(**{"optim.lr": 1.0})


def test_shares_of_the_epochs_are_whole_epochs():
    recipe = Recipe(schedule=ScheduleSpec("step", milestones=(0.29, 0.57, 3 / 7)), optim=OptimSpec(epochs=100))
    assert milestones(recipe) == (29, 57, 42)


def test_files(tmp_path):
    recipe = recipes.get("digits").override(optim__lr=0.05, data__per_class_counts=[3] * 10)
    (tmp_path / "a.toml").write_text(recipe.to_toml())
    (tmp_path / "a.json").write_text(recipe.to_json())
    assert Recipe.from_file(tmp_path / "a.toml") == Recipe.from_file(tmp_path / "a.json") == recipe
    for suffix in ("toml", "json"):  # as Notepad and PowerShell write them
        (tmp_path / f"mark.{suffix}").write_bytes(b"\xef\xbb\xbf" + (tmp_path / f"a.{suffix}").read_bytes())
        assert Recipe.from_file(tmp_path / f"mark.{suffix}") == recipe
    (tmp_path / "b.toml").write_text("optim = {lr = }")
    with pytest.raises(ValueError, match=r"b\.toml"):
        Recipe.from_file(tmp_path / "b.toml")
    (tmp_path / "c.json").write_text("[1]")
    with pytest.raises(ValueError, match="table"):
        Recipe.from_file(tmp_path / "c.json")
    (tmp_path / "d.json").write_text('{"optim": {"lr": 0.5}, "optim": {"epochs": 1}}')
    with pytest.raises(ValueError, match=r"d\.json: optim is there twice"):
        Recipe.from_file(tmp_path / "d.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"schedule": {"milestones": 3}}, "recipe: schedule.milestones: expected a list, got 3"),
        ({"schedule": {"milestones": "30"}}, "recipe: schedule.milestones: expected a list, got '30'"),
        ({"data": {"per_class_counts": 3}}, "recipe: data.per_class_counts: expected a list, got 3"),
    ],
)
def test_a_number_in_the_place_of_a_list_is_named(content, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Recipe.from_dict(content)
    assert Recipe.from_dict({"data": {"per_class_counts": None}}) == Recipe()


def test_unknown_recipe_lists_the_known():
    with pytest.raises(ValueError, match="digits"):
        recipes.get("digitss")


def test_a_choice_brings_what_goes_with_it():
    setting = recipes.choose("bce-vs-ce/setting-4", loss="ce", data="mnist", model="resnet50")
    assert setting == recipes.get("bce-vs-ce/setting-4", loss="ce", data="mnist", model="resnet50")
    assert (setting.data.image_size, setting.data.channels, setting.model.bias_init) == (32, 3, 0.0)
    assert recipes.choose("bce-vs-ce/setting-4", data="cifar100").augment.rotation == 15
    assert recipes.choose("bce-vs-ce/imagenet", loss="ce").model.bias_init == 0
    mse = recipes.choose("all-losses", loss="mse", data="mini-imagenet", model="resnet50")
    assert (mse.loss.kappa, mse.loss.beta, mse.model.name, mse.data.image_size) == (1, 15, "wide-resnet18-2", 84)
    assert recipes.choose("mse-landscape/sgd", loss="ce", data="mnist") == recipes.get("mse-landscape/sgd", loss="ce")


def test_the_mse_of_the_papers_code_is_that_of_torch():
    """Averaged over classes, not halved; the paper's equations sum and halve, which diverges at the printed rate."""
    logits, target = torch.tensor([[0.2, -1.0, 3.0], [1.0, 0.5, 0.0]]), torch.tensor([2, 0])
    one_hot = torch.nn.functional.one_hot(target, 3).float()
    for name in ("mse-landscape/sgd", "mse-landscape/augmented", "mse-landscape/lbfgs"):
        loss = recipes.get(name).loss.make()
        assert float(loss(logits, target)) == pytest.approx(float(torch.nn.functional.mse_loss(logits, one_hot)))
    rescaled = recipes.get("all-losses", loss="mse").loss.make()
    expected = float(torch.nn.functional.mse_loss(logits, 15 * one_hot))
    assert float(rescaled(logits, target)) == pytest.approx(expected)


def test_the_long_tail_as_printed_and_as_cited():
    printed, cited = recipes.get("bce-vs-ce/long-tail"), recipes.get("bce-vs-ce/long-tail-cited", loss="ce")
    assert (printed.model.name, cited.model.name) == ("resnet32", "resnet34")
    assert (cited.optim.batch_size, cited.optim.epochs, cited.optim.weight_decay) == (64, 320, 5e-3)
    assert (cited.schedule.name, cited.select, cited.model.bias_init) == ("cosine", "best-test", 0.0)
    assert printed.data.long_tail == cited.data.long_tail == 100


def test_settings_of_table_5():
    one, two = (recipes.get(f"bce-vs-ce/setting-{i}") for i in (1, 2))
    assert (one.optim.name, one.optim.lr, one.schedule.name) == ("sgd", 0.01, "step")
    assert (two.optim.name, two.optim.lr, two.schedule.name) == ("adamw", 0.001, "cosine")
    assert one.decays == two.decays == DecaySpec(5e-4, 5e-4, 5e-4)
    assert one.optim.weight_decay == 0
    assert (one.augment.crop, one.augment.flip, one.select) == (0, False, "last")
    three, four = (recipes.get(f"bce-vs-ce/setting-{i}", data="cifar100") for i in (3, 4))
    assert (three.optim.weight_decay, four.optim.weight_decay) == (5e-4, 0.05)
    assert three.decays == DecaySpec()
    assert (three.augment.crop, three.augment.flip, three.augment.rotation) == (4, True, 15.0)
    assert recipes.get("bce-vs-ce/setting-3").augment.rotation == 0
    assert (three.model.bias_init, recipes.get("bce-vs-ce/setting-3", loss="ce").model.bias_init) == (6.0, 0.0)
    six = recipes.get("bce-vs-ce/setting-6").augment
    assert (six.mixup, six.cutmix, six.mix_probability, six.label_smoothing) == (0.8, 1.0, 1.0, 0.1)
    assert recipes.get("bce-vs-ce/setting-2").override(optim__batch_size=512).optim.rate == pytest.approx(0.004)


def test_settings_of_bce_vs_ce_lag_an_epoch():
    """The authors' loop tells its scheduler, after each epoch, the epoch just done."""
    for setting in range(1, 7):
        recipe = recipes.get(f"bce-vs-ce/setting-{setting}")
        assert recipe.schedule.lag == 1
        at_once = recipe.override(schedule__lag=0)
        assert rate_at(recipe, 1) == rate_at(at_once, 1)
        assert [rate_at(recipe, e) for e in range(2, 101)] == [rate_at(at_once, e) for e in range(1, 100)]
    assert recipes.get("all-losses").schedule.lag == 0


def test_rates_against_torch_schedulers():
    from torch import nn
    from torch.optim import SGD, lr_scheduler

    def follow(recipe, make):
        optimiser = SGD(nn.Linear(1, 1).parameters(), lr=recipe.optim.rate)
        scheduler = make(optimiser)
        for epoch in range(1, recipe.optim.epochs + 1):
            assert rate_at(recipe, epoch) == pytest.approx(optimiser.param_groups[0]["lr"], rel=1e-9), epoch
            optimiser.step()
            if epoch > recipe.schedule.lag:
                scheduler.step()

    follow(recipes.get("bce-vs-ce/setting-1"), lambda o: lr_scheduler.MultiStepLR(o, [30, 60, 80], 0.2))
    follow(recipes.get("all-losses"), lambda o: lr_scheduler.MultiStepLR(o, [342, 571], 0.1))
    follow(recipes.get("mse-landscape/sgd"), lambda o: lr_scheduler.StepLR(o, 40, 0.1))
    follow(recipes.get("bce-vs-ce/setting-2"), lambda o: lr_scheduler.CosineAnnealingLR(o, 100, 1e-5))
    restarts = Recipe(optim=OptimSpec(epochs=25), schedule=ScheduleSpec("restarts", period=10, min_lr=1e-4))
    follow(restarts, lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 10, eta_min=1e-4))


def test_problem_where_theory_applies():
    problem = recipes.get("bce-vs-ce/setting-2", data="mnist").problem(num_classes=10)
    assert (problem.loss.name, problem.num_classes, problem.per_class, problem.features) == ("bce", 10, 12.8, "relu")
    assert (problem.weight_decay, problem.feature_decay, problem.bias_decay) == (5e-4, 5e-4, 5e-4)
    assert recipes.get("bce-vs-ce/setting-3").problem(num_classes=10) is None
    assert recipes.get("bce-vs-ce/setting-2").override(model__head="etf").problem(num_classes=10) is None
    assert recipes.get("digits").override(optim__weight_decay=1e-4).problem() is None
    assert recipes.get("digits").problem().num_classes == 10
    free = recipes.get("digits").override(model__feature_dim_linear=20).problem()
    assert (free.features, free.dim) == ("free", 20)
    imbalanced = recipes.get("imbalanced-relu/mlp-1024").problem()
    assert not imbalanced.bias
    assert imbalanced.counts == pytest.approx(
        [32 * n / 3000 for n in (100, 100, 200, 200, 300, 300, 400, 400, 500, 500)]
    )


def test_the_short_last_batch_counts_for_the_problem():
    """Averaged over which samples fall into the short batch, an epoch's steps minimise the problem of N / S."""
    generator = torch.Generator().manual_seed(0)
    samples, size, decay = 23, 10, 0.1
    logits, features = torch.randn(samples, 4, generator=generator), torch.randn(samples, 3, generator=generator)
    labels = torch.randint(4, (samples,), generator=generator)
    steps = []
    for shift in range(samples):
        for rows in ((torch.arange(samples) + shift) % samples).split(size):
            loss = torch.nn.functional.cross_entropy(logits[rows], labels[rows])
            steps.append(loss + decay / 2 * features[rows].square().sum())
    whole = torch.nn.functional.cross_entropy(logits, labels)
    batch = mean_batch(samples, size)
    assert batch == pytest.approx(23 / 3)
    assert torch.stack(steps).mean().item() == pytest.approx(
        (whole + decay / 2 * batch / samples * features.square().sum()).item(), rel=1e-6
    )
    recipe = recipes.get("bce-vs-ce/setting-2", loss="ce", data="mnist").override(optim__batch_size=512)
    assert recipe.problem().batch_size == 512
    assert recipe.problem(class_counts=(6000,) * 10).batch_size == recipe.problem(samples=60_000).batch_size
    energy = predict(recipe.problem(samples=60_000)).weight_energy  # the paper's table 11 has 375.4274
    assert energy == pytest.approx(375.4274, rel=1e-4)
    assert predict(recipe.problem()).weight_energy == pytest.approx(376.4629, rel=1e-4)


@pytest.mark.parametrize(
    ("subset", "samples"),
    [
        ({}, 50_000),
        ({"validation": 0.1}, 45_000),
        ({"samples_per_class": 7}, 700),
        ({"per_class_counts": [3] * 99 + [4]}, 301),
        ({"long_tail": 100.0}, 10_847),
        ({"step_imbalance": 10.0}, 27_500),
    ],
)
def test_the_number_of_samples_follows_from_the_recipe(subset, samples):
    recipe = recipes.get("bce-vs-ce/setting-1", data="cifar100")
    assert count_samples(recipe.override(**{f"data__{key}": value for key, value in subset.items()}).data) == samples
    assert count_samples(DataSpec("gaussian")) is None


def test_config_is_plain_json():
    content = json.loads(Recipe(data=DataSpec(per_class_counts=(1, 2))).to_json())
    assert content["data"]["per_class_counts"] == [1, 2]


def test_the_reduction_over_classes_enters_the_run_id_only_when_set():
    plain = Recipe().override(loss__name="mse")
    assert plain.override(loss__class_reduction="mean").run_id != plain.run_id
    assert "class_reduction" not in plain.to_json()
    assert plain.run_id == "f1dfa02f0793"
    assert plain.override(loss__class_reduction="mean").loss.make().class_reduction == "mean"
    with pytest.raises(ValueError, match="class_reduction"):
        plain.override(loss__name="ce", loss__class_reduction="mean")


def all_specs():
    recipe = Recipe()
    return [
        recipe,
        *(getattr(recipe, item.name) for item in fields(recipe) if is_dataclass(getattr(recipe, item.name))),
    ]


@pytest.mark.parametrize("spec", all_specs(), ids=lambda spec: type(spec).__name__)
def test_every_field_has_a_help_text(spec):
    plain = [item.name for item in fields(spec) if not is_dataclass(getattr(spec, item.name))]
    assert set(field_help(type(spec))) == set(plain)
    assert all(text.endswith(".") and len(text) > 10 for text in field_help(type(spec)).values())


def test_normalisation_counts_only_where_it_is_chosen():
    recipe = recipes.get("digits")
    assert recipe.override(data__normalise="auto").run_id == recipe.run_id
    assert recipe.override(data__normalise="none").run_id != recipe.run_id


def test_normalisation_reaches_the_network():
    from ncollapse.train.build import load_splits, make_loaders
    from ncollapse.train.distributed import World

    world = World(0, 1, torch.device("cpu"))
    seen = {}
    for word in ("auto", "recipe", "none", "0.5/0.25"):
        recipe = recipes.get("digits").override(data__normalise=word)
        loaders = make_loaders(recipe, load_splits(recipe, None), world)
        seen[word] = next(iter(loaders.measured["test"]))[0]
    assert torch.equal(seen["auto"], seen["recipe"])
    mean, std = 0.3058, 0.3759
    torch.testing.assert_close(seen["auto"], (seen["none"] - mean) / std)
    torch.testing.assert_close(seen["0.5/0.25"], (seen["none"] - 0.5) / 0.25)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["none"], Augment()),
        (["standard"], Augment(crop=4, flip=True)),
        (["standard", "flip=false", "crop=2"], Augment(crop=2)),
        (["rotation=15", "label-smoothing=0.1"], Augment(rotation=15.0, label_smoothing=0.1)),
    ],
)
def test_augmentation_in_words(words, found):
    assert parse_augment(words) == found
