"""Parts of a page made one by one, so that one damaged record does not take the page away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class Attempts:
    """Makes the parts of a page one by one; a part that a record breaks becomes a note, and the others stay."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def one(self, name: str, make: Callable[..., T], *arguments: Any) -> T | None:
        """What `make` returns, None where it fails."""
        try:
            return make(*arguments)
        except Exception as error:  # a record may hold anything
            self.faults.append(f"A part of the page could not be made ({name}): {type(error).__name__}: {error}.")
            return None

    def all(self, name: str, make: Callable[..., Sequence[T]], *arguments: Any) -> Sequence[T]:
        """What `make` returns, nothing where it fails."""
        return self.one(name, make, *arguments) or []
