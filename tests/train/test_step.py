"""L-BFGS with channels last; runs side by side, of which one that captures has the GPU alone for a while."""

import copy
import threading

import pytest
import torch

from ncollapse.models import create
from ncollapse.train import optimiser, step
from ncollapse.train.recipe import OptimSpec


class Graph:
    """Counts its replays."""

    replays = 0

    def replay(self):
        self.replays += 1


class CrossEntropy(torch.nn.Module):
    """An objective in the network's own precision."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y, size):
        loss = torch.nn.functional.cross_entropy(self.model(x), y)
        return loss, loss.detach()


def test_others_pause_while_one_run_searches():
    captured = object.__new__(step.Captured)
    captured.buffers, captured.graph, captured.output = (), Graph(), "features"
    found = []
    other = threading.Thread(target=lambda: found.append(captured()), daemon=True)
    with step.quiet():
        other.start()
        other.join(0.05)
        assert captured.graph.replays == 0
    other.join(10)
    assert captured.graph.replays == 1
    assert found == ["features"]


def test_a_search_that_fails_lets_the_others_go_on():
    def search():
        with step.quiet():
            assert not step.OPEN.is_set()
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        search()
    assert step.OPEN.is_set()


def test_kernels_are_new_once_in_each_thread():
    key = ("test", (3, 4))
    assert [step.is_new(key), step.is_new(key), step.is_new(("test", (3, 5)))] == [True, False, True]
    found = []
    other = threading.Thread(target=lambda: found.append(step.is_new(key)))
    other.start()
    other.join()
    assert found == [True]


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
