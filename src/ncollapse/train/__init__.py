"""Training: recipes, one loop, run folders that survive a kill."""

from ncollapse.train import recipes
from ncollapse.train.divergence import Diverged
from ncollapse.train.loop import run
from ncollapse.train.recipe import DataSpec, DecaySpec, LossSpec, ModelSpec, OptimSpec, Recipe, ScheduleSpec

__all__ = [
    "DataSpec",
    "DecaySpec",
    "Diverged",
    "LossSpec",
    "ModelSpec",
    "OptimSpec",
    "Recipe",
    "ScheduleSpec",
    "recipes",
    "run",
]
