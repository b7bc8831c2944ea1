"""The project's scripts as modules."""

import importlib.util
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "scripts"


def load_script(name):
    """scripts/NAME.py, imported."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
