"""Python processes of this package: started so that they import nothing from the working folder, and quickly imported.

`python -m` and `python -c` put the working folder first on the module path, so that a file there named like a library
(`random.py`, `cattrs.py`) would be imported, and thus executed, in its place.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SAFE_PATH = "PYTHONSAFEPATH"
"""The environment variable that keeps the working folder off the module path of a Python process and its children."""
START = """\
import sys
from importlib import import_module, util
spec = util.spec_from_file_location("ncollapse", sys.argv[1], submodule_search_locations=[sys.argv[2]])
package = sys.modules["ncollapse"] = util.module_from_spec(spec)
spec.loader.exec_module(package)
import_module(sys.argv[3]).main()
"""


def python_command(module: str) -> list[str]:
    """Return a command that runs `main()` of a module of this very package, wherever the package was imported from."""
    folder = Path(__file__).resolve().parent
    return [sys.executable, "-P", "-c", START, str(folder / "__init__.py"), str(folder), module]


@contextmanager
def safe_path() -> Iterator[None]:
    """Have the Python processes that start in this block leave the working folder off their module path."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


_own = False
"""Whether this process runs one of our commands and nothing else."""


def claim_process() -> None:
    """Say that this process runs one of our commands and nothing else, so that we may tune its garbage collector."""
    global _own
    _own = True


@contextmanager
def importing() -> Iterator[None]:
    """Import modules in this block without the garbage collector, which then ignores them for good.

    Modules live as long as their process, and searching them for garbage takes a fifth of the time of their import.
    Does nothing in a process that is not our own.
    """
    if not _own or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def leave_garbage() -> None:
    """Have the interpreter end without a last search for garbage, which takes a second after an import of torch."""
    if _own:
        gc.freeze()
