"""The catalogue: complete, expanding to valid runs, each of which trains a step."""

from pathlib import Path

import numpy as np
import pytest
import torch

from ncollapse.data import INFO
from ncollapse.papers import publications
from ncollapse.papers.catalogue import CATALOGUE, data_names, describe_state, get_experiment, require_data
from ncollapse.papers.experiment import expand, parse_only
from ncollapse.runs.record import RunRecord
from ncollapse.train import Recipe, optimiser
from ncollapse.train.build import build_model, load_splits, make_loaders
from ncollapse.train.distributed import World
from ncollapse.train.objective import Objective
from ncollapse.train.step import EagerStep, SearchStep, Tally

IDS = {
    "bce-vs-ce": [f"table-{n}" for n in (1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13)]
    + [f"figure-{n}" for n in (2, 3, 4, 5, 6, 7, "b2")],
    "bce-vs-ce-early": ["table-1", "table-2", "table-3", "figure-2", "figure-3", "figure-4"],
    "all-losses": [f"figure-{n}" for n in range(1, 9)],
    "imbalanced-relu": [f"figure-{n}" for n in range(1, 4)],
    "mse-landscape": [f"figure-{n}" for n in range(2, 9)],
}
EXTRA = {"bce-vs-ce/k-greater-than-d", "bce-vs-ce/vit", "mse-landscape/random-labels"}
OURS = {
    f"ncollapse/{name}"
    for name in (
        "bias-init",
        "k-greater-than-d",
        "four-losses",
        "class-sizes",
        "minority-collapse",
        "narrow-bias-init",
        "three-optimisers",
        "weak-decays-first",
    )
}
COUNTS = {
    "bce-vs-ce/table-1": 48,
    "bce-vs-ce/table-3": 6,
    "bce-vs-ce/table-4": 30,
    "bce-vs-ce/table-6": 12,
    "bce-vs-ce/table-7": 12,
    "bce-vs-ce/table-8": 12,
    "bce-vs-ce/table-9": 36,
    "bce-vs-ce/table-10": 24,
    "bce-vs-ce/table-11": 32,
    "bce-vs-ce/table-12": 24,
    "bce-vs-ce/table-13": 24,
    "bce-vs-ce/figure-3": 60,
    "all-losses/figure-1": 4,
    "all-losses/figure-4": 64,
    "all-losses/figure-8": 8,
    "imbalanced-relu/figure-1": 6,
    "mse-landscape/figure-2": 0,
    "mse-landscape/figure-3": 3,
    "mse-landscape/figure-4": 14,
    "mse-landscape/figure-5": 4,
    "mse-landscape/figure-6": 8,
    "ncollapse/bias-init": 4,
    "ncollapse/k-greater-than-d": 6,
    "ncollapse/four-losses": 4,
    "ncollapse/class-sizes": 3,
    "ncollapse/minority-collapse": 9,
    "ncollapse/narrow-bias-init": 6,
    "ncollapse/three-optimisers": 3,
    "ncollapse/weak-decays-first": 10,
}


def test_every_table_and_figure_is_there():
    wanted = {f"{paper}/{item}" for paper, items in IDS.items() for item in items}
    assert set(CATALOGUE) == wanted | EXTRA | OURS
    for paper, items in IDS.items():
        assert set(publications.load(paper)) == set(items)


@pytest.mark.parametrize("name", COUNTS)
def test_the_number_of_runs(name):
    points = get_experiment(name).grid()
    assert len(points) == COUNTS[name]
    assert len({point.recipe.run_id for point in points}) == len(points)


def test_every_recipe_survives_its_file_form():
    recipes = {p.recipe.run_id: p.recipe for e in CATALOGUE.values() for p in e.grid()}
    for recipe in list(recipes.values())[::9]:
        assert Recipe.from_dict(recipe.to_dict()) == recipe


@pytest.mark.parametrize("name", [n for n, e in CATALOGUE.items() if e.item.startswith("table")])
def test_every_published_cell_has_its_run(name):
    experiment = get_experiment(name)
    points = experiment.grid()
    for cell in publications.load(experiment.paper)[experiment.item].cells:
        if cell.field.endswith(".gain"):
            continue
        assert cell.field in experiment.finals, cell
        assert any(all(p.keys.get(k) == v for k, v in cell.where.items()) for p in points), cell


def test_shared_runs_are_shared():
    table_6, table_11 = get_experiment("bce-vs-ce/table-6"), get_experiment("bce-vs-ce/table-11")
    ids = {p.recipe.run_id for p in expand(table_6, {"model": ("resnet18",)})}
    assert ids == {p.recipe.run_id for p in expand(table_11, {"batch_size": ("128",)})}
    rates = {p.keys["batch_size"]: p.recipe.optim.rate for p in expand(table_11, {"optimizer": ("adamw",)})}
    assert rates[1024] == pytest.approx(0.008)


def test_tables_9_and_10_vary_what_they_say():
    table_9, table_10 = get_experiment("bce-vs-ce/table-9").grid(), get_experiment("bce-vs-ce/table-10").grid()
    starts = {(p.keys["bias_init"], p.recipe.model.bias_init, p.recipe.decays.bias) for p in table_9}
    assert starts == {(start, float(start), 0.0) for start in (0, 1, 2, 3, 4, 5, 6, 8, 10)}
    decays = {(p.keys["bias_decay"], p.recipe.decays.bias, p.recipe.model.bias_init) for p in table_10}
    assert decays == {(decay, decay, 10.0) for decay in (0.5, 0.05, 5e-3, 5e-4, 5e-5, 5e-6)}


def test_filters_seeds_and_epochs():
    only = parse_only(["bias_decay=5e-4,5e-6", "loss=BCE"])
    points = expand(get_experiment("bce-vs-ce/table-10"), only, seeds=2, epochs=40, measure_every=5)
    assert {p.recipe.measure_every for p in points} == {5}
    assert len(points) == 2 * 2 * 2
    assert {p.recipe.optim.epochs for p in points} == {40}
    assert {p.keys["seed"] for p in points} == {0, 1}
    sgd = next(p for p in points if p.keys["optimizer"] == "sgd")
    assert sgd.recipe.schedule.milestones == (12, 24, 32)
    assert {p.recipe.model.bias_init for p in points} == {10.0}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model"], "only: expected KEY=VALUE"),
        (["depth=3"], "only: expected one of the keys batch_size, data, .* got 'depth'"),
        (["batch_size=100"], "batch_size = 16, 32"),
    ],
)
def test_filters_that_fit_nothing_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        expand(get_experiment("bce-vs-ce/table-11"), parse_only(words))


def test_unknown_experiment_names_the_nearest():
    with pytest.raises(ValueError, match="did you mean bce-vs-ce/table-6 or "):
        get_experiment("bce-vs-ce/table6")
    with pytest.raises(ValueError, match="experiment: expected an id that --list prints, got 'xyz'"):
        get_experiment("xyz")


def test_what_the_authors_commands_say_of_mse_landscape():
    """ImageNet's stem where there is no augmentation; a bias that is learned beside a fixed ETF too."""
    plain = [
        p.recipe
        for p in get_experiment("mse-landscape/figure-3").grid() + get_experiment("mse-landscape/random-labels").grid()
    ]
    augmented = [p.recipe for name in ("figure-4", "figure-5") for p in get_experiment(f"mse-landscape/{name}").grid()]
    assert {(r.model.stem, r.augment.flip) for r in plain} == {("imagenet", False)}
    assert {(r.model.stem, r.augment.flip, r.model.bias) for r in augmented} == {("small", True, True)}
    heads = [(p.recipe.model.head, p.recipe.model.feature_dim) for p in get_experiment("mse-landscape/figure-5").grid()]
    assert heads == [("linear", 512), ("etf", 512), ("linear", 10), ("etf", 10)]
    assert all(p.recipe.model.bias for p in get_experiment("all-losses/figure-1").grid())


def test_shortened_schedules_keep_their_shape():
    recipe = get_experiment("mse-landscape/figure-3").grid()[0].recipe
    assert recipe.schedule.period == 40
    assert recipe.with_epochs(50).schedule.period == 10
    assert get_experiment("all-losses/figure-1").grid()[0].recipe.with_epochs(10).schedule.milestones == (3 / 7, 5 / 7)


def finish(recipe):
    """A finished run of a recipe."""
    return RunRecord(Path(recipe.run_id), recipe.run_id, recipe.to_dict(), status="finished")


def fill(root, name, *left_out):
    """Make the files of a data set, empty."""
    folder = root / INFO[name].folders[0]
    folder.mkdir(parents=True, exist_ok=True)
    for file in set(INFO[name].files) - set(left_out):
        (folder / file).touch()


def test_one_error_names_every_missing_file_before_anything_starts(tmp_path):
    recipes = [
        p.recipe for name in ("table-6", "table-7", "table-8") for p in get_experiment(f"bce-vs-ce/{name}").grid()
    ]
    fill(tmp_path, "mnist", "t10k-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")
    fill(tmp_path, "cifar10", "data_batch_3")
    with pytest.raises(FileNotFoundError) as caught:
        require_data(recipes, tmp_path)
    text = str(caught.value)
    assert "mnist: train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz not found in" in text
    assert "cifar10: data_batch_3 not found in" in text
    assert "cifar100" in text
    (tmp_path / INFO["mnist"].folders[0] / "t10k-images-idx3-ubyte").touch()  # unpacked
    fill(tmp_path, "mnist", "t10k-images-idx3-ubyte.gz")
    require_data(recipes[:12], tmp_path)


def test_the_state_is_told(tmp_path):
    points = get_experiment("bce-vs-ce/table-6").grid()
    assert data_names(points) == ("mnist",)
    assert describe_state(points, [], tmp_path) == "data missing"
    fill(tmp_path, "mnist")
    assert describe_state(points, [], tmp_path) == "not run"
    records = []
    for done, point in enumerate(points, 1):
        records.append(finish(point.recipe.override(seed=done)))
        expected = "done here" if done == len(points) else f"partly {done}/{len(points)}"
        assert describe_state(points, records, None) == expected
    records[0] = finish(points[0].recipe.with_epochs(10))
    assert describe_state(points, records, None) == "partly 12/12, 1 short"
    assert describe_state(points, records[:1], None) == "partly 1/12 short"
    assert describe_state([], [], None) == "computed"
    fill(tmp_path, "cifar10")
    assert describe_state(get_experiment("bce-vs-ce/table-1").grid(), [], tmp_path) == "data missing (cifar100)"


def representatives():
    """Of all points one for each combination of network, head, loss, optimiser, subset and augmentation, small ones."""
    chosen = {}
    for experiment in CATALOGUE.values():
        for point in experiment.grid():
            r = point.recipe
            wide = r.model.name.startswith("wide-") and not r.model.name.endswith("-0.25")
            if not wide:
                few = r.model.feature_dim is not None and r.model.feature_dim < 100  # K > d, among others
                mixes = (
                    r.augment.mixup > 0,
                    r.data.random_labels,
                    r.data.long_tail,
                    r.model.bias_init == "theory",
                    few,
                )
                chosen.setdefault((r.model.name, r.model.head, r.loss.name, r.optim.name, *mixes), point)
    names = {}
    for point in chosen.values():  # of the large networks one is enough
        r = point.recipe
        if names.setdefault(r.model.name, 0) < {"resnet18": 99, "wide-resnet50-0.25": 4}.get(r.model.name, 1):
            names[r.model.name] += 1
            yield pytest.param(r, id=f"{r.model.name}-{r.loss.name}-{r.optim.name}-{len(names)}-{names[r.model.name]}")


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    """Tiny random images of 10, 100 and 1000 classes."""
    folder, rng = tmp_path_factory.mktemp("toys"), np.random.default_rng(0)
    for classes, copies in ((10, 6), (100, 2), (1000, 1)):
        labels = np.tile(np.arange(classes), copies)
        images = rng.integers(0, 256, (len(labels), 3, 8, 8), dtype=np.uint8)
        arrays = {"images": images, "labels": labels, "test_images": images[:2], "test_labels": labels[:2]}
        np.savez(folder / f"{classes}.npz", **arrays)
    return folder


@pytest.mark.parametrize("recipe", list(representatives()))
def test_trains_a_step_on_toy_data(recipe, toys):
    classes = {"imagenet": 1000, "cifar100": 100, "mini-imagenet": 100}.get(recipe.data.name, 10)
    few = None if recipe.data.per_class_counts is None else (1, 1, 2, 2, 3, 3, 4, 4, 5, 5)
    toy = recipe.override(
        data__name=f"npz:{toys / f'{classes}.npz'}",
        data__image_size=16 if recipe.model.name == "densenet121-small" else None,  # it halves four times
        data__channels=None,
        data__per_class_counts=few,
        data__long_tail=None if recipe.data.long_tail is None else 2.0,
        select="last",
        data__validation=0.0,
        model__weights=None,
        model__stem="small",
        augment__resized_crop=0.0,
        optim__batch_size=4,
    )
    if toy.optim.name == "lbfgs":  # its many evaluations of a large network would take half a minute
        toy = toy.override(model__name="mlp-small")
    world = World(0, 1, torch.device("cpu"))
    loaders = make_loaders(toy, load_splits(toy, None), world)
    model, _ = build_model(toy, loaders, world)
    solver = optimiser.make(toy.optim, model)
    objective = Objective(model, toy.loss.make(), toy.decays, precision="fp32", weight_decay=0.0, world=1)
    tally = Tally(world.device)
    step = (SearchStep if toy.optim.name == "lbfgs" else EagerStep)(objective, solver, toy.optim, tally)
    before = [p.detach().clone() for p in model.parameters()]
    x, y = next(iter(loaders.train.epoch(1)))
    step(x, y, len(y))
    loss, finite = tally.read()
    assert finite == 1
    assert np.isfinite(loss)
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters()))


def test_the_densenet_of_bce_vs_ce_is_its_authors():
    points = [p for p in get_experiment("bce-vs-ce/table-6").grid() if p.keys["model"] == "densenet121"]
    assert points
    assert {p.recipe.model.name for p in points} == {"densenet121-small"}
