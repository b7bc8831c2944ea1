"""Which data sets are below a root, which are missing, and whether those that are there can be read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ncollapse.data.catalogue import INFO, SPLITS, Samples, find_folder, find_root, load, suggest_name
from ncollapse.data.dataset import MissingSplit
from ncollapse.data.folders import FolderDataset
from ncollapse.data.images import read_image

NAMED = 5
"""So many unreadable images are named, the others counted."""


@dataclass(frozen=True)
class Finding:
    """One data set: state is "embedded", "there" (not read), "sound", "damaged" or "missing".

    where: its folder, or the one to put it into. problems make it unusable, warnings do not; notes are facts.
    """

    name: str
    state: str
    where: str
    train: int
    test: int
    num_classes: int
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def list_data(root: str | os.PathLike[str] | None = None) -> list[Finding]:
    """Which data sets have a folder below the root; nothing is read. Without a root only the embedded one is there."""
    if root is None and not os.environ.get("NCOLLAPSE_DATA"):
        return [_find(name, None) for name in INFO]
    base = find_root(root)
    if not base.is_dir():
        raise FileNotFoundError(f"root: no folder {base}")
    return [_find(name, base) for name in INFO]


def check_data(root: str | os.PathLike[str] | None = None, names: tuple[str, ...] = ()) -> list[Finding]:
    """Read every data set that is there (or those named): structure, counts and published md5 sums.

    A sum that differs is a warning, since the same images exist in other archives. Image folders known by name are
    counted, their images not decoded; those of folder:PATH are all decoded.
    """
    own = [name for name in names if name.startswith(("folder:", "npz:"))]
    unknown = [name for name in names if name not in INFO and name not in own]
    if unknown:
        hint = suggest_name(unknown[0])
        raise ValueError(f"names: expected {', '.join(INFO)}, folder:PATH or npz:PATH, got {unknown[0]!r}{hint}")
    known = list_data(root) if not names or set(names) - set(own) else []
    found = [finding for finding in known if not names or finding.name in names]
    checked = [_check(finding, root) if finding.state != "missing" else finding for finding in found]
    return checked + [check_own(name) for name in own]


def check_own(name: str) -> Finding:
    """Read data of the user's own: count the samples of every class, and decode every image of a folder."""
    splits: dict[str, Samples] = {}
    problems: list[str] = []
    notes: list[str] = []
    for split in SPLITS:
        try:
            splits[split] = load(name, None, split)
        except MissingSplit:
            notes.append("no test split: a fifth of each class is held out for it")
        except (ValueError, OSError) as error:
            problems.append(str(error))
    for split, samples in splits.items():
        if isinstance(samples, FolderDataset):
            problems += _find_unreadable(samples, split)
    sizes = [len(splits[split]) if split in splits else 0 for split in SPLITS]
    train = splits.get("train")
    if train is not None:
        notes.append(describe_counts(train))
    where, classes = name.partition(":")[2], 0 if train is None else train.num_classes
    state = "damaged" if problems else "sound"
    warnings = () if train is None else tuple(_find_small(train, held_out="test" not in splits))
    return Finding(
        name, state, where, sizes[0], sizes[1], classes, tuple(dict.fromkeys(problems)), warnings, tuple(notes)
    )


def describe_counts(samples: Samples) -> str:
    """Say how many training samples the classes have, the largest and the smallest by name.

    >>> describe_counts(load("digits"))
    'training samples a class: 139 (8) to 146 (1), ratio 1.05'
    >>> describe_counts(load("gaussian:per_class=20"))
    'training samples a class: 20'
    """
    counts = samples.counts()
    if len(set(counts)) == 1:
        return f"training samples a class: {counts[0]}"
    least, most = (pick(range(len(counts)), key=counts.__getitem__) for pick in (min, max))
    ratio = counts[most] / counts[least] if counts[least] else float("inf")
    ends = [f"{counts[label]} ({samples.classes[label]})" for label in (least, most)]
    return f"training samples a class: {ends[0]} to {ends[1]}, ratio {ratio:.3g}"


def _find_small(samples: Samples, held_out: bool) -> Iterator[str]:
    """Warn of classes too small for a test share of their own."""
    least = 3 if held_out else 1
    small = [name for name, count in zip(samples.classes, samples.counts()) if count < least]
    if small:
        what = f"fewer than {least} samples, none of which is held out for testing" if held_out else "no sample"
        yield f"{', '.join(small[:3])}{f' and {len(small) - 3} more' if len(small) > 3 else ''}: {what}"


def _find_unreadable(samples: FolderDataset, split: str) -> list[str]:
    """Decode every image; name the first that fail."""
    found = []
    for path in samples.paths:
        try:
            read_image(path)
        except ValueError as error:
            found.append(str(error))
    more = [f"{split}: {len(found) - NAMED} more images cannot be decoded"] if len(found) > NAMED else []
    return found[:NAMED] + more


def _find(name: str, base: Path | None) -> Finding:
    info = INFO[name]
    if not info.folders:
        state, where = "embedded", "scikit-learn"
    elif base is None:
        state, where = "missing", str(Path("ROOT", info.folders[0]))
    else:
        try:
            state, where = "there", str(find_folder(name, base))
        except FileNotFoundError:
            state, where = "missing", str(base / info.folders[0])
    return Finding(name, state, where, info.train, info.test, info.num_classes)


def _check(finding: Finding, root: str | os.PathLike[str] | None) -> Finding:
    info, name = INFO[finding.name], finding.name
    problems, sizes, classes = [], [], 0
    for split in SPLITS:
        try:
            dataset = load(name, root, split)
        except (ValueError, OSError) as error:
            problems.append(str(error))
            continue
        sizes.append(len(dataset))
        classes = dataset.num_classes
        if len(dataset) != getattr(info, split) or classes != info.num_classes:
            problems.append(
                f"{name} ({split}) holds {len(dataset)} images of {classes} classes, "
                f"{getattr(info, split)} of {info.num_classes} are published"
            )
    state = "damaged" if problems else finding.state if finding.state == "embedded" else "sound"
    warnings = tuple(_compare_sums(name, Path(finding.where))) if finding.state == "there" else ()
    counts = (sizes[0], sizes[1], classes) if len(sizes) == 2 else (info.train, info.test, info.num_classes)
    return Finding(name, state, finding.where, *counts, tuple(dict.fromkeys(problems)), warnings)


def _compare_sums(name: str, folder: Path) -> list[str]:
    different = []
    for file, published in INFO[name].files.items():
        path = folder / file
        if path.is_file():
            with path.open("rb") as stream:
                found = hashlib.file_digest(stream, "md5").hexdigest()
            if found != published:
                different.append(f"{path}: md5 {found}, published {published}")
    return different
