"""Where training goes on: the newest checkpoint that fits, or the final weights of a run whose summary was lost."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ncollapse.runs import checkpoint
from ncollapse.runs.checkpoint import Checkpoint
from ncollapse.runs.history import find_missing_epochs, read_history

if TYPE_CHECKING:
    from ncollapse.runs.folder import RunFolder
    from ncollapse.train.recipe import Recipe
    from ncollapse.train.setup import Training

CHECKED = ("nc1", "accuracy", "weight_energy", "feature_energy")
TOLERANCE = {"cpu": 1e-6, "cuda": 1e-2}
"""How far the final weights, measured again, may be from the last row of the history, relatively."""
log = logging.getLogger("ncollapse.train")


def find_checkpoint(folder: RunFolder, model: torch.nn.Module, epochs: int) -> Checkpoint | None:
    """Return the newest checkpoint that is whole and fits the model; others are passed over with a warning."""
    for saved in checkpoint.read_newest_first(folder.checkpoints):
        misfit = find_misfit(saved, model, epochs)
        if misfit is None:
            return saved
        log.warning(
            "checkpoint of epoch %d in %s does not fit (%s) and is passed over", saved.epoch, folder.path, misfit
        )
    return None


def find_misfit(saved: Checkpoint, model: torch.nn.Module, epochs: int) -> str | None:
    """Say why training cannot go on from a checkpoint; None if it can."""
    values, tensors = saved.values, saved.tensors
    best, optim = values.get("best"), values.get("optim")
    if not 1 <= saved.epoch <= epochs:
        return f"epoch {saved.epoch} of {epochs}"
    if not isinstance(best, dict) or not {"epoch", "accuracy"} <= best.keys() or not _is_number(values.get("seconds")):
        return "its values are not those of a run"
    parts = ("model", "best") if best["epoch"] else ("model",)  # none counts before the decays are full
    for name, tensor in model.state_dict().items():
        for key in (f"{part}.{name}" for part in parts):
            if key not in tensors or tensors[key].shape != tensor.shape or tensors[key].dtype != tensor.dtype:
                return f"{key} is missing or has another shape"
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not isinstance(optim, dict) or not optim.keys() <= trained:
        return "its optimiser has other parameters"
    for name, state in optim.items():
        for key, value in state.items() if isinstance(state, dict) else [("state", {})]:
            if isinstance(value, dict):
                length = value.get("length")
                if not isinstance(length, int) or any(f"optim.{name}.{key}.{i}" not in tensors for i in range(length)):
                    return f"the state of {name} in the optimiser is incomplete"
    return None


def recover_finished(run: Training, measure: Callable[[Training], dict[str, Any]]) -> bool:
    """Put a run that had trained to its end, but lost its summary, where it ended; False if that is not possible.

    The final weights must measure as the last row of the history says: weights that were changed since are not used.
    """
    epochs = run.recipe.optim.epochs
    found = run.world.share(lambda: _read_end(run) if run.epoch < epochs else None)
    if found is None:
        return False
    row, best = found
    before = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    checkpointed = run.epoch, run.best_tensors
    if run.world.first:
        final = _read_weights(run, "final.safetensors")
        run.best_tensors = _read_weights(run, "best.safetensors") or {}
        _copy(run.model, final or before)
    run.world.broadcast(dict(run.model.state_dict()))
    run.epoch = epochs
    again = measure(run)
    tolerance = TOLERANCE.get(run.world.device.type, 1e-2)
    off = [name for name in CHECKED if not _is_close(again["train"].get(name), row["train"].get(name), tolerance)]
    if off:
        log.warning("%s: the final weights do not measure as its history says (%s)", run.folder.path, ", ".join(off))
        _copy(run.model, before)
        run.epoch, run.best_tensors = checkpointed
        return False
    run.best = best
    elapsed = row.get("time", {}).get("elapsed_s")
    run.seconds = float(elapsed) if _is_number(elapsed) else 0.0
    log.warning("%s: its summary was lost; it is made again from the final weights", run.folder.path)
    return True


def selection_split(recipe: Recipe) -> str:
    """The split whose accuracy decides which epoch is the best."""
    return "validation" if recipe.select == "best-validation" else "test"


def warn_of_restart(run: Training) -> None:
    """Say so where epochs that were recorded are trained again, for want of a checkpoint."""
    last = run.folder.last_epoch()
    if run.epoch == 0 and last:
        log.warning("%s: no usable checkpoint; its %d recorded epochs are trained again", run.folder.path, last)


def _read_end(run: Training) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the last row and the best epoch of a history that is whole, with final weights that fit the model."""
    recipe, epochs = run.recipe, run.recipe.optim.epochs
    rows = read_history(run.folder.path, [], epochs)
    if not rows or rows[-1]["epoch"] != epochs or not isinstance(rows[-1].get("train"), dict):
        return None
    if find_missing_epochs(rows, recipe.measure_every, epochs, epochs):
        return None
    if _read_weights(run, "final.safetensors") is None or _read_weights(run, "best.safetensors") is None:
        return None
    split = selection_split(recipe)
    best: dict[str, Any] = {"epoch": 0, "accuracy": -1.0}
    for row in rows:
        accuracy = (row.get(split) or {}).get("accuracy")
        counts = row["epoch"] > recipe.decays.weak_epochs and _is_number(accuracy)
        if counts and accuracy > best["accuracy"]:
            best = {"epoch": row["epoch"], "accuracy": accuracy}
    return rows[-1], best


def _read_weights(run: Training, name: str) -> dict[str, Tensor] | None:
    """Return the weights in a file of the run's folder, None if they do not fit the model."""
    try:
        tensors, _ = checkpoint.unpack((run.folder.path / name).read_bytes())
    except Exception:  # the library raises its own kinds
        return None
    own = run.model.state_dict()
    fits = tensors.keys() == own.keys() and all(tensors[key].shape == own[key].shape for key in own)
    return tensors if fits else None


def _copy(model: torch.nn.Module, tensors: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(tensors[name])


def _is_close(first: Any, second: Any, tolerance: float) -> bool:
    if first is None or second is None:
        return first is second
    return math.isclose(first, second, rel_tol=tolerance, abs_tol=1e-12)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
