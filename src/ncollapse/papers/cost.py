"""What an experiment costs on one H200, estimated from measured steps.

The run ids are those of records under results/runs. What no record measures is said to be assumed.
"""

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
}
"""Multiply-adds of a forward pass at 32 x 32 pixels, in 10^9, by which a step of ResNet18 is scaled for networks whose
own was not measured."""
FIXED_SHARE = 0.4
"""The share of a step at batch 128 that fewer or smaller images do not shorten: ResNet18 takes 1.00 ms at batch 32 (run
dd937fa94dc4, which had the GPU alone). Measured for ResNet18, assumed for the others."""
SMALLEST_MS = FIXED_SHARE * STEP_MS["resnet18"]
"""At least this for a convolutional network; assumed, by ResNet18."""
PERCEPTRON_MS = 0.345
"""A step of a perceptron without its weights. Fitted, with the next, to the fastest epochs of four runs that shared a
GPU: of mlp-2048 under Adam when the others had ended (6255d8a6ae88, 0.60 ms a step), of the others while these were
measured (5e711ececa3a, 0.38; d5d42b236b49, 0.43; e39ab9eb0d89, 0.48), so that their own steps may be faster still. The
batch was 32; up to 128 it is assumed not to matter. Networks narrower than 1024 were not run on a GPU."""
MS_PER_MILLION_WEIGHTS = {"sgd": 0.0053, "adam": 0.0089, "adamw": 0.0089, "lbfgs": 0.0053}
"""What reading and writing the weights, gradients and state adds to it; same runs, L-BFGS as SGD."""
PERCEPTRON_MEASURE_MS = 1.1e-5
"""Measuring a sample, for every feature: 0.29 s for 13 000 samples of 2048 features (run 6255d8a6ae88, alone on its
GPU). That it is proportional to both is assumed; 1024 features took 0.10 s beside another run."""
EVALUATIONS = 25
"""Of the objective in a step of L-BFGS, about: the limit of torch, which the last line search may pass by a few."""
SEARCH_MS = 2.0
"""What the search adds to each evaluation, on the host. Assumed: on small tensors of a CPU it is 0.6 ms for as many
parameters as ResNet18 has, and starting kernels takes longer. The one run on a GPU (d7ce95b762b7) took 1.7 s a step,
but five processes shared that GPU, and evaluations were not CUDA graphs yet."""
EVALUATION = 0.14
"""The cost of a measured sample relative to a trained one: 0.13 s for 60 000, 0.77 s for 50 000 (run 6b330cd1584c)."""
PREPARE_SECONDS = 5.5
"""Reading the data and capturing, once for each run; same source."""
PACKED = 0.96
"""The time of a run with three at a time on one GPU, relative to one at a time: 428 steps a second and 413."""
PACKED_PERCEPTRONS = 0.5
"""The same for four perceptrons at a time: the runs of `PERCEPTRON_MS` took 410 s together; one at a time, 817 s are
estimated."""


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
    """GPU minutes of one run that has an H200 to itself; an estimate, by steps that were measured."""
    from ncollapse.data.catalogue import INFO
    from ncollapse.train.theory import count_samples

    info = INFO[recipe.data.name]
    samples = count_samples(recipe.data) or info.train
    epoch = samples / recipe.optim.batch_size * estimate_step_of(recipe) / 1e3
    epoch += (samples + info.test) * estimate_measurement(recipe) / 1e3 / recipe.measure_every
    return (PREPARE_SECONDS + recipe.optim.epochs * epoch) / 60


def estimate_step_of(recipe: Recipe) -> float:
    """Milliseconds of a step of a run."""
    weights = count_weights(recipe)
    if weights is None:
        whole, share = estimate_step(recipe.model.name), scale_of_images(recipe) * recipe.optim.batch_size / 128
        step = max(SMALLEST_MS, whole * max(share, FIXED_SHARE + (1 - FIXED_SHARE) * share))
    else:
        step = PERCEPTRON_MS + MS_PER_MILLION_WEIGHTS[recipe.optim.name] * weights / 1e6
    return EVALUATIONS * (step + SEARCH_MS) if recipe.optim.name == "lbfgs" else step


def estimate_measurement(recipe: Recipe) -> float:
    """Milliseconds of measuring one sample."""
    from ncollapse.models.create import perceptron_shape

    shape = perceptron_shape(recipe.model.name)
    if shape is not None:
        return PERCEPTRON_MEASURE_MS * shape[0]
    return EVALUATION * estimate_step(recipe.model.name) * scale_of_images(recipe) / 128


def scale_of_images(recipe: Recipe) -> float:
    """How many times as many pixels the blocks of a network see as with 32 x 32 pixels and the small stem."""
    size = recipe.data.image_size or (84 if recipe.data.name == "mini-imagenet" else 32)
    return (size / 32) ** 2 / (16 if recipe.model.stem == "imagenet" else 1)


def count_weights(recipe: Recipe) -> int | None:
    """The weights of a perceptron without its classifier; None for other networks."""
    from ncollapse.data.catalogue import INFO
    from ncollapse.models.create import perceptron_shape

    shape = perceptron_shape(recipe.model.name)
    if shape is None:
        return None
    (width, depth), (channels, size, _) = shape, INFO[recipe.data.name].shape or (3, 84, 84)
    inputs = channels * (recipe.data.image_size or size) ** 2
    return width * (inputs + (depth - 1) * width)
