"""Graphs are captured by one thread; a run that searches for its fastest kernels has the GPU alone for a while."""

import threading
from types import SimpleNamespace

import pytest
import torch

from ncollapse.models.norm import is_fusing
from ncollapse.train import capture


class Graph:
    """Counts its replays."""

    replays = 0

    def replay(self):
        self.replays += 1


def test_others_pause_while_one_run_searches():
    captured = object.__new__(capture.Captured)
    captured.buffers, captured.graph, captured.output = (), Graph(), "features"
    found = []
    other = threading.Thread(target=lambda: found.append(captured()), daemon=True)
    with capture.quiet():
        other.start()
        other.join(0.05)
        assert captured.graph.replays == 0
    other.join(10)
    assert captured.graph.replays == 1
    assert found == ["features"]


def test_a_search_that_fails_lets_the_others_go_on():
    def search():
        with capture.quiet():
            assert not capture.OPEN.is_set()
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        search()
    assert capture.OPEN.is_set()


def test_kernels_are_new_once_in_a_process():
    key = ("test", (3, 4))
    assert [capture.is_new(key), capture.is_new(key), capture.is_new(("test", (3, 5)))] == [True, False, True]
    found = []
    other = threading.Thread(target=lambda: found.append(capture.is_new(key)))
    other.start()
    other.join()
    assert found == [False]


def test_one_thread_captures_for_all():
    found = []
    ask = lambda: found.append(capture.run_in_capturing_thread(threading.get_ident))  # noqa: E731
    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert found[0] not in {threading.get_ident(), *(thread.ident for thread in threads)}


def test_what_capturing_raises_reaches_the_run():
    def fail():
        raise torch.OutOfMemoryError("no room for the graph")

    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        capture.run_in_capturing_thread(fail)
    assert capture.run_in_capturing_thread(lambda: 3) == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a GPU")
@pytest.mark.parametrize("grad", [True, False])
def test_capturing_keeps_the_stream_and_the_gradient_mode_of_the_run(grad):
    seen = []

    def work(x):
        seen.append((torch.cuda.current_stream(), torch.is_grad_enabled(), is_fusing()))
        return x * 2

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.set_grad_enabled(grad):
        x = torch.ones(3, device="cuda")
        double = capture.Captured(work, (x.clone(),), torch.cuda.graph_pool_handle(), kernels=("test", grad))
        assert set(seen) == {(stream, grad, True)}
        assert double(x + 1).tolist() == [4.0, 4.0, 4.0]


@pytest.mark.parametrize(("kernels", "wanted"), [(capture.ALL, (True, 0)), (10, (True, 10)), (None, (False, 7))])
def test_how_many_kernels_cudnn_tries(monkeypatch, kernels, wanted):
    cudnn = SimpleNamespace(benchmark=True, benchmark_limit=7)
    monkeypatch.setattr(torch.backends, "cudnn", cudnn)
    with capture._searching(kernels):
        assert (cudnn.benchmark, cudnn.benchmark_limit) == wanted
    assert (cudnn.benchmark, cudnn.benchmark_limit) == (True, 7)
    cudnn.benchmark = False
    with capture._searching(kernels):
        assert not cudnn.benchmark
