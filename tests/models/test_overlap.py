"""What goes on beside the rest of a step gives what it gives by itself."""

import contextlib
import copy
import weakref

import pytest
import torch

from ncollapse.models import create, overlap
from ncollapse.models.convolution import Conv2d, differentiate_convolution
from ncollapse.train import casting, optimiser
from ncollapse.train.backend import own_stream, switches
from ncollapse.train.objective import Objective
from ncollapse.train.recipe import DecaySpec, LossSpec, OptimSpec
from ncollapse.train.step import GraphStep, Tally
from reference.streams import pretend, run


class Later:
    """Stands for the streams: what is started is done at once, and counted."""

    started = 0

    def start(self, work, *inputs):
        self.started += 1
        return work()

    def update(self, weight, gradient):
        pass


@pytest.mark.parametrize(("size", "stride"), [(1, 1), (1, 2), (3, 1), (3, 2)])
def test_a_convolution_has_the_same_gradients(size, stride):
    torch.manual_seed(0)
    conv = Conv2d(4, 6, size, stride=stride, padding=size // 2, bias=False).bfloat16()
    x = torch.randn(2, 4, 8, 8).bfloat16().requires_grad_()
    found, later = [], Later()
    for beside in (None, later):
        conv.weight.grad = x.grad = None
        with overlap.overlapping(beside):
            y = conv(x)
        (y * y.detach().cos()).sum().backward()
        found.append((y.detach(), conv.weight.grad, x.grad))
    assert later.started == 1
    for plain, beside in zip(*found):
        assert torch.equal(plain, beside)
    assert overlap.find_beside() is None


class Stream:
    """Stands for a CUDA stream; notes what it waits for."""

    def __init__(self, name="beside"):
        self.name, self.waited, self.events = name, [], 0

    def wait_stream(self, stream):
        self.waited.append(stream)

    def wait_event(self, event):
        self.waited.append(event)

    def record_event(self):
        self.events += 1
        return self.events


def test_memory_of_a_branch_is_kept_until_the_gradients_are_done(monkeypatch):
    """Given back earlier, it would be used again by work on the branch, which does not wait for the gradients."""
    own, now = Stream("own"), []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: now[-1] if now else own)
    beside = overlap.Beside(torch.device("cuda"))

    def start():
        tensor = torch.zeros(1)
        beside.start(lambda: tensor, tensor)
        return weakref.ref(tensor)

    now.append(beside.branch)
    branched = start()
    now.clear()
    started = [start() for _ in range(2 * overlap.LAG)]
    assert branched() is not None
    alive = [reference() is not None for reference in started]
    assert alive == [False] * overlap.LAG + [True] * overlap.LAG
    assert own.waited == list(range(2, 2 + overlap.LAG))  # the branch's gradient was the first event
    beside.join()
    assert branched() is None
    assert not any(reference() is not None for reference in started)


@pytest.mark.parametrize("stream", ["own", "branch"])
def test_an_update_follows_both_gradients(monkeypatch, stream):
    """The input gradient reads the kernel on the stream of its layer, which may be a shortcut's."""
    pretend(monkeypatch)
    updated, differentiate = [], torch.ops.aten.convolution_backward

    def launch(*args):
        run(("input gradient" if args[-1][0] else "weight gradient", args[2].data_ptr()))
        return differentiate(*args)

    def change(kernel, d_kernel):
        updated.append((kernel.data_ptr(), run("update")))

    monkeypatch.setattr(torch.ops.aten, "convolution_backward", launch)
    beside = overlap.Beside(torch.device("cuda"), change)
    kernels = [torch.randn(4, 4, 1, 1).bfloat16() for _ in range(3)]
    x = torch.randn(2, 4, 3, 3).bfloat16()
    places = {"own": beside.own, "branch": beside.branch}
    for kernel in kernels:
        with torch.cuda.stream(places[stream]):
            dx, d_kernel = differentiate_convolution(x, x, kernel, (1, 1), (0, 0), beside)
        plain = differentiate_convolution(x, x, kernel, (1, 1), (0, 0), None)
        assert torch.equal(dx, plain[0])
        assert torch.equal(d_kernel, plain[1])
    assert [place for place, _ in updated] == [kernel.data_ptr() for kernel in kernels]
    for place, before in updated:
        assert {("input gradient", place), ("weight gradient", place)} <= before
    assert "update" not in beside.own.seen
    beside.join()
    assert "update" in beside.own.seen


def test_a_float32_convolution_is_torchs_own():
    later = Later()
    conv, x = Conv2d(2, 2, 1, bias=False), torch.randn(1, 2, 3, 3)
    with overlap.overlapping(later):
        conv(x).sum().backward()
    assert later.started == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["resnet18", "resnet50", "densenet121-small", "vit-small"])
@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_captured_training_is_the_same(name, crowded, fused, monkeypatch):
    """Bit by bit, with kernels that are deterministic: a stream that does not wait for another would show.

    It shows where the weight gradients are late, as on a GPU that is crowded with the work of others, and where their
    inputs are small enough to share pieces of memory with sums: with small batches. `fused` updates must not come
    before the last use of a weight's copy.
    """
    device = torch.device("cuda")
    torch.manual_seed(0)
    samples = 32 if crowded else 64
    first = create(name, 10).to(device).to(memory_format=torch.channels_last).train()
    x = torch.randn(samples, 3, 32, 32, device=device).contiguous(memory_format=torch.channels_last)
    y = torch.arange(samples, device=device) % 10
    others, matrix = torch.cuda.Stream(device, priority=-2), torch.randn(4096, 4096, device=device).bfloat16()
    product, found = torch.empty_like(matrix), []
    for beside in (True, False):
        if not beside:
            monkeypatch.setattr(casting.CastFeatures, "find_beside", lambda self, x: None)
        model = copy.deepcopy(first)
        objective = Objective(model, LossSpec("ce").make().to(device), DecaySpec(), precision="bf16")
        spec = OptimSpec("sgd", 0.05, weight_decay=5e-4)
        solver = optimiser.make(spec, model)
        objective.features = casting.CastFeatures(model, optimiser=solver if fused else None)
        with switches(device, "bf16", True), own_stream(device):
            step = GraphStep(objective, solver, spec, Tally(device), [(x, y)], torch.cuda.graph_pool_handle())
            assert (step.updates is not None) == fused
            for _ in range(10):
                if crowded:
                    with torch.cuda.stream(others):
                        for _ in range(20):
                            torch.mm(matrix, matrix, out=product)
                step(x, y, samples)
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert found[0].isfinite().all()
    assert torch.equal(*found)
