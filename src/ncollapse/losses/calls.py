"""Names of losses with parameters, as a call: "focal(gamma=2)", "my_losses:Tilted(slope=0.5)"."""

from __future__ import annotations

import ast
from typing import Any

PLAIN = (bool, int, float, str)


def split_call(name: str) -> tuple[str, dict[str, Any]]:
    """The name of a loss and its parameters: numbers, texts, True and False, by keyword.

    >>> split_call("my_losses:Tilted(slope=0.5)")
    ('my_losses:Tilted', {'slope': 0.5})
    """
    base, bracket, rest = name.partition("(")
    if not bracket:
        return name, {}
    try:
        call = ast.parse(f"loss({rest}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or not isinstance(call.func, ast.Name):
            raise ValueError
        params = {str(item.arg): ast.literal_eval(item.value) for item in call.keywords if item.arg is not None}
    except (SyntaxError, ValueError):
        raise ValueError(f"loss: expected NAME(parameter=value, ...), got {name!r}") from None
    if len(params) != len(call.keywords) or not all(isinstance(value, PLAIN) for value in params.values()):
        raise ValueError(f"loss: expected numbers, texts, True or False as parameters, got {name!r}")
    return base.strip(), params


def join_call(base: str, params: dict[str, Any]) -> str:
    """The inverse of `split_call`, in one spelling: parameters in alphabetical order, whole numbers without a point."""
    if not params:
        return base
    spelt = {
        key: int(value) if isinstance(value, float) and value.is_integer() else value for key, value in params.items()
    }
    return f"{base}({', '.join(f'{key}={spelt[key]!r}' for key in sorted(spelt))})"
