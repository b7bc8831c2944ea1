"""Weak decays at first: every kind of step against a plain float64 loop, resumed runs, and what stays as it was."""

import copy
import json
import math
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from ncollapse.losses import make_loss
from ncollapse.models import create
from ncollapse.runs.identity import point_key
from ncollapse.theory import Problem, certify, decay_alone
from ncollapse.train import DecaySpec, Recipe, loop, optimiser, recipes, run, state, step
from ncollapse.train.backend import own_stream, switches
from ncollapse.train.build import build_model, load_splits, make_loaders
from ncollapse.train.casting import CastFeatures
from ncollapse.train.distributed import World
from ncollapse.train.initial_values import share_left
from ncollapse.train.objective import Objective
from ncollapse.train.perceptron import PerceptronStep
from ncollapse.train.recipe import OptimSpec

CPU = torch.device("cpu")
WEAK, SHARE = 2, 0.2
DECAYS = {"weight": 6e-3, "feature": 4e-3, "bias": 5e-2}


def make_recipe(**changes):
    plain = {"model__name": "mlp-24", "data__samples_per_class": 11, "optim__epochs": 5, "optim__batch_size": 48}
    plain |= {f"decays__{name}": value for name, value in DECAYS.items()}
    plain |= {"decays__weak_epochs": WEAK, "decays__weak_share": SHARE}
    return recipes.get("digits", loss="ce").override(**(plain | changes))


def weights_of(out, recipe):
    return load_file(out / recipe.run_id / "final.safetensors")


def load(recipe):
    loaders = make_loaders(recipe, load_splits(recipe, None), World(0, 1, CPU))
    return loaders, build_model(recipe, loaders, World(0, 1, CPU))[0]


def train_plainly(recipe):
    """The parameters after training in float64 by torch's own optimisers, the decays of each epoch written out."""
    loaders, model = load(recipe)
    model, spec = model.double(), recipe.optim
    weights = list(model.parameters())
    kinds = {
        "sgd": lambda: torch.optim.SGD(weights, spec.lr, momentum=spec.momentum),
        "adamw": lambda: torch.optim.AdamW(weights, spec.lr, weight_decay=spec.weight_decay),
    }
    solver = kinds[spec.name]()
    for epoch in range(1, spec.epochs + 1):
        times = 0.5 * (SHARE if epoch <= WEAK else 1.0)
        for x, y in loaders.train.epoch(epoch):
            solver.zero_grad()
            h, head = model.features(x.double()), model.get_classifier()
            parts = {"weight": head.weight, "feature": h, "bias": head.bias}
            loss = F.cross_entropy(h @ head.weight.T - head.bias, y)
            (loss + sum(times * DECAYS[name] * (part**2).sum() for name, part in parts.items())).backward()
            solver.step()
    return {name: p.detach() for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (PerceptronStep, {"optim__name": "sgd", "schedule__name": "constant", "optim__lr": 0.05}),
        (PerceptronStep, {"optim__name": "adamw", "schedule__name": "constant", "optim__lr": 2e-3}),
        (step.EagerStep, {"optim__name": "sgd", "schedule__name": "constant", "optim__lr": 0.05}),
    ],
    ids=["perceptron-sgd", "perceptron-adamw", "eager"],
)
def test_training_is_that_of_a_plain_loop(kind, changes, tmp_path, monkeypatch):
    if kind is step.EagerStep:
        monkeypatch.setattr("ncollapse.train.setup.is_perceptron", lambda objective: False)
    recipe, made = make_recipe(optim__epochs=4, **changes), []
    keep = kind.__init__
    monkeypatch.setattr(kind, "__init__", lambda self, *rest: made.append(type(self)) or keep(self, *rest))
    run(recipe, tmp_path, device="cpu")
    assert made == [kind]
    found, wanted = weights_of(tmp_path, recipe), train_plainly(recipe)
    other = recipe.override(decays__weak_epochs=0)
    run(other, tmp_path, device="cpu")
    full = weights_of(tmp_path, other)
    for name, tensor in wanted.items():
        assert torch.allclose(found[name].double(), tensor, atol=1e-4), name
    assert max((full[name] - found[name]).abs().max() for name in wanted) > 1e-2, "weak decays change the result"


def test_lbfgs_searches_with_the_decays_of_its_epoch(tmp_path):
    """Bit by bit: its line searches enlarge what is rounded until float64 says nothing of float32."""
    recipe = make_recipe(optim__name="lbfgs", optim__lr=0.1, schedule__name="constant", optim__epochs=3)
    run(recipe, tmp_path, device="cpu", deterministic=True)
    loaders, model = load(recipe)
    solver, tally = optimiser.make(recipe.optim, model), step.Tally(CPU)
    for epoch in (1, 2, 3):
        times = SHARE if epoch <= WEAK else 1.0
        decays = DecaySpec(**{name: times * value for name, value in DECAYS.items()})
        search = step.SearchStep(Objective(model, make_loss("ce"), decays), solver, recipe.optim, tally)
        for x, y in loaders.train.epoch(epoch):
            search(x, y, len(x))
    found = weights_of(tmp_path, recipe)
    assert all(torch.equal(found[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("changes", [{"decays__weak_share": 1.0}, {"decays__weak_epochs": 0}])
def test_nothing_changes_where_the_decays_are_not_weak(changes, tmp_path):
    weak = make_recipe(**changes)
    plain = weak.override(decays__weak_epochs=0, decays__weak_share=0.1)
    run(weak, tmp_path / "weak", device="cpu", deterministic=True)
    run(plain, tmp_path / "plain", device="cpu", deterministic=True)
    found, wanted = weights_of(tmp_path / "weak", weak), weights_of(tmp_path / "plain", plain)
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


def test_without_weak_epochs_no_decays_are_set(tmp_path, monkeypatch):
    monkeypatch.setattr(step.EagerStep, "set_decays", None)
    assert run(make_recipe(decays__weak_epochs=0), tmp_path, device="cpu")["status"] == "finished"


@pytest.mark.parametrize("perceptron", [True, False], ids=["perceptron", "eager"])
@pytest.mark.parametrize("last", [1, WEAK, WEAK + 1])
def test_a_run_resumes_in_and_after_the_weak_epochs(last, perceptron, tmp_path, monkeypatch):
    if not perceptron:
        monkeypatch.setattr("ncollapse.train.setup.is_perceptron", lambda objective: False)
    for name, value in (("PROGRESS_SECONDS", 0.0), ("CHECKPOINT_SECONDS", {"cpu": 0.0}), ("WRITES_SHARE", math.inf)):
        monkeypatch.setattr(f"ncollapse.train.loop.{name}", value)
    recipe = make_recipe(optim__epochs=4)

    def stop(event):
        if event["epoch"] == last:
            raise TimeoutError

    trained = []
    with pytest.raises(TimeoutError):
        run(recipe, tmp_path / "cut", device="cpu", deterministic=True, progress=stop)
    note = lambda event: trained.append(event["epoch"])  # noqa: E731
    run(recipe, tmp_path / "cut", device="cpu", deterministic=True, progress=note)
    assert min(trained) == last + 1
    run(recipe, tmp_path / "whole", device="cpu", deterministic=True)
    first, second = (tmp_path / name / recipe.run_id / "final.safetensors" for name in ("whole", "cut"))
    assert first.read_bytes() == second.read_bytes()


def test_prediction_and_certificate_are_those_of_the_full_decays(tmp_path):
    weak = make_recipe(optim__epochs=WEAK + 1)
    plain = weak.override(decays__weak_epochs=0)
    counts = {"class_counts": (11,) * 10}
    assert weak.problem(**counts) == plain.problem(**counts)
    found, wanted = (run(recipe, tmp_path, device="cpu") for recipe in (weak, plain))
    assert found["prediction"] == wanted["prediction"]
    history = (tmp_path / weak.run_id / "history.jsonl").read_text().splitlines()
    row, (loaders, model) = json.loads(history[0]), load(weak)
    assert row["epoch"] == 1 <= WEAK
    # the weights of the first epoch, trained again, and their objective by hand
    once = prepare_step(weak, model)
    for x, y in loaders.train.epoch(1):
        once(x, y, len(x))
    batches = list(loaders.measured["train"])
    with torch.no_grad():
        h, y = model.features(torch.cat([x for x, _ in batches])), torch.cat([y for _, y in batches])
    certificate = certify(h, y, model.head.weight, model.head.bias, problem=weak.problem(**counts))
    assert row["certificate"]["objective"] == pytest.approx(certificate.objective, rel=1e-4)
    assert isinstance(weak.problem(**counts), Problem)
    assert weak.problem(**counts).weight_decay == DECAYS["weight"]


def prepare_step(recipe, model):
    """The step of the first epoch, on this model."""
    objective = Objective(model, recipe.loss.make(), recipe.decays.at(1))
    return step.EagerStep(objective, optimiser.make(recipe.optim, model), recipe.optim, step.Tally(CPU))


def test_the_decays_of_each_epoch():
    decays = DecaySpec(0.3, 0.2, 0.1, weak_epochs=2, weak_share=0.5)
    found = [decays.at(epoch) for epoch in (1, 2, 3, 4)]
    assert [(d.weight, d.feature, d.bias) for d in found] == [(0.15, 0.1, 0.05)] * 2 + [(0.3, 0.2, 0.1)] * 2
    assert found[2] is decays
    assert decays.stages == (found[0], decays)
    assert {decays.at(epoch) for epoch in range(1, 9)} == set(decays.stages), "a captured step finds its graphs"
    plain = DecaySpec(0.3, 0.2, 0.1)
    assert plain.at(1) is plain
    assert plain.stages == (plain,)
    assert len(DecaySpec(0.3, weak_epochs=2, weak_share=1.0).stages) == 1


@pytest.mark.parametrize(("epochs", "weak"), [(100, 40), (50, 20), (40, 16), (10, 4), (3, 1), (2, 1)])
def test_another_number_of_epochs_changes_the_weak_ones_in_proportion(epochs, weak):
    recipe = Recipe(decays=DecaySpec(weight=1e-3, weak_epochs=20)).override(optim__epochs=50)
    other = recipe.with_epochs(epochs)
    assert (other.optim.epochs, other.decays.weak_epochs) == (epochs, weak)
    assert point_key(other.to_dict()) == point_key(recipe.to_dict())
    assert Recipe(decays=DecaySpec(weight=1e-3)).with_epochs(epochs).decays.weak_epochs == 0


def test_what_is_refused():
    recipe = Recipe(decays=DecaySpec(weight=1e-3, weak_epochs=20))
    with pytest.raises(ValueError, match=r"^epochs: expected at least 2 with decays\.weak_epochs, got 1$"):
        recipe.with_epochs(1)
    message = r"^recipe: decays\.weak_epochs: expected fewer than the 20 of optim\.epochs, got 20$"
    with pytest.raises(ValueError, match=message):
        recipe.override(optim__epochs=20)
    assert recipe.override(optim__epochs=21).decays.weak_epochs == 20
    with pytest.raises(
        ValueError, match=r"^recipe: decays\.weak_epochs: expected 0 without a decay of W, the features or b, got 3$"
    ):
        Recipe().override(decays__weak_epochs=3)


def test_the_run_id_changes_only_where_weak_epochs_are_set():
    recipe = recipes.get("digits")
    old = json.loads(recipe.to_json())
    del old["decays"]["weak_epochs"], old["decays"]["weak_share"]
    assert Recipe.from_dict(old).run_id == recipe.run_id
    ids = {recipe.override(decays__weak_epochs=n, decays__weak_share=s).run_id for n in (3, 4) for s in (0.1, 0.2)}
    assert len(ids | {recipe.run_id}) == 5
    keys = {point_key(recipe.override(decays__weak_epochs=n).to_dict()) for n in (0, 20)}
    assert len(keys) == 2, "runs with weak decays answer another question than runs without"


def test_what_sgd_keeps_of_initial_values_follows_the_decays():
    recipe = recipes.get("bce-vs-ce/setting-1", loss="ce", data="mnist").override(decays__weak_epochs=20)
    value = torch.ones(1, dtype=torch.float64, requires_grad=True)
    solver = torch.optim.SGD([value], 1.0, momentum=0.9)
    rates, decays = [0.3] * 20 + [0.05] * 20, [0.1] * 10 + [0.5] * 30
    for rate, decay in zip(rates, decays):
        solver.param_groups[0]["lr"] = rate
        solver.zero_grad()
        (0.5 * decay * value**2).sum().backward()
        solver.step()
    assert decay_alone(rates, decays, 0.9) == pytest.approx(value.item(), rel=1e-12)
    with pytest.raises(ValueError, match=r"^decay: expected one for each of the 40 rates, got 2$"):
        decay_alone(rates, [0.1, 0.2])
    plain = recipe.override(decays__weak_epochs=0)
    weakest = plain.override(decays__bias=0.1 * plain.decays.bias)
    assert share_left(plain, "bias") < share_left(recipe, "bias") < share_left(weakest, "bias")


class Frozen:
    """Stands for a captured graph: the decays of the objective are constants of it."""

    def __init__(self, work, buffers, pool, **options):
        self.work, self.objective = work, Frozen.objective
        self.decays = self.objective.decays

    def __call__(self, x, y):
        before = self.objective.decays
        self.objective.set_decays(self.decays)
        self.work(x, y)
        self.objective.set_decays(before)


def follow(model, device, stages, sizes, graph):
    """Weights and losses of a few steps, half of them with each of the decays."""
    spec, tally = OptimSpec("sgd", 0.05), step.Tally(device)
    objective = Objective(model, make_loss("ce").to(device), stages[-1])
    solver = optimiser.make(spec, model)
    start = {name: tensor.clone() for name, tensor in state.tensors_of(model, solver).items()}
    generator = torch.Generator().manual_seed(1)
    batches = [(torch.randn(n, 1, 8, 8, generator=generator), torch.arange(n) % 10) for n in sizes]
    batches = [(x.to(device), y.to(device)) for x, y in batches]
    if graph:
        Frozen.objective = objective
        pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        taken = step.GraphStep(objective, solver, spec, tally, batches, pool, stages)
        state.restore(model, solver, start, {})
        tally.reset()
    else:
        taken = step.EagerStep(objective, solver, spec, tally)
    losses = []
    for decays in (*stages, stages[0]):
        taken.set_decays(decays)
        taken.begin_epoch()
        for x, y in batches * 3:
            tally.reset()
            taken(x, y, len(y))
            losses.append(tally.read()[0] / len(y))
    return torch.tensor(losses, dtype=torch.float64), [p.detach().clone() for p in model.parameters()]


STAGES = (DecaySpec(3e-3, 2e-3, 1e-3), DecaySpec(3e-1, 2e-1, 1e-1))


def test_each_stage_has_its_graphs(monkeypatch):
    monkeypatch.setattr(step, "Captured", Frozen)
    torch.manual_seed(0)
    model = create("mlp-small", 10, in_channels=1, image_size=8)
    found, wanted = (follow(copy.deepcopy(model), CPU, STAGES, (32, 20), graph) for graph in (True, False))
    assert torch.equal(found[0], wanted[0])
    assert all(torch.equal(a, b) for a, b in zip(found[1], wanted[1]))
    alike = follow(copy.deepcopy(model), CPU, (STAGES[0], STAGES[0]), (32, 20), False)
    assert (alike[0] - wanted[0]).abs().max() > 0.1


def test_eager_steps_follow_the_change():
    """What the two tests below rest on: the decays change these losses by far more than rounding does."""
    torch.manual_seed(0)
    model = create("mlp-small", 10, in_channels=1, image_size=8)
    found, full = (follow(copy.deepcopy(model), CPU, s, (32, 20), False)[0] for s in (STAGES, (STAGES[1],) * 2))
    assert (found - full).abs().max() > 1e-2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a GPU")
def test_captured_steps_follow_eager_ones_over_the_change():
    """The captured step uses the fused last layer, the eager one torch's own operations."""
    device = torch.device("cuda", 0)
    with switches(device, "fp32", False), own_stream(device):
        torch.manual_seed(0)
        model = create("mlp-small", 10, in_channels=1, image_size=8).to(device).train()
        found, wanted = (follow(copy.deepcopy(model), device, STAGES, (32, 20), graph) for graph in (True, False))
    assert (found[0] - wanted[0]).abs().max() < 1e-4
    for a, b in zip(found[1], wanted[1]):
        assert (a - b).norm() <= 1e-3 * b.norm() + 1e-6


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a GPU")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_captured_step_of_each_stage_moves_the_head_as_an_eager_one(precision):
    """One step from the same weights: batch normalisation magnifies rounding over several."""
    device, spec = torch.device("cuda", 0), OptimSpec("sgd", 0.05)
    moved = {}
    with switches(device, precision, False), own_stream(device):
        torch.manual_seed(0)
        first = create("resnet18", 10).to(device).to(memory_format=torch.channels_last).train()
        x = torch.randn(32, 3, 32, 32, device=device).contiguous(memory_format=torch.channels_last)
        y = torch.arange(32, device=device) % 10
        for graph in (True, False):
            model = copy.deepcopy(first)
            objective = Objective(model, make_loss("ce"), STAGES[-1], precision=precision)
            solver, tally = optimiser.make(spec, model), step.Tally(device)
            if graph and precision == "bf16":
                objective.features = CastFeatures(model, optimiser=solver)
            start = {name: tensor.clone() for name, tensor in state.tensors_of(model, solver).items()}
            if graph:
                pool = torch.cuda.graph_pool_handle()
                taken = step.GraphStep(objective, solver, spec, tally, [(x, y)], pool, STAGES)
            else:
                taken = step.EagerStep(objective, solver, spec, tally)
            for stage in (1, 0):
                state.restore(model, solver, start, {})
                taken.set_decays(STAGES[stage])
                taken.begin_epoch()
                taken(x, y, len(y))
                moved[graph, stage] = (model.head.weight - first.head.weight).detach().clone()
    for stage in (0, 1):
        captured, eager, other = moved[True, stage], moved[False, stage], moved[False, 1 - stage]
        assert (captured - eager).norm() < 0.3 * (other - eager).norm()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a GPU")
def test_a_run_in_graphs_ends_as_an_eager_one(tmp_path):
    recipe = make_recipe(optim__epochs=4)
    run(recipe, tmp_path / "graph", device="cuda", graph=True)
    run(recipe, tmp_path / "eager", device="cuda", graph=False)
    run(recipe.override(decays__weak_epochs=0), tmp_path / "full", device="cuda", graph=True)
    graph, eager = (weights_of(tmp_path / name, recipe) for name in ("graph", "eager"))
    full = weights_of(tmp_path / "full", recipe.override(decays__weak_epochs=0))
    for name, tensor in eager.items():
        assert torch.allclose(graph[name], tensor, atol=1e-4), name
    assert max((full[name] - eager[name]).abs().max() for name in eager) > 1e-2


def test_the_best_epoch_is_one_with_the_full_decays(tmp_path):
    recipe = make_recipe(select="best-test")
    taken = SimpleNamespace(recipe=recipe, best={"epoch": 0, "accuracy": -1.0}, best_tensors={})
    for epoch, accuracy in ((1, 0.9), (WEAK, 0.99), (WEAK + 1, 0.5), (WEAK + 2, 0.7), (WEAK + 3, 0.6)):
        loop._keep_best(taken, {"epoch": epoch, "test": {"accuracy": accuracy}}, {"epoch": epoch})
    assert taken.best == {"epoch": WEAK + 2, "accuracy": 0.7}
    assert taken.best_tensors == {"epoch": WEAK + 2}
    folder = tmp_path / recipe.run_id
    summary = run(recipe, tmp_path, device="cpu")
    assert summary["selected_epoch"] > WEAK
    (folder / "summary.json").unlink()
    assert run(recipe, tmp_path, device="cpu")["selected_epoch"] == summary["selected_epoch"]
