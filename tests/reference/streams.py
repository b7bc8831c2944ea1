"""Pretended CUDA streams: what is run on one knows what it comes after, in whatever order a GPU takes the streams."""

from contextlib import contextmanager

import torch


class Stream:
    """Stands for a CUDA stream; `seen` is all that is done before what is launched on it next."""

    def __init__(self, device=None):
        self.seen, self.device = set(), device

    def wait_stream(self, stream):
        self.seen |= stream.seen

    def wait_event(self, event):
        self.seen |= event

    def record_event(self):
        return frozenset(self.seen)


def pretend(monkeypatch):
    """Let torch's streams be pretended ones; the first of them is the current one."""
    now = [Stream()]

    @contextmanager
    def use(stream):
        now.append(stream)
        yield
        now.pop()

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", use)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: now[-1])


def run(work):
    """Note some work on the current stream, and return all that is done before it."""
    stream = torch.cuda.current_stream()
    before = frozenset(stream.seen)
    stream.seen.add(work)
    return before
