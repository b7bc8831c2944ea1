"""Imports point down only, room by room and without cycles, and `import ncollapse` stays light."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import ncollapse

ROOT = Path(ncollapse.__file__).parent
DOCS = Path(__file__).parents[1] / "docs" / "architecture.md"
ROOMS = (
    *("console", "output", "grammar", "processes", "plugins", "arguments", "one_thread", "early_gpu"),
    *("frames", "heads", "losses", "metrics", "theory"),
    *("data", "models", "features", "runs", "train", "checkpoints"),
    *("sweep", "compare", "papers", "report", "monitoring", "integrations", "commands", "cli", "__main__"),
)
"""From the ground up: a room imports from itself and from those before it."""
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")
HEAVY = {"plotly", "sklearn", "torchmetrics", "tyro", "rich", "cattrs", "jinja2"}
EXTRAS = {
    *("torchvision", "timm", "lightning", "pytorch_lightning", "transformers", "accelerate"),
    *("ray", "tensorboard", "mlflow", "kaleido"),
}
Graph = dict[str, set[str]]


def module_name(path: Path) -> str:
    """The dotted name below ncollapse."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def floor(module: str) -> int:
    """The place of a module's room in `ROOMS`."""
    room = module.partition(".")[0]
    assert room in ROOMS, f"ncollapse.{module} has no room: add it to ROOMS and to docs/architecture.md"
    return ROOMS.index(room)


def is_module(dotted: str) -> bool:
    path = ROOT.joinpath(*dotted.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def imported_modules(tree: ast.AST, package: str) -> set[str]:
    """Every module below ncollapse that the code imports, also inside functions, but not for type checkers alone."""
    found = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            found |= {
                alias.name.removeprefix("ncollapse.") for alias in node.names if alias.name.startswith("ncollapse.")
            }
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            if base == "ncollapse" or base.startswith("ncollapse."):
                inside = base.removeprefix("ncollapse").lstrip(".")
                names = [f"{inside}.{alias.name}".lstrip(".") for alias in node.names]
                found |= {name if is_module(name) else inside for name in names} - {""}
        found |= imported_modules(node, package)
    return found


def read_imports() -> Graph:
    """Which module imports which."""
    graph = {}
    for path in FILES:
        name = module_name(path)
        package = f"ncollapse.{name}" if path.name == "__init__.py" else f"ncollapse.{name}".rpartition(".")[0]
        graph[name] = {other for other in imported_modules(ast.parse(path.read_text()), package) if is_module(other)}
    return graph


def find_upward(graph: Graph) -> list[str]:
    """The imports from a room further up."""
    return [
        f"{name} imports {other}" for name, others in graph.items() for other in others if floor(other) > floor(name)
    ]


def find_cycle(graph: Graph) -> list[str]:
    """A cycle of imports, empty where there is none (depth-first search)."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for other in sorted(graph.get(name, ())):
            if found := visit(other, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in graph if (found := visit(name, []))), [])


def test_imports_point_down():
    assert find_upward(read_imports()) == []


def test_there_are_no_cycles():
    assert find_cycle(read_imports()) == []


def test_an_import_turned_round_is_found():
    graph = read_imports()
    graph["papers.judge"] = {*graph["papers.judge"], "report.html"}
    assert find_upward(graph) == ["papers.judge imports report.html"]
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]


def test_the_reading_of_imports_itself():
    source = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from ncollapse.report import page
from ..train import loop
from . import balanced
from ncollapse.heads import Head
def late():
    import ncollapse.cli
"""
    found = imported_modules(ast.parse(source), "ncollapse.theory")
    assert found == {"train.loop", "theory.balanced", "heads", "cli"}


def test_the_page_on_architecture_names_every_room():
    text = DOCS.read_text(encoding="utf-8")
    assert [room for room in ROOMS if room != "__main__" and f"`{room}`" not in text] == []


def test_files_are_small():
    assert [module_name(path) for path in FILES if len(path.read_text().splitlines()) > 500] == []


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


def test_training_imports_only_what_every_run_needs():
    """What follows comes later, with the runs that need it, or not at all."""
    code = "import sys, ncollapse.commands.train; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    later = {"scipy", "sklearn", "plotly", "jinja2", "torchmetrics", "triton", "pandas", "rich", "matplotlib"}
    assert later & set(done.stdout.split()) == set()
    code = (
        "import sys, ncollapse.commands.train; print('torch._dynamo' in sys.modules, 'ncollapse.report' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
