"""L-BFGS with channels last, and captured steps beside plain ones."""

import copy

import pytest
import torch

from ncollapse.models import create, norm
from ncollapse.train import optimiser, state, step
from ncollapse.train.backend import own_stream, switches
from ncollapse.train.recipe import OptimSpec
from reference.norm_ops import register

ON_GPU = torch.cuda.is_available()


class CrossEntropy(torch.nn.Module):
    """An objective in the network's own precision."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y, size):
        loss = torch.nn.functional.cross_entropy(self.model(x), y)
        return loss, loss.detach()


def test_losses_are_added_to_numbers_as_to_tensors():
    on_cpu, general = (step.Tally(torch.device("cpu")) for _ in range(2))
    general.numbers = None  # as on a GPU
    generator = torch.Generator().manual_seed(0)
    for tally in (on_cpu, general):
        generator.manual_seed(0)
        for i in range(50):
            tally.add(torch.rand((), generator=generator), 64 if i % 23 else 30)
    assert on_cpu.read() == general.read()
    assert on_cpu.read()[1] == 50
    assert float(on_cpu.sum) == on_cpu.read()[0]
    for tally in (on_cpu, general):
        tally.add(torch.tensor(torch.inf), 64)
        tally.add(torch.tensor(1.0), 64)
    assert on_cpu.read() == general.read() == (torch.inf, 50)
    on_cpu.reset()
    on_cpu.add(torch.tensor(2.0), 3)
    assert on_cpu.read() == (6.0, 1)


def test_lbfgs_takes_the_same_step_with_channels_last():
    torch.manual_seed(0)
    network = create("resnet32", 4, image_size=8).double()
    x, y = torch.randn(8, 3, 8, 8, dtype=torch.float64), torch.arange(8) % 4
    spec = OptimSpec("lbfgs", 0.1)
    found = []
    for layout in (torch.contiguous_format, torch.channels_last):
        model = copy.deepcopy(network).to(memory_format=layout)
        tally = step.Tally(torch.device("cpu"))
        search = step.SearchStep(CrossEntropy(model), optimiser.make(spec, model), spec, tally)
        search(x.contiguous(memory_format=layout), y, len(x))
        found.append((model, tally.read()))
    (plain, loss), (last, other) = found
    assert not all(p.is_contiguous() for p in last.parameters())
    assert other == pytest.approx(loss, rel=1e-9)
    for before, a, b in zip(network.parameters(), plain.parameters(), last.parameters()):
        assert not torch.equal(a, before)
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def test_lbfgs_forgets_what_sends_its_line_search_beyond_all_numbers():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    x, y = torch.randn(12, 5), torch.arange(12) % 3
    spec, tally = OptimSpec("lbfgs", 0.1), step.Tally(torch.device("cpu"))
    search = step.SearchStep(CrossEntropy(model), optimiser.make(spec, model), spec, tally)
    fresh = copy.deepcopy(model)
    search(x, y, len(x))
    memory = next(iter(search.optimiser.state.values()))
    memory["old_stps"] = [1e30 * torch.ones_like(past) for past in memory["old_stps"]]
    start = copy.deepcopy(model)
    loss = torch.nn.functional.cross_entropy(start(x), y)
    tally.reset()
    search(x, y, len(x))
    again = step.SearchStep(CrossEntropy(start), optimiser.make(spec, start), spec, step.Tally(torch.device("cpu")))
    again(x, y, len(x))
    for moved, wanted, first in zip(model.parameters(), start.parameters(), fresh.parameters()):
        assert torch.equal(moved, wanted), "the step without memory"
        assert not torch.equal(moved, first)
    assert torch.nn.functional.cross_entropy(model(x), y) < loss
    assert tally.read() == (pytest.approx(12 * loss.item()), 1)


class Leap(torch.optim.Optimizer):
    """Evaluates, and moves all weights by `far` in one of its steps and by a little in the others."""

    def __init__(self, parameters, far, when):
        super().__init__(parameters, {})
        self.far, self.when, self.steps = far, when, 0

    def step(self, closure):
        closure()
        self.steps += 1
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                p.add_(self.far if self.steps in self.when else 1e-3)


def search_with(far, when, steps):
    """The losses of some steps, the network after each, and the optimiser's number of steps."""
    torch.manual_seed(0)
    linear, norm = torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6)
    model = torch.nn.Sequential(linear, norm, torch.nn.Linear(6, 3))
    solver, tally = Leap(model.parameters(), far, when), step.Tally(torch.device("cpu"))
    search = step.SearchStep(CrossEntropy(model), solver, OptimSpec("lbfgs", 0.1), tally)
    x, y, losses, found = torch.randn(12, 4), torch.arange(12) % 3, [], []
    for _ in range(steps):
        tally.reset()
        search(x, y, len(x))
        losses.append(tally.read()[0] / len(x))
        found.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
    return losses, found, solver.steps


def test_a_search_that_ends_where_the_objective_overflows_is_taken_again():
    """Finite weights of 1e30, and a loss that is not: it shows in the step after, which starts from before that one."""
    plain, usual, _ = search_with(0.0, (), 3)
    losses, found, taken = search_with(1e30, (2,), 3)
    assert taken == 4, "the third step finds no loss, and is taken again"
    assert losses[:2] == plain[:2]
    assert losses[2] == pytest.approx(plain[1]), "from the weights before the second step"
    assert found[1]["0.weight"].isfinite().all()
    torch.testing.assert_close(found[2]["0.weight"], usual[1]["0.weight"])
    assert all(tensor.isfinite().all() for tensor in found[2].values()), "running statistics too"


def test_a_step_is_left_out_where_the_search_ends_beyond_all_numbers_again():
    losses, found, taken = search_with(torch.inf, (2, 3), 3)
    assert taken == 4
    assert losses[1] == losses[2]
    assert torch.equal(found[0]["0.weight"], found[1]["0.weight"])
    assert not torch.equal(found[1]["0.weight"], found[2]["0.weight"])
    assert all(tensor.isfinite().all() for tensor in found[2].values())


class Played:
    """What `Captured` is to its caller, on a CPU: fixed buffers in, and results that are always in the same place."""

    def __init__(self, work, buffers, pool, *, kernels, search):
        self.work, self.buffers, self.output = work, buffers, None

    def __call__(self, *inputs):
        for buffer, value in zip(self.buffers, inputs):
            buffer.copy_(value)
        total, loss, grads = self.work(*self.buffers)
        if self.output is None:
            self.output = total.clone(), loss.clone(), [grad.clone() for grad in grads]
        for place, value in zip((*self.output[:2], *self.output[2]), (total, loss, *grads)):
            place.copy_(value)
        return self.output


def test_a_captured_search_takes_the_same_steps(monkeypatch):
    """Three batches, the last one shorter, with norms whose running statistics every evaluation moves."""
    device = torch.device("cuda", 0) if ON_GPU else torch.device("cpu")
    spec, found = OptimSpec("lbfgs", 0.1), []
    torch.manual_seed(0)
    network = create("resnet32", 4, image_size=8).double()
    labels = torch.arange(20) % 4
    batches = [(torch.randn(size, 3, 8, 8, dtype=torch.float64), labels[:size]) for size in (20, 20, 12)]
    if not ON_GPU:
        monkeypatch.setattr(step, "Captured", Played)
    with switches(device, "fp32", not ON_GPU), own_stream(device):
        feed = [(x.to(device).contiguous(memory_format=torch.channels_last), y.to(device)) for x, y in batches]
        for captured in (False, True):
            model = copy.deepcopy(network).to(device).to(memory_format=torch.channels_last)
            solver, tally = optimiser.make(spec, model), step.Tally(device)
            start = {key: value.clone() for key, value in state.tensors_of(model, solver).items()}
            if captured:
                pool = torch.cuda.graph_pool_handle() if ON_GPU else None
                search = step.GraphSearchStep(CrossEntropy(model), solver, spec, tally, [feed[0], feed[2]], pool)
                state.restore(model, solver, start, {})
            else:
                search = step.SearchStep(CrossEntropy(model), solver, spec, tally)
            for x, y in feed:
                search(x, y, len(x))
            evaluations = next(iter(solver.state.values()))["func_evals"]
            found.append((evaluations, tally.read(), {k: v.cpu() for k, v in model.state_dict().items()}))
    (evaluations, loss, plain), (count, other, replayed) = found
    assert count == evaluations > 3 * 10
    assert other == pytest.approx(loss, rel=1e-6)
    moved = [name for name, value in network.state_dict().items() if not torch.equal(value, plain[name])]
    assert len(moved) == len(plain)
    for name in plain:
        torch.testing.assert_close(replayed[name], plain[name], rtol=1e-5, atol=1e-7)


class Decayed(CrossEntropy):
    """With decays of features and head, as in bce-vs-ce's settings 1 and 2."""

    def forward(self, x, y, size):
        features = self.model.features(x)
        loss = torch.nn.functional.cross_entropy(self.model.head(features), y)
        decays = sum(value.square().sum() for value in (features, *self.model.head.parameters()))
        return loss + 2.5e-4 * decays, loss.detach()


def follow(name, batches, dtype, fused, monkeypatch):
    """The losses of some steps on the GPU if there is one: fused and captured, or plain and eager."""
    device, spec = torch.device("cuda", 0) if ON_GPU else torch.device("cpu"), OptimSpec("sgd", 0.001)
    with monkeypatch.context() as patch, switches(device, "fp32", False), own_stream(device):
        patch.setattr(norm, "HAS_TRITON", fused)
        if fused and not ON_GPU:
            register()
            patch.setattr(norm, "can_fuse", lambda norm, x, residual: True)
        torch.manual_seed(0)
        model = create(name, 10).to(device, dtype).to(memory_format=torch.channels_last).train()
        solver, tally = optimiser.make(spec, model), step.Tally(device)
        start = {key: value.clone() for key, value in state.tensors_of(model, solver).items()}
        feed = [(x.to(device, dtype).contiguous(memory_format=torch.channels_last), y.to(device)) for x, y in batches]
        if fused and ON_GPU:
            pool = torch.cuda.graph_pool_handle()
            work = step.GraphStep(Decayed(model), solver, spec, tally, feed[:1], pool)
            state.restore(model, solver, start, {})
        else:
            work = step.EagerStep(Decayed(model), solver, spec, tally)
        losses = []
        for x, y in feed:
            tally.reset()
            work(x, y, len(y))
            losses.append(tally.read()[0] / len(y))
    return torch.tensor(losses, dtype=torch.float64)


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "densenet121-small"] if ON_GPU else ["wide-resnet18-0.25"])
def test_fused_steps_follow_float64_as_closely_as_plain_ones(name, monkeypatch):
    """Batch-normalised networks magnify what is rounded from step to step, so that the plain network is the measure.

    Without a GPU the operators have float64 too, in which nothing is left to magnify.
    """
    torch.manual_seed(1)
    count, images, size = (20, 64, 32) if ON_GPU else (6, 8, 16)
    precision, rounding = (torch.float32, 1e-5) if ON_GPU else (torch.float64, 1e-12)
    batches = [(torch.randn(images, 3, size, size), torch.randint(10, (images,))) for _ in range(count)]
    exact = follow(name, batches, torch.float64, False, monkeypatch)
    plain, fused = ((follow(name, batches, precision, f, monkeypatch) - exact).abs() / exact for f in (False, True))
    assert fused[0] < rounding
    assert bool((fused <= 10 * plain.cummax(0).values + rounding).all())
