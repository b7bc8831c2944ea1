"""How pytest collects the examples in the docstrings of the package."""

import importlib
from pathlib import Path

SOURCE = Path(__file__).parent / "src"
REFERENCE = Path(__file__).parent / "tests" / "reference"
"""Modules that tests import: collected for examples, one of them would register its toy loss for all tests."""


def pytest_ignore_collect(collection_path, config):
    """Import each module of the package by its own name first, and pass over those that need a package that is missing.

    Otherwise pytest executes the file a second time, and its classes differ from those the rest of the package uses.
    Triton is missing on machines without a GPU; a module of ours that is missing is an error.
    """
    path = Path(collection_path)
    if path == REFERENCE:
        return True
    if path.suffix != ".py" or not path.is_relative_to(SOURCE) or path.name == "__main__.py":
        return None
    try:
        importlib.import_module(".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "ncollapse":
            raise
        return True
    return None
