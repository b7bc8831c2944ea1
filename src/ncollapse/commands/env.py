"""`ncollapse env`: what a bug report needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncollapse.commands.options import parse_args
from ncollapse.console import print_json


@dataclass(frozen=True)
class Args:
    """Print versions, GPUs and the data sets found. Nothing is sent anywhere."""

    data_root: Path | None = None
    """The folder of the data sets; NCOLLAPSE_DATA by default."""
    json: bool = False
    """Print one JSON object."""


def main(argv: list[str]) -> int:
    """Collect and print."""
    args = parse_args(Args, argv, "env")
    from ncollapse.data.check import list_data
    from ncollapse.runs.environment import describe_installation

    found = describe_installation()
    found["data"] = {finding.name: finding.state for finding in list_data(args.data_root)}
    if args.json:
        print_json(found)
    else:
        print("\n".join(to_lines(found)))
    return 0


def to_lines(found: dict[str, Any]) -> list[str]:
    """Lay the facts out as lines of text."""
    cuda = f"CUDA {found['cuda']}" if found["cuda"] else "no CUDA"
    lines = [
        f"ncollapse {found['ncollapse']}",
        f"python {found['python']} on {found['system']}, {found['cores']} cores",
        f"torch {found['torch']}, {cuda}, GPUs: {', '.join(found['gpus']) or 'none'}",
    ]
    for title in ("packages", "extras"):
        names = [f"{name} {version}" for name, version in found[title].items() if version]
        missing = [name for name, version in found[title].items() if not version]
        lines.append(f"{title}: {', '.join(names) or 'none'}")
        if missing:
            lines.append(f"  not installed: {', '.join(missing)}")
    there = [f"{name} ({state})" for name, state in found["data"].items() if state != "missing"]
    lines.append(f"data sets: {', '.join(there) or 'none'}")
    return lines
