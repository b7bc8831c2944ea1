"""What an experiment costs on one H200, estimated from measured steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ncollapse.train import Recipe

STEP_SECONDS = 2.44e-3
"""One compiled and captured step of ResNet18, batch 128, 32 x 32 pixels, bf16, on one H200: results/benchmarks."""
SMALLEST_STEP = 0.6e-3
SEARCH_SECONDS = 0.39
"""One step of L-BFGS, batch 512, ImageNet's stem: 98 steps took 191 s where five processes shared the GPU (run
d7ce95b762b7), of which this is a fifth. It waits for the host between the 25 evaluations of its line search."""
EVALUATION = 0.18
"""The cost of a measured sample relative to a trained one: 0.20 s for 60 000 and 0.95 s for 50 000; same source."""
PREPARE_SECONDS = 11.0
"""Reading the data, compiling and capturing, once for each run; same source."""
PACKED = 0.82
"""The time of a run with four at a time on one GPU, relative to one at a time: 2.0 ms for each step; same source."""
GIGA_OPERATIONS = {
    "resnet18": 0.56,
    "resnet32": 0.07,
    "resnet34": 1.16,
    "resnet50": 1.54,
    "resnet101": 2.52,
    "densenet121": 2.3,
    "densenet121-small": 1.07,
    "densenet161": 2.5,
    "vit-small": 1.4,
    "mlp-1024": 0.008,
    "mlp-2048": 0.027,
    "mlp-small": 0.001,
}
"""Multiply-adds of a forward pass at 32 x 32 pixels, in 10^9. For `resnet50` and the small DenseNets, whose steps wait
for memory and launches, what their measured steps amount to beside ResNet18's."""


def scale_of_width(name: str, factor: float) -> float:
    """How many times the operations of a ResNet grow if the inner channels of its blocks do so `factor` times.

    A bottleneck of p inner and 4p outer channels has 8 p^2 operations that grow linearly, 9 p^2 that grow squared, and
    on average 1.8 p^2 (projections, the stem) that do not grow. Nearly all of a basic block's grow linearly.

    >>> scale_of_width("resnet50", 1.0), scale_of_width("resnet18", 2.0)
    (1.0, 2.0)
    """
    return (1.8 + 8 * factor + 9 * factor**2) / 18.8 if name in ("resnet50", "resnet101") else factor


def estimate_minutes(recipe: Recipe) -> float:
    """GPU minutes of one run on an H200: the measured step of ResNet18, scaled by operations; an estimate."""
    from ncollapse.data.catalogue import INFO
    from ncollapse.train.theory import count_samples

    name = recipe.model.name
    width = 1.0
    if name.startswith("wide-"):
        name, _, factor = name.removeprefix("wide-").partition("-")
        width = scale_of_width(name, float(factor or 1))
    size = recipe.data.image_size or (84 if recipe.data.name == "mini-imagenet" else 32)
    area = (size / 32) ** 2 / (16 if recipe.model.stem == "imagenet" else 1)
    operations = GIGA_OPERATIONS.get(name, 0.56) * width * area / GIGA_OPERATIONS["resnet18"]
    info = INFO[recipe.data.name]
    samples = count_samples(recipe.data) or info.train
    batch = recipe.optim.batch_size
    step = max(SMALLEST_STEP, STEP_SECONDS * operations * batch / 128)
    epoch = samples / batch * (max(SEARCH_SECONDS, 25 * step) if recipe.optim.name == "lbfgs" else step)
    measure = EVALUATION * (samples + info.test) / 128 * STEP_SECONDS * operations / recipe.measure_every
    return (PREPARE_SECONDS + recipe.optim.epochs * (epoch + measure)) / 60
