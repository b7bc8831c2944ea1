"""The help text of every field of a recipe: the docstring that follows the field in its class."""

from __future__ import annotations

import ast
import inspect
import textwrap


def field_help(kind: type) -> dict[str, str]:
    """Return the docstring below each field of a dataclass, by the field's name.

    >>> from ncollapse.train.recipe import OptimSpec
    >>> field_help(OptimSpec)["momentum"]
    'The momentum of SGD.'
    """
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for statement, following in zip(body.body, body.body[1:]):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = following.value if isinstance(following, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                found[statement.target.id] = " ".join(text.value.split())
    return found
