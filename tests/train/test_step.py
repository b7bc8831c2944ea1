"""Runs side by side: one that captures has the GPU alone for a while."""

import threading

import pytest

from ncollapse.train import step


class Graph:
    """Counts its replays."""

    replays = 0

    def replay(self):
        self.replays += 1


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
