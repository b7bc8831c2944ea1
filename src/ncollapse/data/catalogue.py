"""The data sets known by name: what they hold, where their files go, and how to read them."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, field
from pathlib import Path

from ncollapse.data.arrays import load_npz
from ncollapse.data.cifar import load_cifar
from ncollapse.data.dataset import Dataset
from ncollapse.data.digits import load_digits
from ncollapse.data.folders import FolderDataset, load_folder, load_mini_imagenet
from ncollapse.data.gaussian import load_gaussian
from ncollapse.data.idx import DIGITS, GARMENTS, load_idx

SPLITS = ("train", "test")
Samples = Dataset | FolderDataset
"""What `load` returns."""
CIFAR_STATISTICS = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
IMAGENET_STATISTICS = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
NORMALISATION: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "digits": ((0.3058,), (0.3759,)),
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2860,), (0.3530,)),
    "cifar10": CIFAR_STATISTICS,
    "cifar100": CIFAR_STATISTICS,
    "imagenet": IMAGENET_STATISTICS,
    "mini-imagenet": IMAGENET_STATISTICS,
}


@dataclass(frozen=True)
class Info:
    """Facts of one data set.

    shape: of one image, None where it varies. train, test: the numbers of samples. folders: where its files are
    looked for below the data root, in this order; none if it is embedded. files: their published md5 sums.
    """

    shape: tuple[int, int, int] | None
    num_classes: int
    train: int
    test: int
    folders: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)


INFO: dict[str, Info] = {
    "digits": Info((1, 8, 8), 10, 1438, 359),
    "mnist": Info(
        (1, 28, 28),
        10,
        60_000,
        10_000,
        ("MNIST/raw", "MNIST", "mnist"),
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "fashion-mnist": Info(
        (1, 28, 28),
        10,
        60_000,
        10_000,
        ("FashionMNIST/raw", "FashionMNIST", "fashion-mnist"),
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    "cifar10": Info(
        (3, 32, 32),
        10,
        50_000,
        10_000,
        ("cifar-10-batches-py",),
        {
            "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
        },
    ),
    "cifar100": Info(
        (3, 32, 32),
        100,
        50_000,
        10_000,
        ("cifar-100-python",),
        {
            "meta": "7973b15100ade9c7d40fb424638fde48",
            "train": "16019d7e3df5f24257cddd939b257f8d",
            "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        },
    ),
    "imagenet": Info(None, 1000, 1_281_167, 50_000, ("imagenet", "ImageNet")),
    "mini-imagenet": Info(None, 100, 50_000, 10_000, ("mini-imagenet", "miniImageNet")),
}
KNOWN = f"{', '.join(INFO)}, gaussian, folder:PATH or npz:PATH"


def is_known(name: str) -> bool:
    """Whether `load` knows a data set of this name; its files need not be there.

    >>> is_known("cifar10"), is_known("npz:mine.npz"), is_known("cifar11")
    (True, True, False)
    """
    kind, _, rest = name.partition(":")
    return name in INFO or kind == "gaussian" or (kind in ("folder", "npz") and rest != "")


def load(name: str, root: str | os.PathLike[str] | None = None, split: str = "train") -> Samples:
    """Read a data set: a name of INFO, "folder:PATH", "npz:PATH", or "gaussian" ("gaussian:num_classes=4,std=0.5").

    `root` defaults to the environment variable NCOLLAPSE_DATA. Image folders come back as a FolderDataset.

    >>> load("digits").images.shape
    torch.Size([1438, 1, 8, 8])
    """
    if not isinstance(name, str):
        raise TypeError(f"name: expected the name of a data set, got {name!r}")
    if root is not None and not isinstance(root, (str, os.PathLike)):
        raise TypeError(f"root: expected a path, got {root!r}")
    if not isinstance(split, str) or split not in SPLITS:
        raise ValueError(f"split: expected one of {', '.join(SPLITS)}, got {split!r}")
    kind, _, rest = name.partition(":")
    if kind == "gaussian":
        return load_gaussian(rest, split)
    if kind in ("folder", "npz") and rest:
        place = Path(rest).expanduser()  # a shell expands ~ at the start of a word only
        return load_folder(place, split, name) if kind == "folder" else load_npz(place, split)
    if name == "digits":
        return load_digits(split)
    if not is_known(name):
        raise ValueError(f"data set: expected one of {KNOWN}, got {name!r}{suggest_name(name)}")
    folder = find_folder(name, root)
    if name in ("imagenet", "mini-imagenet"):
        return load_folder(folder, split, name) if name == "imagenet" else load_mini_imagenet(folder, split)
    if name in ("mnist", "fashion-mnist"):
        dataset = load_idx(folder, split, name, DIGITS if name == "mnist" else GARMENTS)
    else:
        dataset = load_cifar(folder, split, name)
    check_structure(dataset)
    return dataset


def suggest_name(name: str) -> str:
    """Return what someone who gave an unknown name probably meant, to be put behind an error.

    >>> suggest_name("cifar-10"), suggest_name("nothing")
    ('; did you mean cifar10?', '')
    """
    kind = "folder" if Path(name).is_dir() else "npz" if Path(name).suffix == ".npz" else None
    near = [f"{kind}:{name}"] if kind else difflib.get_close_matches(name, INFO, 1)
    return f"; did you mean {near[0]}?" if near else ""


def check_structure(dataset: Dataset) -> None:
    """Raise unless a data set has the published shape, classes and number of samples of its name."""
    info = INFO[dataset.name]
    published = (getattr(info, dataset.split), info.shape, info.num_classes)
    found = (len(dataset), dataset.shape, dataset.num_classes)
    if found != published:
        raise ValueError(
            f"{dataset.name} ({dataset.split}) must hold {published[0]} images {published[1]} of {published[2]} "
            f"classes; the files hold {found[0]} images {found[1]} of {found[2]}"
        )


def find_root(root: str | os.PathLike[str] | None) -> Path:
    """Return the folder of the data sets: the argument, else NCOLLAPSE_DATA."""
    chosen = root if root is not None else os.environ.get("NCOLLAPSE_DATA")
    if not chosen:
        raise ValueError(
            "no data root: set the environment variable NCOLLAPSE_DATA, or give root (--data-root DIR for a command)"
        )
    return Path(chosen)


def list_files(name: str, root: str | os.PathLike[str] | None) -> list[Path]:
    """List the files (or the folder of images) that a data set is read from; raise if its folder is missing."""
    kind, _, rest = name.partition(":")
    if kind in ("folder", "npz"):
        return [Path(rest).expanduser()]
    if name not in INFO or not INFO[name].folders:
        return []
    folder = find_folder(name, root)
    return [folder / file for file in INFO[name].files]


def find_folder(name: str, root: str | os.PathLike[str] | None) -> Path:
    """Return the folder below the root that holds the files of a data set."""
    base = find_root(root)
    for folder in INFO[name].folders:
        if (base / folder).is_dir():
            return base / folder
    home = base / INFO[name].folders[0]
    raise FileNotFoundError(f"{name} is missing: its files go into {home} (see ncollapse data list)")
