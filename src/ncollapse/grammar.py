"""Numbers and lists as a sentence has them."""

from __future__ import annotations

from collections.abc import Sequence


def count(number: int, thing: str) -> str:
    """A number of things, in good grammar.

    >>> count(1, "run"), count(2, "run")
    ('1 run', '2 runs')
    """
    return f"{number} {thing}{'' if number == 1 else 's'}"


def join(words: Sequence[object]) -> str:
    """Words as a list in a sentence.

    >>> join(["NC1", "NC2", "NC3"]), join([20])
    ('NC1, NC2 and NC3', '20')
    """
    *most, last = map(str, words or [""])
    return f"{', '.join(most)} and {last}" if most else last
