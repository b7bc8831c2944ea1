"""What an experiment costs on one H200, estimated from measured steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ncollapse.train import Recipe

STEP_MS = {
    "resnet18": 1.83,
    "resnet50": 5.66,
    "densenet121": 7.77,
    "densenet121-small": 3.97,
    "vit-small": 4.27,
}
"""Milliseconds of a captured step, batch 128, 32 x 32 pixels, bf16: results/benchmarks/networks-h200.json, and for
densenet121-small the same benchmark of an earlier version."""
GIGA_OPERATIONS = {
    "resnet18": 0.56,
    "resnet32": 0.07,
    "resnet34": 1.16,
    "resnet101": 2.52,
    "densenet161": 2.5,
    "mlp-1024": 0.008,
    "mlp-2048": 0.027,
    "mlp-small": 0.001,
}
"""Multiply-adds of a forward pass at 32 x 32 pixels, in 10^9, by which a step of ResNet18 is scaled for networks whose
own was not measured."""
SMALLEST_MS = 0.6
SEARCH_SECONDS = 0.39
"""One step of L-BFGS, batch 512, ImageNet's stem: 98 steps took 191 s where five processes shared the GPU (run
d7ce95b762b7), of which this is a fifth. It waits for the host between the 25 evaluations of its line search."""
EVALUATION = 0.14
"""The cost of a measured sample relative to a trained one: 0.13 s for 60 000, 0.77 s for 50 000 (run 6b330cd1584c)."""
PREPARE_SECONDS = 5.5
"""Reading the data and capturing, once for each run; same source."""
PACKED = 0.96
"""The time of a run with three at a time on one GPU, relative to one at a time: 428 steps a second and 413."""


def scale_of_width(name: str, factor: float) -> float:
    """How many times as long a step takes if the inner channels of a ResNet's blocks are so many times as many.

    A bottleneck's outer channels, whose norms take most of the time, stay as they are: by steps of width 1 (5.66 ms)
    and 2 (8.77) in one process, and of 0.25 (5.0 in run e4e30b9a7290, with kernels by which width 1 took 6.17). Nearly
    all of a basic block grows with its width.

    >>> round(scale_of_width("resnet50", 1.0), 2), scale_of_width("resnet18", 2.0)
    (1.0, 2.0)
    """
    return 0.789 + 0.042 * factor + 0.169 * factor**2 if name in ("resnet50", "resnet101") else factor


def estimate_step(name: str) -> float:
    """Milliseconds of a step of a network, batch 128, 32 x 32 pixels, by its own name or that of a wide one."""
    width = 1.0
    if name.startswith("wide-"):
        name, _, factor = name.removeprefix("wide-").partition("-")
        width = scale_of_width(name, float(factor or 1))
    small = STEP_MS["resnet18"] * GIGA_OPERATIONS.get(name, 0.56) / GIGA_OPERATIONS["resnet18"]
    return width * STEP_MS.get(name, small)


def estimate_minutes(recipe: Recipe) -> float:
    """GPU minutes of one run on an H200, by the measured step of its network; an estimate."""
    from ncollapse.data.catalogue import INFO
    from ncollapse.train.theory import count_samples

    size = recipe.data.image_size or (84 if recipe.data.name == "mini-imagenet" else 32)
    area = (size / 32) ** 2 / (16 if recipe.model.stem == "imagenet" else 1)
    whole = estimate_step(recipe.model.name) * area / 1e3
    info = INFO[recipe.data.name]
    samples = count_samples(recipe.data) or info.train
    batch = recipe.optim.batch_size
    step = max(SMALLEST_MS / 1e3, whole * batch / 128)
    epoch = samples / batch * (max(SEARCH_SECONDS, 25 * step) if recipe.optim.name == "lbfgs" else step)
    measure = EVALUATION * (samples + info.test) / 128 * whole / recipe.measure_every
    return (PREPARE_SECONDS + recipe.optim.epochs * (epoch + measure)) / 60
