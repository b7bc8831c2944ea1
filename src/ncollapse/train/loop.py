"""The training loop: load the data, build the network, train, measure and record each epoch, then write a summary.

It runs on a CPU, on one GPU with the whole step in a CUDA graph, and under torchrun in several processes. A run may be
killed at any moment and resumes from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ncollapse.output import make_folder
from ncollapse.runs import checkpoint
from ncollapse.runs.environment import describe_run
from ncollapse.runs.epoch_snapshots import add_epoch, choose_epochs, cut_epochs
from ncollapse.runs.folder import RunFolder
from ncollapse.runs.lock import hold
from ncollapse.train import optimiser
from ncollapse.train.backend import own_modes, own_stream, switches
from ncollapse.train.background import Background
from ncollapse.train.build import require_data_files
from ncollapse.train.distributed import LostProcess, join
from ncollapse.train.divergence import Diverged, describe_checkpoint
from ncollapse.train.finish import finish
from ncollapse.train.measuring import extract_splits, measure_splits
from ncollapse.train.pace import Pace
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
MOST_BYTES_ASIDE = 2**31
"""Features that take more memory are measured before training goes on, so that they can be freed."""
REFUSALS = (ValueError, TypeError, ImportError, FileNotFoundError)
"""Errors that refuse a recipe while the run is prepared: such a run is not recorded as failed."""


class Tracker(Protocol):
    """An object that is given each row of the history, such as one for TensorBoard or MLflow."""

    def log(self, record: dict[str, Any]) -> None: ...


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
    (a GPU alone) captures the step in a CUDA graph, by default wherever possible; `compile` compiles the trunk, which
    made no network of ours faster than its fused kernels are.

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
    if torch.get_default_dtype() != torch.float32:
        raise ValueError(f"torch's default dtype: expected float32 while runs train, got {torch.get_default_dtype()}")
    require_data_files(recipe, data_root)
    new = [place for place in (folder.path, *folder.path.parents) if not place.exists()]
    world.share(lambda: make_folder(folder.path, Path(out)))
    training: Training | None = None
    with hold(folder.path) if world.first else contextlib.nullcontext():
        done = world.share(lambda: folder.begin(recipe.to_dict(), describe_run(world.device), resume=resume))
        if done is not None:
            return done
        try:
            modes = own_modes(world.device)
            with modes, switches(world.device, recipe.precision, deterministic), own_stream(world.device):
                training = prepare(recipe, folder, world, data_root, compile, graph)
                recovered = recover_finished(training, lambda run: measure_splits(run, extract_splits(run)))
                if world.first and not recovered:
                    warn_of_restart(training)
                    folder.cut_history(training.epoch)
                    cut_epochs(folder.path, training.epoch)
                apart = world.device.type == "cuda" and world.size == 1
                with Background(world.device, apart=apart) as background:
                    loop = _Loop(training, progress, tuple(trackers), background)
                    loop.train()
                    return finish(training, background, loop.writing)
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


class _Loop:
    """The loop over the epochs of a run. Beside a GPU's training, the epoch before is measured and written."""

    def __init__(
        self, run: Training, progress: Progress | None, trackers: tuple[Tracker, ...], background: Background
    ) -> None:
        self.run, self.progress, self.trackers, self.background = run, progress, trackers, background
        self.kept_epochs = choose_epochs(run.recipe.optim.epochs, run.recipe.measure_every)
        self.measured: _Measured | None = None
        self.writing: Future[float] | None = None
        self.unwritten: _State | None = None
        self.stop: Exception | None = None
        self.keep_pace = Pace(run.world.device)
        self.shown = time.perf_counter()

    def train(self) -> None:
        """Train to the last epoch."""
        try:
            while self.run.epoch < self.run.recipe.optim.epochs:
                self.train_epoch(self.run.epoch + 1)
        except BaseException:
            with contextlib.suppress(Exception):  # it must not hide why training ended
                self.record()
            raise

    def train_epoch(self, epoch: int) -> None:
        """Train one epoch, measure it if it is due, and write a checkpoint if one is due."""
        run, recipe, world = self.run, self.run.recipe, self.run.world
        began, rate = time.perf_counter(), rate_at(recipe, epoch)
        optimiser.set_rate(run.optimiser, rate)
        run.model.train()
        run.tally.reset()
        if recipe.decays.weak_epochs:
            run.step.set_decays(recipe.decays.at(epoch))
        run.step.begin_epoch()
        batch, samples = recipe.optim.batch_size, sum(run.loaders.counts)
        for i, (x, y) in enumerate(run.loaders.train.epoch(epoch)):
            run.step(x, y, min(batch, samples - i * batch))
            self.keep_pace()
            if self.measured is not None and self.measured.row.done():
                self.record()
            now = time.perf_counter()
            if self.progress is not None and now - self.shown > PROGRESS_SECONDS and self.stop is None:
                self.shown = now
                self.report({"epoch": epoch, "step": i + 1, "rate": (i + 1) / (now - began)})
        self.record()
        loss = _mean_loss(run, epoch, rate)
        run.epoch, trained, last = epoch, time.perf_counter(), epoch == recipe.optim.epochs
        if is_measured(recipe, epoch):
            row = {"epoch": epoch, "step": epoch * run.loaders.train.steps, "lr": rate, "loss": loss}
            self.measure(row, trained - began)
        if self.measured is not None and (last or self.measured.row.done()):
            self.record()
        self.stop = world.share(lambda: self.stop)
        needed = last and not self.background.apart  # beside a GPU the final weights are written at once
        if world.first and (self.stop is not None or needed or (not last and self.is_checkpoint_due(trained))):
            self.write_checkpoint()
        if self.stop is not None:
            if self.writing is not None:
                self.writing.result()
            raise _Stop(self.stop)

    def measure(self, row: dict[str, Any], epoch_s: float) -> None:
        """Start to measure the epoch that has ended, which adds to the row."""
        run, began = self.run, time.perf_counter()
        extracted = extract_splits(run)
        arrays: dict[str, Tensor] | None = {} if extracted.epoch in self.kept_epochs else None
        weights = {key: tensor.clone() for key, tensor in run.model.state_dict().items()}

        def work() -> dict[str, Any]:
            found = measure_splits(run, extracted, arrays)
            times = {"epoch_s": epoch_s, "measure_s": time.perf_counter() - began, "elapsed_s": run.elapsed}
            if arrays and run.world.first:
                add_epoch(run.folder.path, extracted.epoch, {name: array.numpy() for name, array in arrays.items()})
            return {**row, **found, "time": times}

        self.measured = _Measured(self.background.submit(work), weights)
        if extracted.bytes > MOST_BYTES_ASIDE:
            self.record()

    def record(self) -> None:
        """Keep what was measured, once it is there: the row, and the weights if they are best."""
        if self.measured is None:
            return
        measured, self.measured = self.measured, None
        row, run = measured.row.result(), self.run
        _keep_best(run, row, measured.weights)
        if run.world.first:
            run.folder.append(row)
            for tracker in self.trackers:
                tracker.log(row)
        self.begin_checkpoint()
        steps = run.loaders.train.steps
        seen = {name: row["train"][name] for name in ("nc1", "nc2", "nc3", "accuracy")}
        rate = steps / row["time"]["epoch_s"]
        self.report({"epoch": row["epoch"], "step": steps, "rate": rate, "loss": row["loss"], **seen})

    def report(self, event: dict[str, Any]) -> None:
        """Call `progress`; the first exception that it raises is kept, to be raised at the end of the epoch."""
        if self.progress is None or not self.run.world.first:
            return
        recipe, steps = self.run.recipe, self.run.loaders.train.steps
        try:
            self.progress({"run_id": recipe.run_id, "epochs": recipe.optim.epochs, "steps": steps, **event})
        except Exception as error:
            self.stop = self.stop or error

    def is_checkpoint_due(self, now: float) -> bool:
        """Whether enough time has passed since the last one; a failure to write that one is raised here."""
        run = self.run
        if self.writing is not None:
            if not self.writing.done():
                return False
            run.write_cost, self.writing = self.writing.result(), None
        device = run.world.device.type
        first = device == "cpu" and run.write_cost == 0.0
        return first or now - run.written > max(CHECKPOINT_SECONDS[device], run.write_cost / WRITES_SHARE)

    def write_checkpoint(self) -> None:
        """Write everything that resuming needs, including the weights of the best epoch, to one file.

        A checkpoint must not be ahead of the history: where the epoch is still being measured, its state is copied, and
        the file is begun when the row is there. Training goes on meanwhile.
        """
        run = self.run
        if self.writing is not None:
            self.writing.result()
        tensors = tensors_of(run.model, run.optimiser)
        if self.background.apart:
            tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        self.unwritten = _State(run.epoch, tensors, values_of(run.model, run.optimiser), self.background.mark())
        run.written = time.perf_counter()
        if self.measured is None or self.stop is not None:
            self.record()
            self.begin_checkpoint()

    def begin_checkpoint(self) -> None:
        """Begin to write the state that was copied, if there is one; the history has the row of its epoch."""
        run, state, began = self.run, self.unwritten, time.perf_counter()
        if state is None:
            return
        self.unwritten = None
        values = {"epoch": state.epoch, "best": run.best, "seconds": run.elapsed, "optim": state.values}
        tensors = state.tensors | {f"best.{name}": tensor for name, tensor in run.best_tensors.items()}
        content = checkpoint.Checkpoint(state.epoch, tensors, values)

        def work() -> float:
            run.folder.sync_history()
            checkpoint.write(run.folder.checkpoints, content)
            return time.perf_counter() - began

        self.writing = self.background.submit(work, state.copied)


@dataclass(frozen=True)
class _State:
    """The state of training at the end of an epoch, of which a checkpoint is to be written."""

    epoch: int
    tensors: dict[str, Tensor]
    values: dict[str, Any]
    copied: torch.cuda.Event | None
    """When a GPU has copied the tensors."""


@dataclass(frozen=True)
class _Measured:
    """The measurement of an epoch, done or under way."""

    row: Future[dict[str, Any]]
    weights: dict[str, Tensor]


def is_measured(recipe: Recipe, epoch: int) -> bool:
    """Whether an epoch is measured: every so many, and the first and the last, between which NC metrics fall."""
    return epoch % recipe.measure_every == 0 or epoch in (1, recipe.optim.epochs)


def _mean_loss(run: Training, epoch: int, rate: float) -> float:
    """Return the mean loss of the epoch, without decays; raise `Diverged` if it is not finite."""
    run.world.mean(run.tally.sum)
    total, finite = run.tally.read()
    if not math.isfinite(total):
        raise Diverged(
            f"the loss became {total} at epoch {epoch}, step {finite + 1} of {run.loaders.train.steps}, with learning "
            f"rate {rate:g}; {describe_checkpoint(run.folder)}"
        )
    return total / sum(run.loaders.counts)


def _keep_best(run: Training, row: dict[str, Any], weights: dict[str, Tensor]) -> None:
    """Keep the weights of the best epoch so far, by the accuracy on the split that the recipe selects by.

    Epochs with weak decays do not count: their networks minimise another objective.
    """
    name = selection_split(run.recipe)
    if row["epoch"] <= run.recipe.decays.weak_epochs:
        return
    if row[name]["accuracy"] > run.best["accuracy"]:
        run.best = {"epoch": row["epoch"], "accuracy": row[name]["accuracy"]}
        run.best_tensors = weights
