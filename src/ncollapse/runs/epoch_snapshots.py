"""Small snapshots of a few epochs, for the figures with an epoch slider.

A run's `epochs.safetensors` holds, for about ten of its measured epochs, a few features a class, the Gram matrices of
the classifier and the class means, the biases and the histograms of scores. Names are `EPOCH/NAME`, with the names of
`snapshot.safetensors` where the content is the same. While a run trains the features have all their dimensions; when it
ends they are reduced to their first principal components in the last epoch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ncollapse.runs.files import read_bounded, write_atomic
from ncollapse.runs.schema import MOST_EPOCHS, check_snapshot

FILE = "epochs.safetensors"
EPOCHS = 10
SAMPLES = 150
"""So many features of a split are kept at most, the same number of every class."""
PER_CLASS = 15
CLASSES = 20
"""So many classes the Gram matrices have at most; of more, evenly spaced ones."""
COMPONENTS = 3
BINS = 48
LARGEST = 256 << 20
LARGEST_HALF = 6e4
"""Float16 ends at 65504."""
GRAMS = ("gram.weight", "gram.means", "gram.cross")
CLOUDS = ("train.features", "test.features")

Arrays = dict[str, np.ndarray]
EpochSnapshots = dict[int, Arrays]


def choose_epochs(epochs: int, every: int = 1, most: int = EPOCHS) -> frozenset[int]:
    """The epochs of which a snapshot is kept: measured ones, the first ones close together, the last one always.

    >>> sorted(choose_epochs(100))
    [1, 2, 3, 5, 8, 13, 22, 36, 60, 100]
    >>> sorted(choose_epochs(25, every=10))
    [1, 10, 20, 25]
    """
    measured = sorted({1, *range(every, epochs, every), epochs})
    places = (round(len(measured) ** (i / (most - 1))) for i in range(most))
    return frozenset(measured[place - 1] for place in places)


def samples_per_class(num_classes: int) -> int:
    """How many features of each class are kept."""
    return max(1, min(PER_CLASS, SAMPLES // max(1, num_classes)))


def thin_epoch(arrays: Arrays) -> Arrays:
    """What is kept of the arrays of a snapshot: at most `SAMPLES` features a split, Gram matrices, histograms."""
    scores = tuple(f"{split}.{sign}_score." for split in ("train", "test") for sign in ("positive", "negative"))
    names = ("bias", "train.counts")
    kept = {name: array for name, array in arrays.items() if name in names or name.startswith(scores)}
    for split in ("train", "test"):
        features = arrays.get(f"{split}.features")
        if features is None:
            continue
        chosen = np.linspace(0, len(features) - 1, min(len(features), SAMPLES)).round().astype(int)
        kept[f"{split}.features"] = _shrink(features[chosen])
        kept[f"{split}.labels"] = arrays[f"{split}.labels"][chosen]
    weight, means = arrays.get("weight"), arrays.get("train.class_means")
    if weight is not None and means is not None:
        classes = np.arange(0, len(weight), -(-len(weight) // CLASSES))
        w, h = np.asarray(weight[classes], np.float64), np.asarray(means[classes], np.float64)
        kept |= {name: gram.astype(np.float32) for name, gram in zip(GRAMS, (w @ w.T, h @ h.T, w @ h.T))}
        kept["gram.classes"] = classes
    return kept


def add_epoch(folder: Path, epoch: int, arrays: Arrays) -> None:
    """Add what is kept of an epoch's arrays to the file of a run; the file is replaced in one step."""
    new = thin_epoch(arrays)
    known = _load_sound(folder) or {}
    before = {e: kept for e, kept in known.items() if e < epoch and _same_space(kept, new)}
    write_epochs(folder, {**before, epoch: new})


def cut_epochs(folder: Path, epoch: int) -> None:
    """Remove the snapshots past an epoch, because the run continues from there."""
    found = _load_sound(folder)
    kept = {e: arrays for e, arrays in (found or {}).items() if e <= epoch}
    if not kept:
        (folder / FILE).unlink(missing_ok=True)
    elif found is not None and len(kept) < len(found):
        write_epochs(folder, kept)


def reduce_epochs(folder: Path) -> None:
    """Replace the features in the file of a run that has ended by their coordinates along the last epoch's axes."""
    found = _load_sound(folder) or {}
    reduced = reduce_features(found)
    if reduced is not found:
        write_epochs(folder, reduced)


def reduce_features(epochs: EpochSnapshots) -> EpochSnapshots:
    """Features as coordinates along the first principal components of the last epoch; few dimensions stay as they are.

    The axes are those of the training features. The origin stays where it is, and other arrays do not change.
    """
    axes = principal_axes(epochs[max(epochs)]) if epochs else None
    if axes is None or axes.shape[0] <= COMPONENTS:
        return epochs
    reduced = {epoch: dict(arrays) for epoch, arrays in epochs.items()}
    for arrays in reduced.values():
        for name in CLOUDS:
            if name in arrays:
                arrays[name] = (np.asarray(arrays[name], np.float64) @ axes).astype(np.float32)
    return reduced


def principal_axes(arrays: Arrays) -> np.ndarray | None:
    """Orthonormal columns [d, c]: the first principal components of the training features, or else of the test ones."""
    features = arrays.get("train.features", arrays.get("test.features"))
    if features is None or len(features) < 2:
        return None
    cloud = np.asarray(features, np.float64)
    axes: np.ndarray = np.linalg.svd(cloud - cloud.mean(0), full_matrices=False)[2][:COMPONENTS].T
    return axes


def write_epochs(folder: Path, epochs: EpochSnapshots) -> None:
    """Write the snapshots of a run's epochs, in one step."""
    from safetensors.numpy import save

    flat = {
        f"{epoch}/{name}": np.ascontiguousarray(a) for epoch, arrays in epochs.items() for name, a in arrays.items()
    }
    write_atomic(folder / FILE, save(flat))


def read_epochs(folder: Path) -> tuple[EpochSnapshots, str | None]:
    """The snapshots of a run's epochs, in their order, and what is wrong with their file; nothing where there is none.

    >>> read_epochs(Path("no/such/run"))
    ({}, None)
    """
    try:
        return _load_epochs(folder), None
    except (OSError, ValueError) as error:
        return {}, f"{FILE}: {error or type(error).__name__}"


def _load_epochs(folder: Path) -> EpochSnapshots:
    """The same; content that no run writes is a ValueError."""
    from safetensors.numpy import load

    try:
        content = read_bounded(folder / FILE, LARGEST)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    found: EpochSnapshots = {}
    try:
        for key, array in load(content).items():
            epoch, _, name = key.partition("/")
            if not epoch.isdecimal() or not 0 < int(epoch) <= MOST_EPOCHS or not name:
                raise ValueError(f"{key}: expected a name such as 12/train.features")
            found.setdefault(int(epoch), {})[name] = array
        for epoch in sorted(found):
            _check_epoch(found[epoch], epoch)
    except MemoryError:  # of this process, no fault of the file
        raise
    except Exception as error:  # the library raises its own kinds
        raise ValueError(str(error) or type(error).__name__) from error
    return {epoch: found[epoch] for epoch in sorted(found)}


def _load_sound(folder: Path) -> EpochSnapshots | None:
    """The snapshots of a run that goes on; None where their file is damaged.

    An error of the file system is raised: what cannot be read now may be whole.
    """
    try:
        return _load_epochs(folder)
    except ValueError:
        return None


def _check_epoch(arrays: Arrays, epoch: int) -> None:
    try:
        check_snapshot(arrays)
    except ValueError as error:
        raise ValueError(f"epoch {epoch}: {error}") from None
    classes = arrays.get("gram.classes")
    for name in GRAMS:
        gram = arrays.get(name)
        if gram is not None and (classes is None or gram.shape != (len(classes), len(classes))):
            raise ValueError(f"epoch {epoch}: {name}: expected one row and one column for each of gram.classes")


def _same_space(first: Arrays, second: Arrays) -> bool:
    """Whether the features of two epochs have as many dimensions."""
    shapes = [{arrays[name].shape[1] for name in CLOUDS if name in arrays} for arrays in (first, second)]
    return shapes[0] == shapes[1]


def _shrink(features: np.ndarray) -> np.ndarray:
    """Features in half precision where their range allows it."""
    largest = float(np.abs(features).max()) if features.size else 0.0
    return features.astype(np.float16 if largest < LARGEST_HALF else np.float32)
