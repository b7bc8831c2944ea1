"""Python processes of this package: they import nothing from the working folder, and start and end quickly.

`python -m` and `python -c` put the working folder first on the module path, so that a file there named like a library
(`random.py`, `cattrs.py`) would be imported, and thus executed, in its place.
"""

from __future__ import annotations

import atexit
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
_code: int | None = None
"""The exit code of the command, once it is done."""


def claim_process() -> None:
    """Say that this process runs one of our commands and nothing else, so that we may decide how it collects and ends.

    Called before anything else registers what is to be done at the end: what was registered first is done last.
    """
    global _own
    if not _own:
        atexit.register(_leave)
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


def end_with(code: int) -> int:
    """Have our own process end with this exit code and without the interpreter's clean-up; return the code.

    Threads and what other libraries do at the end are waited for. Then freeing every module takes a tenth of a second
    after an import of torch, a search for garbage a whole one, and the objects of a GPU their own time.
    """
    global _code
    if _own:
        gc.freeze()
        _code = code
    return code


def _leave() -> None:
    """End the process, unless someone watches it who wants to write a report."""
    watched = sys.gettrace() is not None or sys.getprofile() is not None or "coverage" in sys.modules
    if _code is None or watched:
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # the interpreter says what is wrong
        return
    os._exit(_code)
