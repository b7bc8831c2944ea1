"""Where the seconds of a `train` command go before its first step and after its last one.

    python benchmarks/startup.py digits --epochs 3 --out runs/startup

The arguments are those of `ncollapse train`. The command runs in a process of its own, from prompt to prompt. Each line
is one part of it: when it began, how long it took and in which thread. Parts may contain others. Run it twice: the
first run reads libraries from the disk, compiles kernels and compares them. A line says so if Python finds no bytecode
of torch: compiling its sources takes seconds in every process (pip compiles them at installation, other installers may
not, and PYTHONDONTWRITEBYTECODE keeps Python from doing it).
"""

import atexit
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PARTS = {
    "ncollapse.commands.train": ("parse", "run", "_print_summary"),
    "ncollapse.train.loop": ("join", "require_data_files", "describe_run", "prepare", "extract_splits", "finish"),
    "ncollapse.train.setup": (
        *("load_splits", "make_loaders", "build_model"),
        *("verify_kernels", "verify_folding", "verify_last_layer"),
    ),
    "ncollapse.train.capture": ("_capture",),
    "ncollapse.train.step": ("GraphStep",),
    "ncollapse.runs.files": ("write_atomic",),
    "ncollapse.runs.checkpoint": ("write", "write_atomic"),
    "ncollapse.train.finish": ("describe_split", "certify_split", "write_atomic", "reduce_epochs"),
}
"""The functions that are timed, by the module that calls them; what a version does not have is left out."""
FIRST_CALLS = ("extract_splits", "_capture")
"""Of functions that are called every epoch, so many calls are shown."""
SHOWN_CALLS = 4
IMPORTS = ("torch", "numpy", "scipy", "tyro", "triton", "torch._dynamo", "ncollapse.train", "sklearn")


def main() -> None:
    if os.environ.get("NCOLLAPSE_TIMELINE"):
        raise SystemExit(trace_command(sys.argv[1:]))
    with tempfile.TemporaryDirectory() as folder:
        kept, began = Path(folder) / "timeline.json", time.time()
        env = {**os.environ, "NCOLLAPSE_TIMELINE": str(kept)}
        code = subprocess.run([sys.executable, __file__, *sys.argv[1:]], env=env).returncode
        ended = time.time()
        rows = json.loads(kept.read_text()) if kept.exists() else []
    rows += [["whole command", "", began, ended - began]]
    if rows[:-1]:
        last = max(start + took for _, _, start, took in rows[:-1])
        rows += [["end of the process", "", last, ended - last]]
    print(f"{'began s':>8} {'took s':>8}  what")
    for what, thread, start, took in sorted(rows, key=lambda row: row[2]):
        print(f"{start - began:8.2f} {took:8.3f}  {what}{f'  [{thread}]' if thread not in ('', 'MainThread') else ''}")
    raise SystemExit(code)


def trace_command(args: list[str]) -> int:
    """Run `ncollapse train` in this process and write what was timed to the file of NCOLLAPSE_TIMELINE."""
    import threading
    from importlib import import_module

    rows: list[tuple[str, str, float, float]] = []
    counts: dict[str, int] = {}

    def timed(name: str, function):  # type: ignore[no-untyped-def]
        def call(*args, **kwargs):  # type: ignore[no-untyped-def]
            began = time.time()
            try:
                return function(*args, **kwargs)
            finally:
                counts[name] = counts.get(name, 0) + 1
                if counts[name] <= SHOWN_CALLS or name not in FIRST_CALLS:
                    rows.append((name, threading.current_thread().name, began, time.time() - began))

        return call

    class Finder:
        """Sees what is imported, and finds nothing itself."""

        def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
            if name in IMPORTS:
                rows.append((f"import {name} begins", threading.current_thread().name, time.time(), 0.0))

    def import_command(name: str):  # type: ignore[no-untyped-def]
        began = time.time()
        command = import_module(name)
        rows.append(("all imports", "MainThread", began, time.time() - began))
        for module, functions in PARTS.items():
            found = sys.modules.get(module)
            for function in functions:
                if found is not None and hasattr(found, function):
                    setattr(
                        found,
                        function,
                        timed(f"{module.removeprefix('ncollapse.')}.{function}", getattr(found, function)),
                    )
        return command

    sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]
    sys.argv = ["ncollapse", "train", *args]
    from ncollapse import cli

    cli.import_module = import_command  # type: ignore[assignment]
    rows.append(("Python is there", "MainThread", time.time(), 0.0))
    code = cli.main()
    torch = sys.modules.get("torch")
    if torch is not None and not os.path.exists(str(torch.__cached__)):
        rows.append(("torch was compiled from its sources: this installation has no bytecode", "", time.time(), 0.0))
    atexit.register(lambda: Path(os.environ["NCOLLAPSE_TIMELINE"]).write_text(json.dumps(rows)))
    return code


if __name__ == "__main__":
    main()
