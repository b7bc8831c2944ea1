"""Numbers and lists as a sentence has them."""

from __future__ import annotations

from collections.abc import Sequence


def count(number: int, thing: str, things: str = "") -> str:
    """A number of things, in good grammar; `things` is the plural that needs more than an s.

    >>> count(1, "run"), count(2, "run"), count(2, "class", "classes")
    ('1 run', '2 runs', '2 classes')
    """
    return f"{number} {thing if number == 1 else things or f'{thing}s'}"


def join(words: Sequence[object]) -> str:
    """Words as a list in a sentence.

    >>> join(["NC1", "NC2", "NC3"]), join([20])
    ('NC1, NC2 and NC3', '20')
    """
    *most, last = map(str, words or [""])
    return f"{', '.join(most)} and {last}" if most else last


UNEXPLAINED = (LookupError, ArithmeticError, AssertionError, AttributeError, NameError)
"""Errors whose text alone says little, such as the key of a KeyError."""


def describe_error(error: BaseException) -> str:
    """Return the text of an error; where it has none, or one that says little alone, the kind of error too.

    >>> describe_error(ValueError("lr: expected > 0, got -1")), describe_error(KeyError("lr"))
    ('lr: expected > 0, got -1', "KeyError: 'lr'")
    """
    kind, text = type(error).__name__, str(error).strip()
    return (f"{kind}: {text}" if isinstance(error, UNEXPLAINED) else text) if text else kind
