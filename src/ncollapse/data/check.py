"""What of the known data sets is below a root, what is missing, and whether what is there is sound."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from ncollapse.data.catalogue import INFO, SPLITS, find_folder, find_root, load


@dataclass(frozen=True)
class Finding:
    """One data set: state is "embedded", "there" (not read), "sound", "damaged" or "missing".

    where: its folder, or the one to put it into. problems make it unusable, warnings do not.
    """

    name: str
    state: str
    where: str
    train: int
    test: int
    num_classes: int
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def list_data(root: str | os.PathLike[str] | None = None) -> list[Finding]:
    """Which data sets have a folder below the root; nothing is read. Without a root only the embedded one is there."""
    if root is None and not os.environ.get("NCOLLAPSE_DATA"):
        return [_find(name, None) for name in INFO]
    base = find_root(root)
    if not base.is_dir():
        raise FileNotFoundError(f"no folder {base} for the data root")
    return [_find(name, base) for name in INFO]


def check_data(root: str | os.PathLike[str] | None = None, names: tuple[str, ...] = ()) -> list[Finding]:
    """Read every data set that is there (or those named): structure, counts and published md5 sums.

    A sum that differs is a warning: the same images are around in other wrappings. Image folders are counted, their
    images not decoded.
    """
    unknown = [name for name in names if name not in INFO]
    if unknown:
        raise ValueError(f"no data set {unknown[0]!r}; there are {', '.join(INFO)}")
    found = [finding for finding in list_data(root) if not names or finding.name in names]
    return [_check(finding, root) if finding.state != "missing" else finding for finding in found]


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
