"""How pixels are normalised before they enter a network: chosen by a word or by numbers, and said in words."""

from __future__ import annotations

from typing import Any, NamedTuple

from ncollapse.data.catalogue import IMAGENET_STATISTICS, NORMALISATION

WORDS = ("auto", "none", "recipe", "imagenet", "model")


class Normalisation(NamedTuple):
    """Pixels in [0, 1] minus a mean, over a standard deviation, one number a channel or one for all.

    origin: where the numbers come from, in words. scaled: whether values are scaled to [0, 1] first, as bytes are;
    floating point values are taken as they are.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    origin: str
    scaled: bool = True

    def of(self, samples: Any) -> Normalisation:
        """The same for the values that a data set holds."""
        images = getattr(samples, "images", None)  # image files hold bytes
        return self._replace(scaled=images is None or not images.is_floating_point())

    @property
    def identity(self) -> bool:
        """Whether pixels stay as they are."""
        return set(self.mean) == {0.0} and set(self.std) == {1.0}

    def describe(self) -> str:
        """One line for people.

        >>> Normalisation((0.5,), (0.25,), "given").describe()
        'pixels in [0, 1], minus mean 0.5, over std 0.25 (given)'
        """
        values = "pixels in [0, 1]" if self.scaled else "floating point values as they are"
        if self.identity:
            return f"{values}, not normalised ({self.origin})"
        mean, std = (", ".join(f"{value:g}" for value in numbers) for numbers in (self.mean, self.std))
        return f"{values}, minus mean {mean}, over std {std} ({self.origin})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name."""
        return {"mean": list(self.mean), "std": list(self.std), "origin": self.origin}


def choose_normalisation(text: str, dataset: str, network: Any = None) -> Normalisation:
    """The normalisation that a word or numbers name.

    Args:
        text: "none": pixels in [0, 1]. "recipe": the statistics of the data set that our recipes use. "imagenet": those
            of ImageNet. "model": what `network` says of itself (timm's `pretrained_cfg`). "auto": as "recipe" where the
            data set has one, else "none". Or numbers, MEAN,.../STD,... with one or three of each.
        dataset: the name of the data set.
        network: the network that is measured, for "model".

    >>> choose_normalisation("0.5,0.5,0.5/0.25,0.25,0.25", "cifar10").mean
    (0.5, 0.5, 0.5)
    """
    known = NORMALISATION.get(dataset)
    if text == "none" or (text == "auto" and known is None):
        return Normalisation((0.0,), (1.0,), f"no recipe says how for {dataset}" if text == "auto" else "as asked")
    if text in ("auto", "recipe"):
        if known is None:
            raise ValueError(
                f"normalise: 'recipe' is known for {', '.join(NORMALISATION)}, not for {dataset!r}; give 'none' or "
                "MEAN,.../STD,..."
            )
        return Normalisation(*known, f"our recipes' for {dataset}")
    if text == "imagenet":
        return Normalisation(*IMAGENET_STATISTICS, "ImageNet's")
    if text == "model":
        return _ask(network)
    return _read(text)


def _ask(network: Any) -> Normalisation:
    for name in ("pretrained_cfg", "default_cfg"):
        said = getattr(network, name, None)
        if isinstance(said, dict) and "mean" in said and "std" in said:
            return Normalisation(_floats(said["mean"]), _floats(said["std"]), f"the model's {name}")
    raise ValueError(
        f"normalise: 'model' needs a network with a `pretrained_cfg` (timm's have one), got {type(network).__name__}; "
        "give MEAN,.../STD,... instead"
    )


def _read(text: str) -> Normalisation:
    parts = text.split("/")
    try:
        mean, std = (_floats(part.split(",")) for part in parts)
    except ValueError:
        raise ValueError(f"normalise: expected {', '.join(WORDS)} or MEAN,.../STD,..., got {text!r}") from None
    if len(mean) != len(std) or not all(value > 0 for value in std):
        raise ValueError(f"normalise: expected as many means as standard deviations, all of these > 0, got {text!r}")
    return Normalisation(mean, std, "as given")


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
