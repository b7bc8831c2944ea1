"""The host runs some steps ahead of the GPU, and no more."""

import pytest
import torch

from ncollapse.train import loop, pace, recipes


class Clock:
    """A stream whose work is done in order, and only when somebody waits for it."""

    def __init__(self):
        self.launched = self.done = self.waits = 0


class Event:
    clock: Clock

    def __init__(self, blocking=False):
        assert blocking  # a thread that spins keeps others from Python's lock
        self.at = None

    def record(self, stream):
        assert stream is self.clock
        self.at = self.clock.launched

    def synchronize(self):
        self.clock.waits += 1
        self.clock.done = max(self.clock.done, self.at)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(Event, "clock", clock, raising=False)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: clock)
    return clock


def test_no_more_than_so_many_steps_are_queued(clock):
    keep_pace, most = pace.Pace(torch.device("cuda")), 0
    for _ in range(5 * pace.AHEAD):
        clock.launched += 1
        keep_pace()
        most = max(most, clock.launched - clock.done)
    assert most == pace.AHEAD
    assert clock.waits == 4 * pace.AHEAD  # one for each step, once the queue is full


def test_a_cpu_is_left_alone(clock):
    keep_pace = pace.Pace(torch.device("cpu"))
    for _ in range(5 * pace.AHEAD):
        keep_pace()
    assert (clock.waits, len(keep_pace.queued)) == (0, 0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_steps_before_are_done():
    device = torch.device("cuda")
    keep_pace, value = pace.Pace(device), torch.zeros(2**24, device=device)
    done = []
    for _ in range(3 * pace.AHEAD):
        value += 1
        event = torch.cuda.Event()
        event.record()
        done.append(event)
        keep_pace()
        assert all(earlier.query() for earlier in done[: -pace.AHEAD])


def test_every_step_of_a_run_keeps_pace(tmp_path, monkeypatch):
    calls = []

    class Counted:
        def __init__(self, device):
            assert device.type == "cpu"

        def __call__(self):
            calls.append(1)

    monkeypatch.setattr(loop, "Pace", Counted)
    recipe = recipes.get("digits").with_epochs(2)
    summary = loop.run(recipe, tmp_path, device="cpu")
    assert summary["status"] == "finished"
    steps = -(-summary["train"]["num_samples"] // recipe.optim.batch_size)
    assert len(calls) == 2 * steps
