"""Training that diverged, and what is left of it."""

from __future__ import annotations

from ncollapse.runs import checkpoint
from ncollapse.runs.folder import RunFolder


class Diverged(RuntimeError):
    """The loss or the features are no longer finite."""


def describe_checkpoint(folder: RunFolder) -> str:
    """Which checkpoint is kept, and what would help."""
    found = checkpoint.find(folder.checkpoints)
    last = f"the checkpoint of epoch {int(found[0].name[:6])} is kept" if found else "there is no checkpoint yet"
    return f"{last}: a smaller optim.lr or optim.clip_norm would help"
