"""Import each module of the package by its own name before pytest collects the examples in its docstrings.

Otherwise pytest executes the file a second time, and its classes differ from those the rest of the package uses.
"""

import contextlib
import importlib
from pathlib import Path

SOURCE = Path(__file__).parent / "src"


def pytest_collect_file(file_path, parent):
    if file_path.suffix == ".py" and file_path.is_relative_to(SOURCE) and file_path.name != "__main__.py":
        name = ".".join(file_path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
