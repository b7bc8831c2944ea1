"""The training loop: load the data, build the network, train, measure and record each epoch, then write a summary.

It runs on a CPU, on one GPU with the whole step in a CUDA graph, and under torchrun in several processes. A run may be
killed at any moment and resumes from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ncollapse.output import make_folder
from ncollapse.runs import checkpoint
from ncollapse.runs.environment import describe_run
from ncollapse.runs.epoch_snapshots import BINS, add_epoch, choose_epochs, cut_epochs, reduce_epochs, samples_per_class
from ncollapse.runs.files import write_atomic
from ncollapse.runs.folder import RunFolder
from ncollapse.runs.lock import hold
from ncollapse.theory import Certificate, certify_if_known, predict_if_known
from ncollapse.train import optimiser
from ncollapse.train.backend import own_stream, switches
from ncollapse.train.build import require_data_files
from ncollapse.train.distributed import LostProcess, join
from ncollapse.train.evaluate import describe_split, measure_classes, measure_correct, measure_split, shorten
from ncollapse.train.recipe import Recipe
from ncollapse.train.recover import recover_finished, selection_split, warn_of_restart
from ncollapse.train.schedule import rate_at
from ncollapse.train.setup import Training, prepare
from ncollapse.train.state import tensors_of, values_of

Progress = Callable[[dict[str, Any]], None]
CHECKPOINT_SECONDS = {"cuda": 20.0, "cpu": 1.0}
WRITES_SHARE = 1 / 30
"""Checkpoints are at least `CHECKPOINT_SECONDS` apart and take at most this share of the time. On a CPU the first epoch
of a process is written in any case."""
PROGRESS_SECONDS = 0.5
BOUNDS = tuple(name for item in fields(Certificate) if (name := item.name).endswith("_bound") and name != "lower_bound")
"""What the certified gap implies for the geometry; kept beside it."""
REFUSALS = (ValueError, TypeError, ImportError, FileNotFoundError)
"""Errors that refuse a recipe while the run is prepared: such a run is not recorded as failed."""


class Tracker(Protocol):
    """An object that is given each row of the history, such as one for TensorBoard or MLflow."""

    def log(self, record: dict[str, Any]) -> None: ...


class Diverged(RuntimeError):
    """The loss is no longer finite."""


class _Stop(Exception):
    """Carries an exception raised by the caller's `progress`: not a failure of the run."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause


def run(
    recipe: Recipe,
    out: str | Path,
    *,
    data_root: str | Path | None = None,
    device: str | torch.device | None = None,
    resume: bool = True,
    deterministic: bool = False,
    progress: Progress | None = None,
    trackers: Iterable[Tracker] = (),
    compile: bool | None = None,
    graph: bool | None = None,
) -> dict[str, Any]:
    """Train by a recipe in the folder `out/recipe.run_id` and return the summary written there.

    A finished run is not run again: its summary is returned. One that was started is continued, or refused with
    `resume=False`. Where the data are missing no folder is made, and one of a recipe that turns out to be impossible
    (weights that are not there, a head too narrow) is taken away again. `data_root` defaults to NCOLLAPSE_DATA;
    `device` to a GPU where there is one. `deterministic` asks torch for deterministic algorithms: on a CPU a run that
    was killed and resumed then ends bit for bit as one that was not. `progress` gets an event about twice a second and
    at the end of each epoch; an exception it raises stops the run at the end of the epoch, with a checkpoint. `graph`
    (a GPU alone) captures the step in a CUDA graph, by default wherever possible; `compile` compiles the trunk, by
    default for runs long enough to repay it.

    Several runs share a GPU when each is called in a thread of its own: every run has its own stream, graphs and memory
    pool, takes turns at capturing, and uses no global random numbers after its network is made.
    """
    if not isinstance(recipe, Recipe):
        raise TypeError(f"recipe = {recipe!r} must be a Recipe, such as ncollapse.train.recipes.get('digits')")
    world = join(device)
    folder = RunFolder(Path(out) / recipe.run_id)
    done = world.share(lambda: folder.read_finished(recipe.to_dict()))
    if done is not None:
        return done
    require_data_files(recipe, data_root)
    new = [place for place in (folder.path, *folder.path.parents) if not place.exists()]
    world.share(lambda: make_folder(folder.path, Path(out)))
    training: Training | None = None
    with hold(folder.path) if world.first else contextlib.nullcontext():
        done = world.share(lambda: folder.begin(recipe.to_dict(), describe_run(world.device), resume=resume))
        if done is not None:
            return done
        try:
            with switches(world.device, recipe.precision, deterministic), own_stream(world.device):
                training = prepare(recipe, folder, world, data_root, compile, graph)
                recovered = recover_finished(training, measure_splits)
                if world.first and not recovered:
                    warn_of_restart(training)
                    folder.cut_history(training.epoch)
                    cut_epochs(folder.path, training.epoch)
                return _train(training, progress, tuple(trackers))
        except _Stop as stop:
            raise stop.cause from None
        except Exception as error:
            lost = world.find_loss(error)
            if lost is not None:  # no failure of the run: it can be resumed
                raise LostProcess(f"{lost}; {_describe_resuming(folder)}") from error
            if world.first and training is None and new and isinstance(error, REFUSALS):
                folder.withdraw(new)
            elif world.first:
                folder.fail(recipe.to_dict(), error)
            raise


def _describe_resuming(folder: RunFolder) -> str:
    found = checkpoint.find(folder.checkpoints)
    if not found:
        return "it has no checkpoint yet, so the same command with --resume starts it again"
    return f"the same command with --resume continues it after epoch {int(found[0].name[:6])}"


def _train(run: Training, progress: Progress | None, trackers: tuple[Tracker, ...]) -> dict[str, Any]:
    """The loop."""
    recipe, world, loaders, epochs = run.recipe, run.world, run.loaders, run.recipe.optim.epochs
    batch, samples = recipe.optim.batch_size, sum(loaders.counts)
    kept_epochs = choose_epochs(epochs, recipe.measure_every)
    shown = time.perf_counter()
    while run.epoch < epochs:
        epoch, began = run.epoch + 1, time.perf_counter()
        rate = rate_at(recipe, epoch)
        optimiser.set_rate(run.optimiser, rate)
        run.model.train()
        run.tally.reset()
        stop: Exception | None = None
        for i, (x, y) in enumerate(loaders.train.epoch(epoch)):
            run.step(x, y, min(batch, samples - i * batch))
            now = time.perf_counter()
            if progress is not None and now - shown > PROGRESS_SECONDS and stop is None:
                event = {"epoch": epoch, "step": i + 1, "rate": (i + 1) / (now - began)}
                shown, stop = now, _report(progress, run, event)
        loss = _mean_loss(run, epoch, rate)
        run.epoch, trained = epoch, time.perf_counter()
        measured = epoch % recipe.measure_every == 0 or epoch == epochs
        if measured:
            arrays: dict[str, Tensor] | None = {} if epoch in kept_epochs else None
            record = {
                "epoch": epoch,
                "step": epoch * loaders.train.steps,
                "lr": rate,
                "loss": loss,
                **measure_splits(run, arrays),
            }
            ended = time.perf_counter()
            record["time"] = {"epoch_s": trained - began, "measure_s": ended - trained, "elapsed_s": run.elapsed}
            _keep_best(run, record)
            if world.first:
                run.folder.append(record)
                if arrays:
                    add_epoch(run.folder.path, epoch, {name: tensor.numpy() for name, tensor in arrays.items()})
                for tracker in trackers:
                    tracker.log(record)
            if progress is not None:
                seen = {name: record["train"][name] for name in ("nc1", "nc2", "nc3", "accuracy")}
                steps = loaders.train.steps
                event = {"epoch": epoch, "step": steps, "rate": steps / (trained - began), "loss": loss, **seen}
                stop = _report(progress, run, event) or stop
        stop = world.share(lambda: stop)  # noqa: B023 - called at once
        patience = max(CHECKPOINT_SECONDS[world.device.type], run.write_cost / WRITES_SHARE)
        first = world.device.type == "cpu" and run.write_cost == 0.0
        due = first or trained - run.written > patience
        if world.first and (stop is not None or epoch == epochs or due):
            _write_checkpoint(run)
        if stop is not None:
            raise _Stop(stop)
    return _finish(run)


def _report(progress: Progress, run: Training, event: dict[str, Any]) -> Exception | None:
    """Call `progress`; an exception that it raises is returned, to be raised at the end of the epoch."""
    if not run.world.first:
        return None
    whole = {"run_id": run.recipe.run_id, "epochs": run.recipe.optim.epochs, "steps": run.loaders.train.steps}
    try:
        progress({**whole, **event})
    except Exception as error:
        return error
    return None


def _mean_loss(run: Training, epoch: int, rate: float) -> float:
    """Return the mean loss of the epoch, without decays; raise `Diverged` if it is not finite."""
    run.world.mean(run.tally.sum)
    total, finite = run.tally.read()
    if not math.isfinite(total):
        raise Diverged(
            f"the loss became {total} at epoch {epoch}, step {finite + 1} of {run.loaders.train.steps}, with learning "
            f"rate {rate:g}; {_describe_checkpoint(run)}"
        )
    return total / sum(run.loaders.counts)


def _describe_checkpoint(run: Training) -> str:
    found = checkpoint.find(run.folder.checkpoints)
    last = f"the checkpoint of epoch {int(found[0].name[:6])} is kept" if found else "there is no checkpoint yet"
    return f"{last}: a smaller optim.lr or optim.clip_norm would help"


def measure_splits(run: Training, arrays: dict[str, Tensor] | None = None) -> dict[str, Any]:
    """Measure every split, and certify the gap on the training set.

    The arrays behind the figures of this epoch are added to `arrays`, if it is given.
    """
    record: dict[str, Any] = {"certificate": None}
    run.world.broadcast(dict(run.model.named_buffers()))  # batch norm's, where each process has its own
    for name, batches in run.loaders.measured.items():
        features, labels = run.extract(batches)
        if not bool(features.isfinite().all()):
            raise Diverged(
                f"the features of the {name} split are no longer finite after step {run.loaders.train.steps} of epoch "
                f"{run.epoch}, with learning rate {rate_at(run.recipe, run.epoch):g}; {_describe_checkpoint(run)}"
            )
        if run.world.first:
            whole = features, labels, run.model.head, run.problem
            if arrays is None or name == "validation":
                found = measure_split(*whole)
            else:
                keep = samples_per_class(run.loaders.num_classes)
                found, figures = describe_split(name, *whole, bins=BINS, keep=keep)
                arrays |= figures
            record[name] = shorten(found.to_dict())
            if name == "train":
                record["certificate"] = _certificate(run, features, labels)
    return run.world.share(lambda: record)


def _certificate(run: Training, features: Tensor, labels: Tensor) -> dict[str, float] | None:
    found = certify_if_known(features, labels, run.model.head, run.problem)
    names = ("gap", "relative_gap", "lower_bound", "objective", *BOUNDS)
    return None if found is None else {name: getattr(found, name) for name in names}


def _keep_best(run: Training, record: dict[str, Any]) -> None:
    """Keep the weights of the best epoch so far, by the accuracy on the split that the recipe selects by."""
    name = selection_split(run.recipe)
    if record[name]["accuracy"] > run.best["accuracy"]:
        run.best = {"epoch": record["epoch"], "accuracy": record[name]["accuracy"]}
        run.best_tensors = {key: tensor.clone() for key, tensor in run.model.state_dict().items()}


def _write_checkpoint(run: Training) -> None:
    """Write everything that resuming needs, including the weights of the best epoch, to one file."""
    began = time.perf_counter()
    run.folder.sync_history()
    values = {
        "epoch": run.epoch,
        "best": run.best,
        "seconds": run.elapsed,
        "optim": values_of(run.model, run.optimiser),
    }
    tensors = tensors_of(run.model, run.optimiser)
    tensors |= {f"best.{name}": tensor for name, tensor in run.best_tensors.items()}
    checkpoint.write(run.folder.checkpoints, checkpoint.Checkpoint(run.epoch, tensors, values))
    run.written = time.perf_counter()
    run.write_cost = run.written - began


def _finish(run: Training) -> dict[str, Any]:
    """Write the weights, the full measurement of the selected epoch, the arrays for figures, and last the summary."""
    recipe, folder = run.recipe, run.folder
    selected = run.epoch if recipe.select == "last" else run.best["epoch"]
    if run.world.first:
        write_atomic(folder.path / "final.safetensors", checkpoint.pack(run.model.state_dict()))
        write_atomic(folder.path / "best.safetensors", checkpoint.pack(run.best_tensors))
    if selected != run.epoch:
        with torch.no_grad():
            for name, tensor in run.model.state_dict().items():
                if run.world.first:
                    tensor.copy_(run.best_tensors[name])
        run.world.broadcast(dict(run.model.state_dict()))
    summary: dict[str, Any] = {"status": "finished", "run_id": recipe.run_id, "epoch": run.epoch}
    summary |= {"epochs": recipe.optim.epochs, "selected_epoch": selected, "certificate": None, "reason": None}
    optimum = predict_if_known(run.problem)
    summary |= {"prediction": None if optimum is None else optimum.to_dict(), "traceback": None}
    arrays: dict[str, Tensor] = {}
    for name, batches in run.loaders.measured.items():
        features, labels = run.extract(batches)
        if not run.world.first:
            continue
        full, figures = describe_split(name, features, labels, run.model.head, run.problem, numerical_rank=True)
        summary[name] = full.to_dict()
        if name == "train":
            summary["certificate"] = _certificate(run, features, labels)
        if name == "test":
            summary["test_correct"] = measure_correct(features, labels, run.model.head)
        if name != "train":
            summary[f"{name}_by_class"] = measure_classes(features, labels, run.model.head, run.loaders)
        if name != "validation":
            arrays |= figures
    steps_per_s = run.epoch * run.loaders.train.steps / run.elapsed
    summary["time"] = {"wall_s": run.elapsed, "steps_per_s": steps_per_s, "prepare_s": run.ready - run.started}
    if run.world.first:
        write_atomic(folder.path / "snapshot.safetensors", checkpoint.pack(arrays))
        reduce_epochs(folder.path)
        folder.write_json("summary.json", summary)
        with contextlib.suppress(OSError):  # the run has finished; what is left is removed when it is read again
            for path in checkpoint.find(folder.checkpoints):
                path.unlink(missing_ok=True)
    return run.world.share(lambda: folder.read_summary() or summary)
