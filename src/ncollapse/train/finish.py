"""The end of a run: its weights, the full measurement of the selected epoch, the arrays for figures, the summary."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from ncollapse.runs import checkpoint
from ncollapse.runs.epoch_snapshots import reduce_epochs
from ncollapse.runs.files import write_atomic
from ncollapse.theory import predict_if_known
from ncollapse.train.background import Background
from ncollapse.train.evaluate import describe_split, measure_classes, measure_correct
from ncollapse.train.measuring import certify_split
from ncollapse.train.setup import Training


def finish(run: Training, background: Background, writing: Future[float] | None) -> dict[str, Any]:
    """Write the weights, the full measurement of the selected epoch, the arrays for figures, and last the summary.

    `writing` is a checkpoint that is still being written. With the final weights and the history a run that is killed
    from there on can be finished (`recover`).
    """
    folder, last = run.folder, run.epoch
    saving = begin_saving(run, background) if run.world.first else None
    selected = last if run.recipe.select == "last" else run.best["epoch"]
    if selected != last:
        load_best(run)
    summary: dict[str, Any] = {"status": "finished", "run_id": run.recipe.run_id, "epoch": last}
    summary |= {"epochs": run.recipe.optim.epochs, "selected_epoch": selected, "certificate": None, "reason": None}
    optimum = predict_if_known(run.problem)
    summary |= {"prediction": None if optimum is None else optimum.to_dict(), "traceback": None}
    measured, arrays = measure_selected(run)
    summary |= measured
    steps_per_s = last * run.loaders.train.steps / run.elapsed
    summary["time"] = {"wall_s": run.elapsed, "steps_per_s": steps_per_s, "prepare_s": run.ready - run.started}
    if saving is not None:
        write_atomic(folder.path / "snapshot.safetensors", checkpoint.pack(arrays))
        reduce_epochs(folder.path)
        for under_way in (writing, saving):
            if under_way is not None:
                under_way.result()
        folder.write_json("summary.json", summary)
        with contextlib.suppress(OSError):  # the run has finished; what is left is removed when it is read again
            for path in checkpoint.find(folder.checkpoints):
                path.unlink(missing_ok=True)
    return run.world.share(lambda: folder.read_summary() or summary)


def begin_saving(run: Training, background: Background) -> Future[None]:
    """Begin to write the final weights, as they are now, and those of the best epoch."""
    final, best = run.model.state_dict(), run.best_tensors
    if background.apart:  # else the last checkpoint has just been written, and this is written now
        final = {name: tensor.clone() for name, tensor in final.items()}

    def work() -> None:
        if background.apart:
            run.folder.sync_history()
        write_atomic(run.folder.path / "final.safetensors", checkpoint.pack(final))
        write_atomic(run.folder.path / "best.safetensors", checkpoint.pack(best))

    return background.submit(work)


def load_best(run: Training) -> None:
    """Give the model the weights of the best epoch."""
    with torch.no_grad():
        for name, tensor in run.model.state_dict().items():
            if run.world.first:
                tensor.copy_(run.best_tensors[name])
    run.world.broadcast(dict(run.model.state_dict()))


def measure_selected(run: Training) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What the summary says of every split, and the arrays for figures."""
    found: dict[str, Any] = {}
    arrays: dict[str, Tensor] = {}
    for name, batches in run.loaders.measured.items():
        features, labels = run.extract(batches)
        if not run.world.first:
            continue
        full, figures = describe_split(name, features, labels, run.model.head, run.problem, numerical_rank=True)
        found[name] = full.to_dict()
        if name == "train":
            found["certificate"] = certify_split(run, features, labels, run.model.head)
        if name == "test":
            found["test_correct"] = measure_correct(features, labels, run.model.head)
        if name != "train":
            found[f"{name}_by_class"] = measure_classes(features, labels, run.model.head, run.loaders)
        if name != "validation":
            arrays |= figures
    return found, arrays
