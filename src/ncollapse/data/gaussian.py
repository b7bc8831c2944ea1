"""Gaussian mixtures whose class means have a given geometry."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch

from ncollapse.data.dataset import Dataset
from ncollapse.frames import orthogonal_frame, simplex_etf

GEOMETRIES = ("etf", "orthogonal", "random")
KINDS = {int: "a whole number", float: "a number", str: "a name"}


@dataclass(frozen=True)
class Mixture:
    """K classes of unit means in R^d with isotropic noise.

    geometry: "etf" (a simplex ETF, d >= K - 1), "orthogonal" (d >= K) or "random" (independent directions).
    std: the standard deviation of each coordinate. test_per_class: samples of a class in the test split.
    """

    num_classes: int = 10
    dim: int = 16
    per_class: int = 100
    test_per_class: int = 100
    geometry: str = "etf"
    std: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.geometry not in GEOMETRIES:
            raise ValueError(f"gaussian geometry: expected one of {', '.join(GEOMETRIES)}, got {self.geometry!r}")
        least = {"etf": self.num_classes - 1, "orthogonal": self.num_classes, "random": 1}[self.geometry]
        if self.num_classes < 2 or self.dim < max(1, least):
            raise ValueError(
                f"gaussian: expected num_classes >= 2 and, for geometry={self.geometry}, dim >= {max(1, least)}, "
                f"got num_classes={self.num_classes}, dim={self.dim}"
            )
        if self.per_class < 1 or self.test_per_class < 1 or not 0 <= self.std < float("inf"):
            raise ValueError(
                "gaussian: expected per_class >= 1, test_per_class >= 1 and a finite std >= 0, got "
                f"per_class={self.per_class}, test_per_class={self.test_per_class}, std={self.std}"
            )


def load_gaussian(options: str, split: str) -> Dataset:
    """Draw a mixture from options as "num_classes=4,dim=8,std=0.5"; vectors float32 [N, d], class by class.

    >>> load_gaussian("num_classes=4,dim=3,per_class=5", "train").images.shape
    torch.Size([20, 3])
    """
    mixture = parse_mixture(options)
    count = mixture.per_class if split == "train" else mixture.test_per_class
    generator = torch.Generator().manual_seed(mixture.seed)
    means = _draw_means(mixture, generator)
    generator.manual_seed(2 * mixture.seed + (1 if split == "train" else 2))
    labels = torch.arange(mixture.num_classes).repeat_interleave(count)
    noise = torch.randn(len(labels), mixture.dim, generator=generator, dtype=torch.float64)
    classes = tuple(str(label) for label in range(mixture.num_classes))
    name = f"gaussian:{options}" if options else "gaussian"
    return Dataset((means[labels] + mixture.std * noise).float(), labels, classes, name, split)


def parse_mixture(options: str) -> Mixture:
    """Parse the options of a mixture, such as "num_classes=4,dim=8"."""
    known = {item.name: {"int": int, "float": float, "str": str}[str(item.type)] for item in fields(Mixture)}
    chosen: dict[str, Any] = {}
    for part in filter(None, options.split(",")):
        key, _, value = part.partition("=")
        if key not in known:
            raise ValueError(f"gaussian has no option {key!r}; it has {', '.join(known)} (gaussian:dim=8,std=0.5)")
        try:
            chosen[key] = known[key](value)
        except ValueError:
            raise ValueError(f"gaussian option {key}: expected {KINDS[known[key]]}, got {value!r}") from None
    return Mixture(**chosen)


def _draw_means(mixture: Mixture, generator: torch.Generator) -> torch.Tensor:
    if mixture.geometry == "etf":
        return simplex_etf(mixture.num_classes, mixture.dim, generator=generator)
    if mixture.geometry == "orthogonal":
        return orthogonal_frame(mixture.num_classes, mixture.dim, generator=generator)
    directions = torch.randn(mixture.num_classes, mixture.dim, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize(directions, dim=1)
