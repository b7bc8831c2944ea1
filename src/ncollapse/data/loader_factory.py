"""Choose the loader of a data set: resident if the data fit into memory, streaming if they do not."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any
from weakref import WeakKeyDictionary

from ncollapse.data.augment import Augment
from ncollapse.data.dataset import Dataset
from ncollapse.data.decoding import decode
from ncollapse.data.folders import FolderDataset
from ncollapse.data.images import NO_PILLOW
from ncollapse.data.loader import DeviceLoader, EvalLoader
from ncollapse.data.stream import FolderEvalLoader, FolderLoader

RESIDENT_BYTES = 8 << 30
CENTRE = {"imagenet": 224 / 256}
_decoded: WeakKeyDictionary[FolderDataset, dict[int, Dataset]] = WeakKeyDictionary()


def train_loader(
    dataset: Dataset | FolderDataset,
    batch_size: int,
    *,
    augment: Augment | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    workers: int | None = None,
    **options: Any,
) -> DeviceLoader | FolderLoader:
    """Return a DeviceLoader, or a FolderLoader for folders over 8 GiB or with random resized crops.

    The arguments are theirs.
    """
    if isinstance(dataset, Dataset):
        return DeviceLoader(dataset, batch_size, augment=augment, image_size=image_size, channels=channels, **options)
    size = _require_size(dataset, image_size, channels)
    if _fits(dataset, size) and not (augment and augment.resized_crop):
        return DeviceLoader(_decode_once(dataset, size, workers), batch_size, augment=augment, **options)
    return FolderLoader(dataset, batch_size, augment=augment, image_size=size, workers=workers, **options)


def eval_loader(
    dataset: Dataset | FolderDataset,
    batch_size: int = 2048,
    *,
    image_size: int | None = None,
    channels: int | None = None,
    workers: int | None = None,
    **options: Any,
) -> EvalLoader | FolderEvalLoader:
    """Return an EvalLoader, or a FolderEvalLoader for folders over 8 GiB and for ImageNet; the arguments are theirs."""
    if isinstance(dataset, Dataset):
        return EvalLoader(dataset, batch_size, image_size=image_size, channels=channels, **options)
    size, centre = _require_size(dataset, image_size, channels), CENTRE.get(dataset.name, 1.0)
    if _fits(dataset, size) and centre == 1.0:
        return EvalLoader(_decode_once(dataset, size, workers), batch_size, **options)
    return FolderEvalLoader(dataset, batch_size, image_size=size, centre=centre, workers=workers, **options)


def check_form(dataset: Dataset | FolderDataset, image_size: int | None, channels: int | None) -> None:
    """Raise the error that a loader of an image folder would raise, before one is made."""
    if isinstance(dataset, Dataset):
        return
    _require_size(dataset, image_size, channels)
    if find_spec("PIL") is None:
        raise ValueError(NO_PILLOW)


def _decode_once(dataset: FolderDataset, size: int, workers: int | None) -> Dataset:
    """Decode a folder once for each size: a training set is used for training and again for measuring."""
    sizes = _decoded.setdefault(dataset, {})
    if size not in sizes:
        sizes[size] = decode(dataset, size, workers)
    return sizes[size]


def _require_size(dataset: FolderDataset, image_size: int | None, channels: int | None) -> int:
    if image_size is None or image_size < 1:
        raise ValueError(
            "image_size: expected a number of pixels (--image-size for a command), to which the images of "
            f"{dataset.name} are resized, got {image_size}"
        )
    if channels not in (None, 3):
        raise ValueError(f"channels: expected 3 for image folders, got {channels}")
    return image_size


def _fits(dataset: FolderDataset, size: int) -> bool:
    return len(dataset) * 3 * size**2 <= RESIDENT_BYTES
