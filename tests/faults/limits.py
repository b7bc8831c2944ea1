"""Real limits of the system: a small disk, few file descriptors, little memory. What was trained is not lost."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path

from faults.campaign import SKIPPED, Family
from faults.kills import describe, execute, find_difference, find_loss, reference, train

KIB = 1024


def check_small_disk(seed: int, place: Path) -> str:
    """Train on a file system with room for some of the files; then with room for all."""
    disk = place / "disk"
    disk.mkdir()
    whole, _, folder = reference("train")
    needed = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) // KIB + 1
    size = random.Random(seed).randrange(4, max(8, 3 * needed))
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(disk)]
    if os.name == "nt" or os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        return f"{SKIPPED}a small file system can be mounted by root alone"
    try:
        out = disk / "out"
        out.mkdir()
        code, said, _ = execute(train, out)
        if code not in (0, 70):
            return f"{size} KiB: ended with {code}: {said[-300:]}"
        if code == 70 and "No space left" not in said:
            return f"{size} KiB: the error does not say that the disk is full: {said[-300:]}"
        if problem := find_loss(out, whole):
            return f"{size} KiB: {problem}"
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True, capture_output=True)
        code, said, _ = execute(train, out)
        return f"{size} KiB: with room it ended with {code}: {said[-300:]}" if code else compare(out, whole)
    finally:
        subprocess.run(["umount", str(disk)], capture_output=True)


def compare(out: Path, whole: dict[str, object]) -> str:
    return find_difference(describe(out), whole, 0)


def check_limit(lower: Callable[[int], None]) -> Callable[[int, Path], str]:
    """Train under a limit, then without it."""

    def check(seed: int, place: Path) -> str:
        whole, _, _ = reference("train")
        out = place / "out"
        out.mkdir()

        def limited(folder: Path) -> int:
            lower(seed)
            return train(folder)

        code, said, _ = execute(limited, out)
        if code == -14:
            return f"it hung: {said[-300:]}"
        if problem := find_loss(out, whole):
            return problem
        code, said, _ = execute(train, out)
        return f"without the limit it ended with {code}: {said[-300:]}" if code else compare(out, whole)

    return check


def few_descriptors(seed: int) -> None:
    used = len(os.listdir("/proc/self/fd"))
    count = used + seed % 12
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


def little_memory(seed: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    room = pages * resource.getpagesize() + (seed % 40) * 256 * KIB
    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (room, room))


FAMILIES = [
    Family("limit/disk", "a full disk is named; with room, the run ends as it should", 120, 2, check_small_disk),
    Family("limit/descriptors", "without descriptors nothing is lost", 60, 1, check_limit(few_descriptors)),
    Family("limit/memory", "without memory nothing is lost", 80, 1, check_limit(little_memory)),
]
