"""The help text of every field of a recipe: the docstring that follows the field in its class."""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from itertools import pairwise


def field_help(kind: type) -> dict[str, str]:
    """Return the docstring below each field of a dataclass, by the field's name.

    >>> from ncollapse.train.recipe import OptimSpec
    >>> field_help(OptimSpec)["momentum"]
    'The momentum of SGD.'
    """
    body, found = _read_classes(kind.__module__)[kind.__name__].body, {}
    for statement, following in pairwise(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = following.value if isinstance(following, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                found[statement.target.id] = " ".join(text.value.split())
    return found


@cache
def _read_classes(module: str) -> dict[str, ast.ClassDef]:
    """The classes of a module by name; finding the source of each by itself would parse the module for each."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
