"""Imports point down only, and `import ncollapse` stays light."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import ncollapse

ROOT = Path(ncollapse.__file__).parent
LEVELS = {
    0: ("frames", "heads", "losses", "metrics", "theory", "console", "output", "grammar", "processes"),
    1: ("runs", "data", "models", "features", "train", "checkpoints", "metrics.streaming"),
    2: ("sweep", "compare", "papers", "report", "monitoring", "integrations", "commands", "cli", "__main__"),
}
LEVEL_OF = {part: level for level, parts in LEVELS.items() for part in parts}
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")
HEAVY = {"plotly", "sklearn", "torchmetrics", "tyro", "rich", "cattrs", "jinja2"}
EXTRAS = {
    *("torchvision", "timm", "lightning", "pytorch_lightning", "transformers", "accelerate"),
    *("ray", "tensorboard", "mlflow", "kaleido"),
}


def module_name(path: Path) -> str:
    """The dotted name below ncollapse."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def level(module: str) -> int:
    """The level of the longest known prefix of a dotted name below ncollapse."""
    parts = module.split(".")
    for end in range(len(parts), 0, -1):
        if (prefix := ".".join(parts[:end])) in LEVEL_OF:
            return LEVEL_OF[prefix]
    raise AssertionError(f"ncollapse.{module} has no level: add it to LEVELS")


def imported_modules(tree: ast.AST, package: str) -> set[str]:
    """Every module below ncollapse that the code imports, also inside functions, but not for type checkers alone."""
    found = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        found |= {name.removeprefix("ncollapse.") for name in names if name.startswith("ncollapse.")}
        found |= imported_modules(node, package)
    return found


def is_module(dotted: str) -> bool:
    path = ROOT.joinpath(*dotted.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_point_down(path):
    name = module_name(path)
    package = f"ncollapse.{name}" if path.name == "__init__.py" else f"ncollapse.{name}".rpartition(".")[0]
    imports = imported_modules(ast.parse(path.read_text()), package)
    upward = {other for other in imports if is_module(other) and level(other) > level(name)}
    assert not upward, f"ncollapse.{name} (level {level(name)}) imports from above: {sorted(upward)}"


def test_the_reading_of_imports_itself():
    source = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from ncollapse.report import page
from ..train import loop
from . import balanced
def late():
    import ncollapse.cli
"""
    found = imported_modules(ast.parse(source), "ncollapse.theory")
    assert {"train", "train.loop", "theory", "theory.balanced", "cli"} <= found
    assert not any(name.startswith("report") for name in found)
    assert level("metrics.streaming") == 1
    assert level("metrics.collapse") == 0


def test_parts_are_attributes():
    code = "import ncollapse as nc; nc.theory.predict, nc.data.load, nc.models.create, 'data' in dir(nc) and nc.nothing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "AttributeError: module 'ncollapse' has no attribute 'nothing'"


def modules_after(code: str) -> set[str]:
    """The top-level packages loaded in a fresh interpreter after running the code."""
    script = f"{code}\nimport json, sys\nprint(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "code",
    [
        "import ncollapse",
        "import ncollapse.frames, ncollapse.heads, ncollapse.losses, ncollapse.metrics, ncollapse.theory",
        "import ncollapse as nc; [getattr(nc, n) for n in nc.__all__ if n not in ('NeuralCollapse', 'monitor')]",
    ],
    ids=["package", "core", "names"],
)
def test_import_is_light(code):
    assert not modules_after(code) & (HEAVY | EXTRAS)


@pytest.mark.parametrize("module", ["ncollapse", "ncollapse.cli"])
def test_torch_waits_for_the_first_name(module):
    assert "torch" not in modules_after(f"import {module}")


def test_every_name_and_part_is_there():
    code = "import ncollapse as nc; [getattr(nc, name) for name in dir(nc)]; nc.metrics.measure is nc.measure or 1 / 0"
    modules_after(code)
    assert {*ncollapse.__all__, "frames", "heads", "losses", "metrics"} <= set(dir(ncollapse))
