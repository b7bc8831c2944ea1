"""Prepare a run: data, network, optimiser, step, and the state of its last checkpoint."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ncollapse.data import Samples
from ncollapse.models import Network
from ncollapse.runs.folder import RunFolder
from ncollapse.theory import Problem
from ncollapse.train import optimiser
from ncollapse.train.background import begin
from ncollapse.train.build import Loaders, build_model, load_splits, make_loaders
from ncollapse.train.casting import CastFeatures
from ncollapse.train.distributed import World
from ncollapse.train.evaluate import Extractor
from ncollapse.train.objective import Objective
from ncollapse.train.optimiser import Optimiser
from ncollapse.train.perceptron import PerceptronStep, is_perceptron
from ncollapse.train.recipe import Recipe
from ncollapse.train.recover import find_checkpoint
from ncollapse.train.state import restore, tensors_of
from ncollapse.train.step import EagerStep, GraphSearchStep, GraphStep, SearchStep, Tally
from ncollapse.train.verify import import_kernels, verify_kernels, verify_last_layer
from ncollapse.train.verify_folding import verify_folding
from ncollapse.train.verify_update import verify_update


@dataclass
class Training:
    """Everything a run holds while it trains."""

    recipe: Recipe
    folder: RunFolder
    world: World
    loaders: Loaders
    model: Network
    problem: Problem | None
    optimiser: Optimiser
    step: EagerStep
    tally: Tally
    extract: Extractor
    epoch: int = 0
    best: dict[str, Any] = field(default_factory=lambda: {"epoch": 0, "accuracy": -1.0})
    best_tensors: dict[str, Tensor] = field(default_factory=dict)
    seconds: float = 0.0
    """Trained before this process, by the checkpoint."""
    started: float = 0.0
    ready: float = field(default_factory=time.perf_counter)
    written: float = field(default_factory=time.perf_counter)
    write_cost: float = 0.0

    @property
    def elapsed(self) -> float:
        return self.seconds + time.perf_counter() - self.started


def prepare(
    recipe: Recipe,
    folder: RunFolder,
    world: World,
    data_root: str | Path | None,
    compile: bool | None,
    graph: bool | None,
    splits: dict[str, Samples] | None = None,
) -> Training:
    """Data, network, optimiser, step; then the state of the last checkpoint, if there is one.

    `splits` are the samples where they have been read before.
    """
    started = time.perf_counter()
    cuda, searches = world.device.type == "cuda", recipe.optim.name == "lbfgs"
    if graph and (not cuda or world.size > 1):
        raise ValueError("graph=True needs one GPU and one process")
    if searches and world.size > 1:
        raise ValueError("optim.name = 'lbfgs' runs in one process: its line search needs the whole batch")
    graph = cuda and world.size == 1 if graph is None else graph

    if splits is None and cuda:
        reading = begin(lambda: load_splits(recipe, data_root))
        import_kernels()
        splits = reading.result()
    elif splits is None:
        splits = load_splits(recipe, data_root)
    loaders = make_loaders(recipe, splits, world)
    model, problem = build_model(recipe, loaders, world)
    objective = Objective(
        model,
        recipe.loss.make().to(world.device),
        recipe.decays,
        precision=recipe.precision,
        weight_decay=recipe.optim.weight_decay if searches else 0.0,
        world=world.size,
    )
    if cuda:
        x, y = loaders.train.prepare(1, 0)
        verify_kernels(recipe.model.name, model, x, recipe.precision)
        if graph and not compile:
            verify_folding(recipe.model.name, model, x, recipe.precision)
        verify_last_layer(objective, y)
    solver = optimiser.make(recipe.optim, model)
    ours = ":" not in recipe.model.name  # others may use weights in their way
    if ours and graph and recipe.precision == "bf16":
        fused = recipe.optim.clip_norm is None and not searches and verify_update(recipe.optim, world.device)
        objective.features = CastFeatures(model, compile=bool(compile), optimiser=solver if fused else None)
    elif compile:
        objective.features = torch.compile(model.features)
    minimised = objective if world.size == 1 else nn.parallel.DistributedDataParallel(objective)
    tally = Tally(world.device)
    pool = torch.cuda.graph_pool_handle() if graph else None
    extract = Extractor(model, recipe.precision, world, pool=pool, compile=bool(compile))

    start = {name: tensor.clone() for name, tensor in tensors_of(model, solver).items()}
    model.train()
    step = make_step(recipe, minimised, solver, tally, loaders, pool)
    training = Training(recipe, folder, world, loaders, model, problem, solver, step, tally, extract, started=started)

    take_checkpoint(training, start)
    return training


def make_step(
    recipe: Recipe, objective: nn.Module, solver: Optimiser, tally: Tally, loaders: Loaders, pool: Any
) -> EagerStep:
    """The step of a run; with a `pool` of memory for CUDA graphs, a captured one."""
    searches = recipe.optim.name == "lbfgs"
    if pool is None:
        kind = SearchStep if searches else PerceptronStep if is_perceptron(objective) else EagerStep
        return kind(objective, solver, recipe.optim, tally)
    sizes = {len(y): (x, y) for x, y in (loaders.train.prepare(1, i) for i in {0, loaders.train.steps - 1})}
    stages = recipe.decays.stages if recipe.decays.weak_epochs else ()
    captured = GraphSearchStep if searches else GraphStep
    return captured(objective, solver, recipe.optim, tally, list(sizes.values()), pool, stages)


def take_checkpoint(training: Training, start: dict[str, Tensor]) -> None:
    """Put a run into the state of its last checkpoint; without one into that of `start`, which capturing changes."""
    world, model, solver = training.world, training.model, training.optimiser
    saved = find_checkpoint(training.folder, model, training.recipe.optim.epochs) if world.first else None
    values, forms = world.share(lambda: ({}, {}) if saved is None else (saved.values, _describe(saved.tensors)))
    if saved is not None:
        start = saved.tensors
        best = {name: tensor for name, tensor in start.items() if name.startswith("best.")}
        training.best_tensors = {name.removeprefix("best."): tensor for name, tensor in best.items()}
    elif forms:  # another process has read the checkpoint: make room for what it broadcasts
        start = {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in forms.items()}
    if training.step.graphs is not None or forms:
        restore(model, solver, start, values.get("optim", {}))
    world.broadcast(tensors_of(model, solver))
    if values:
        training.epoch, training.best, training.seconds = values["epoch"], values["best"], values["seconds"]


def _describe(tensors: dict[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shapes and types of the tensors of a checkpoint that every process holds."""
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items() if not name.startswith("best.")}
