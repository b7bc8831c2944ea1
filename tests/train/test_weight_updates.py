"""Weights updated in the backward pass: the kernels, what they are wired to, and that no copy is stale."""

import copy

import pytest
import torch

from ncollapse.models import create, norm, overlap
from ncollapse.models.convolution import Conv2d
from ncollapse.train import casting, optimiser, recipes, run, state, step, verify, verify_update, weight_updates
from ncollapse.train.backend import own_stream, switches
from ncollapse.train.casting import CastFeatures
from ncollapse.train.objective import Objective
from ncollapse.train.recipe import DecaySpec, LossSpec, OptimSpec
from ncollapse.train.step import EagerStep, GraphStep, Tally
from ncollapse.train.weight_updates import WeightUpdates, are_alike, can_update, is_dense
from reference.norm_ops import INTERPRETED
from reference.streams import pretend
from reference.streams import run as run_work
from reference.updates import define_updates

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if ON_GPU else torch.device("cpu")
kernels = pytest.mark.skipif(not ON_GPU and not INTERPRETED, reason="the kernels need a GPU, or TRITON_INTERPRET=1")
on_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # Triton's interpreter
SPECS = {
    "sgd": OptimSpec("sgd", 0.02, weight_decay=5e-4),
    "plain sgd": OptimSpec("sgd", 0.02, momentum=0.0, weight_decay=5e-4),
    "adam": OptimSpec("adam", 1e-3, weight_decay=5e-3),
    "adamw": OptimSpec("adamw", 1e-3, weight_decay=5e-2),
}


class Weights(torch.nn.Module):
    """Weights in several layouts, one of them larger than a block of the kernels."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        kernel = torch.randn(24, 16, 3, 3).contiguous(memory_format=torch.channels_last)
        tensors = [kernel, torch.randn(48, 40), torch.randn(7, 3), torch.randn(16, 8, 1, 1)]
        self.weights = torch.nn.ParameterList(tensors)


def make_pair(spec):
    """Two models, each with an optimiser whose rate is a tensor."""
    pair = []
    for _ in range(2):
        model = Weights().to(DEVICE)
        solver = optimiser.make(spec, model)
        solver.param_groups[0]["lr"] = torch.tensor(spec.rate, device=DEVICE)
        pair.append((list(model.weights), solver))
    return pair


@kernels
@pytest.mark.parametrize("name", SPECS)
def test_the_kernels_take_the_steps_of_torch(name):
    (weights, fused), (twins, plain) = make_pair(SPECS[name])
    updates, generator = WeightUpdates(fused, weights), torch.Generator().manual_seed(1)
    for i in range(5):
        for solver in (fused, plain):
            optimiser.set_rate(solver, SPECS[name].rate / (1 + i))
        grads = [torch.randn(w.shape, generator=generator).bfloat16().to(DEVICE) for w in weights]
        for twin, grad in zip(twins, grads):
            twin.grad = torch.empty_like(twin).copy_(grad)
        plain.step()
        updates.finish(tuple(grads))  # contiguous, which not all weights are
        for weight, twin, duplicate in zip(weights, twins, updates.copies):
            torch.testing.assert_close(weight, twin, rtol=1e-6, atol=1e-6)
            rounding = 0.0 if ON_GPU else 2**-7  # the interpreter cuts off where a GPU rounds
            torch.testing.assert_close(duplicate, weight.bfloat16(), rtol=rounding, atol=0.0)
            assert fused.state[weight].keys() == plain.state[twin].keys()
            for key, value in fused.state[weight].items():
                tolerance = 1e-6 if key in ("momentum_buffer", "exp_avg") else 0.0  # sums that may cancel
                # on a GPU torch takes 1 - 0.999 in float32, which is 1.3e-5 less than 0.001
                relative = 2e-5 if key == "exp_avg_sq" and ON_GPU else 2e-6
                torch.testing.assert_close(value, plain.state[twin][key], rtol=relative, atol=tolerance)


@kernels
@pytest.mark.parametrize("name", SPECS)
def test_no_fault_is_found(name):
    assert verify_update.compare_updates(SPECS[name], DEVICE) is None


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda weight, copy: None, None),
        (lambda weight, copy: weight.data.add_(1e-3), "weights differ by"),
        (lambda weight, copy: copy.data.mul_(1.1), "copies in bfloat16 are not those"),
        (lambda weight, copy: weight.view(7), "RuntimeError"),
    ],
)
def test_wrong_updates_are_found_and_only_they_are_switched_off(monkeypatch, caplog, tmp_path, harm, said):
    define_updates(monkeypatch)
    monkeypatch.setattr(verify, "_verified", set())
    monkeypatch.setattr(verify, "describe_gpu", lambda _: ("a GPU",))
    monkeypatch.setenv("NCOLLAPSE_CACHE", str(tmp_path))
    monkeypatch.setattr(norm, "HAS_TRITON", True)
    right = weight_updates.apply_update

    def wrong(optimiser, grad, weight, copy):
        right(optimiser, grad, weight, copy)
        harm(weight, copy)
        if said == "weights differ by":
            copy.data.copy_(weight.data)

    monkeypatch.setattr(weight_updates, "apply_update", wrong)
    compare = verify_update.compare_updates
    monkeypatch.setattr(verify_update, "compare_updates", lambda spec, device: compare(spec, DEVICE))
    for name in SPECS:
        assert verify_update.verify_update(SPECS[name], torch.device("cuda")) == (said is None)
    assert len(caplog.messages) == (0 if said is None else len(SPECS))
    assert all(said in message and "fused updates are not used" in message for message in caplog.messages)
    assert norm.HAS_TRITON
    assert not verify_update.verify_update(SPECS["sgd"], torch.device("cpu"))


class Replayed:
    """Stands for a captured graph: the step is taken when it is replayed, and asks nothing of the host then."""

    def __init__(self, work, buffers, pool, **options):
        self.work = work

    def __call__(self, x, y):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(casting, "is_capturing", lambda x: True)
            self.work(x, y)


NETWORKS = {"wide-resnet18-0.25": 16, "densenet121-small": 32, "vit-small": 16, "mlp-32": 8}


def make_network(name):
    torch.manual_seed(0)
    model = create(name, 4, image_size=NETWORKS[name]).to(DEVICE)
    if name == "vit-small":
        model.trunk.layers = model.trunk.layers[:2]
    return model.to(memory_format=torch.channels_last).train()


def make_batches(size, count, samples=6):
    generator = torch.Generator().manual_seed(1)
    short = samples - 2
    return [
        (torch.randn(n, 3, size, size, generator=generator), torch.arange(n) % 4)
        for n in (short if i % 5 == 4 else samples for i in range(count))
    ]


@pytest.fixture
def defined(monkeypatch):
    """torch's own kernels in place of ours, and steps that seem to be captured."""
    define_updates(monkeypatch)
    monkeypatch.setattr(step, "Captured", Replayed)


def make_step(model, spec, examples, *, fused=True, pool=None):
    """A step in bfloat16, with updates in the backward pass or after it."""
    solver = optimiser.make(spec, model)
    objective = Objective(model, LossSpec("ce").make().to(DEVICE), DecaySpec(), precision="bf16")
    objective.features = CastFeatures(model, optimiser=solver if fused else None)
    taken = GraphStep(objective, solver, spec, Tally(DEVICE), examples, pool)
    assert (taken.updates is not None) == fused
    return taken


def train(model, spec, batches, fused, beside=False):
    """The summed loss after these batches, the weights and the optimiser's state."""
    taken, early = make_step(model, spec, batches[3:5], fused=fused), []
    with pytest.MonkeyPatch.context() as patch:
        if beside:
            streams = overlap.Beside(DEVICE, lambda *pair: early.append(taken.updates.update_early(*pair)))
            patch.setattr(CastFeatures, "find_beside", lambda self, x: streams)
        for x, y in batches:
            taken(x, y, len(y))
    convolutions = sum(isinstance(module, Conv2d) for module in model.modules())
    assert len(early) == max(0, convolutions - 1) * len(batches) * beside  # the first is left, of a float32 input
    return [torch.tensor(taken.tally.read()[0]), *state.tensors_of(model, taken.optimiser).values()]


@pytest.mark.skipif(ON_GPU, reason="on a GPU the kernels do it")
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("network", ["wide-resnet18-0.25", "mlp-32"])
def test_updates_in_the_backward_pass_are_those_after_it(network, name, defined):
    """Bit by bit, as torch's own kernel stands for ours: 20 steps of two sizes, beside the rest or at the end."""
    first, batches = make_network(network), make_batches(NETWORKS[network], 20)
    plain = train(copy.deepcopy(first), SPECS[name], batches, False)
    for beside in (False, True):
        found = train(copy.deepcopy(first), SPECS[name], batches, True, beside)
        assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(found[1:], first.state_dict().values()))


@pytest.mark.skipif(ON_GPU, reason="on a GPU the kernels do it")
@pytest.mark.parametrize(("network", "name"), [("vit-small", "adamw"), ("densenet121-small", "sgd")])
def test_other_networks_too(network, name, defined):
    first, batches = make_network(network), make_batches(NETWORKS[network], 5)
    plain = train(copy.deepcopy(first), SPECS[name], batches, False)
    found = train(first, SPECS[name], batches, True)
    assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))


@pytest.mark.skipif(ON_GPU, reason="on a GPU the kernels do it")
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_run_goes_on_without_them_and_with_them(name, fused, defined):
    """The state after some steps, put into another run, is all that this needs to go on."""
    first, batches, kept = make_network("mlp-32"), make_batches(8, 10), {}
    _, *plain = train(copy.deepcopy(first), SPECS[name], batches, False)
    for part, way in ((batches[:5], fused), (batches[5:], not fused)):
        model = copy.deepcopy(first)
        taken = make_step(model, SPECS[name], batches[3:5], fused=way)
        if kept:
            state.restore(model, taken.optimiser, kept, {})
        for x, y in part:
            taken(x, y, len(y))
        kept = state.tensors_of(model, taken.optimiser)
    assert all(torch.equal(a, b) for a, b in zip(kept.values(), plain, strict=True))


@pytest.mark.skipif(ON_GPU, reason="on a GPU the kernels do it")
@pytest.mark.parametrize("seen", [True, False])
def test_weights_that_others_write_are_trained_on(seen, defined):
    """Put back by `restore`, or changed in a way that torch does not count before an epoch."""
    model, ((x, y),) = make_network("mlp-32"), make_batches(8, 1)
    taken = make_step(model, SPECS["sgd"], [(x, y)])
    start = {key: value.clone() for key, value in state.tensors_of(model, taken.optimiser).items()}
    losses = []
    for _ in range(2):
        for _ in range(3):
            taken.tally.reset()
            taken(x, y, len(y))
            losses.append(taken.tally.read()[0])
        if seen:
            state.restore(model, taken.optimiser, start, {})
        else:
            for key, value in state.tensors_of(model, taken.optimiser).items():
                value.data.copy_(start[key])
            taken.begin_epoch()
    assert losses[:3] == losses[3:]
    assert losses[0] > losses[1] > losses[2]


def test_an_epoch_begins_with_current_weights(tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(EagerStep, "begin_epoch", lambda self: begun.append(self))
    run(recipes.get("digits").override(optim={"epochs": 2}), tmp_path, device="cpu")
    assert len(begun) == 2


def test_the_rest_is_updated_side_by_side(monkeypatch):
    pretend(monkeypatch)
    order, (weights, solver) = [], make_pair(SPECS["sgd"])[0]
    monkeypatch.setattr(weight_updates, "apply_update", lambda *tensors: order.append(run_work(len(order))))
    updates = WeightUpdates(solver, weights, spread=True)
    monkeypatch.setattr(weight_updates, "LANES", 3)
    run_work("backward pass")
    updates.finish(tuple(torch.zeros_like(weight) for weight in weights))
    assert order == [{"backward pass"}, {"backward pass"}, {"backward pass"}, {"backward pass", 0}]
    assert run_work("end") == {"backward pass", 0, 1, 2, 3}


@pytest.mark.skipif(ON_GPU, reason="on a GPU the kernels do it")
def test_a_weight_that_is_used_twice_is_refused(defined):
    updates = make_step(make_network("mlp-32"), SPECS["sgd"], make_batches(8, 1)).updates
    lent = updates.lend()
    grads = tuple(torch.ones_like(copy) for copy in lent)
    sums = tuple(2 * grad for grad in grads)
    updates.update_early(lent[0], grads[0])
    with pytest.raises(RuntimeError, match="must be used once"):
        updates.update_early(lent[0], grads[0])
    with pytest.raises(RuntimeError, match="was used more than once"):
        updates.finish(sums)
    updates.lend()
    updates.update_early(torch.ones(3), torch.ones(3))  # no weight of ours
    assert updates.done == {}


def test_clipping_needs_all_gradients_first(defined):
    model, spec = make_network("mlp-32"), OptimSpec("sgd", 0.1, clip_norm=1.0)
    with pytest.raises(ValueError, match="clip_norm: expected None"):
        make_step(model, spec, make_batches(8, 1))


def test_layouts():
    last = torch.zeros(4, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    assert is_dense(last)
    assert is_dense(torch.zeros(3, 4).t())
    assert not is_dense(torch.zeros(4, 6)[:, ::2])
    assert not is_dense(torch.zeros(4, 1).expand(4, 3))
    assert not is_dense(torch.zeros(0, 3))
    assert not are_alike(last, last.contiguous())
    flat = torch.zeros(4, 3, 1, 1)
    assert are_alike(flat.as_strided(flat.shape, (3, 1, 3, 3)), flat)


def test_what_the_kernels_do_not_know():
    model = make_network("mlp-32")
    weights = list(model.trunk.parameters())
    assert can_update(optimiser.make(SPECS["sgd"], model), weights) == ON_GPU
    assert not can_update(torch.optim.SGD(model.parameters(), 0.1), weights)
    weights[0].requires_grad_(False)
    assert not can_update(optimiser.make(SPECS["sgd"], model), weights)


@on_gpu
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("network", ["resnet18", "densenet121-small", "vit-small"])
def test_captured_training_with_and_without(network, name):
    """20 steps in two graphs, of a full and of a short batch: each step of both from the same state, then on their own.

    From the same state both find the same gradients. On their own, rounding makes them part.
    """
    torch.manual_seed(0)
    first, spec = create(network, 10).to(DEVICE).to(memory_format=torch.channels_last).train(), SPECS[name]
    spec = OptimSpec(spec.name, 5e-4 if spec.name == "sgd" else 3e-6, spec.momentum, weight_decay=spec.weight_decay)
    feed = [
        (x.to(DEVICE).contiguous(memory_format=torch.channels_last), y.to(DEVICE)) for x, y in make_batches(32, 20, 64)
    ]
    start = state.tensors_of(first, optimiser.make(spec, first))
    with switches(DEVICE, "bf16", True), own_stream(DEVICE):
        plain, fused = (
            make_step(copy.deepcopy(first), spec, feed[3:5], fused=fused, pool=torch.cuda.graph_pool_handle())
            for fused in (False, True)
        )
        for together in (True, False):
            put_back(plain, start)
            put_back(fused, start)
            losses = []
            for x, y in feed:
                if together:
                    put_back(fused, read_state(plain))
                before = read_weights(plain)
                losses.append([take(taken, x, y) for taken in (plain, fused)])
                assert all(torch.equal(w.bfloat16(), c) for w, c in zip(fused.updates.weights, fused.updates.copies))
                if together:
                    moved = (read_weights(plain) - before).norm()
                    assert (read_weights(fused) - read_weights(plain)).norm() <= 1e-3 * moved
            ours, theirs = torch.tensor(losses).unbind(1)
            torch.testing.assert_close(ours, theirs, rtol=1e-5 if together else 1e-2, atol=0.0)
            for key, value in read_state(fused).items():
                assert not key.endswith(".step") or float(value) == 20.0


def take(taken, x, y):
    """The loss of a step."""
    taken.tally.reset()
    taken(x, y, len(y))
    return taken.tally.read()[0] / len(y)


def read_state(taken):
    tensors = state.tensors_of(taken.objective.model, taken.optimiser)
    return {name: tensor.clone() for name, tensor in tensors.items()}


def put_back(taken, tensors):
    state.restore(taken.objective.model, taken.optimiser, tensors, {})


def read_weights(taken):
    return torch.cat([p.detach().flatten() for p in taken.objective.model.parameters()])
