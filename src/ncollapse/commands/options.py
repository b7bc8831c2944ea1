"""How every command reads its options: one parser, with plain placeholders in its help."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from ncollapse.commands.field_help import field_help

T = TypeVar("T")
SPELLINGS = {
    r"features='(\w+)'": r"--features \1",
    r"\buse '(free|relu)'": r"use --features \1",
    r"method='(\w+)'": r"--method \1",
    r"dim=(\d+)": r"--dim \1",
    r"bias=False": "--no-bias",
    r" or a loss object": "",
}
NONE = "none"
"""The word that leaves an optional value out."""


def parse_args(kind: type[T], argv: Sequence[str], verb: str, *, pairs: bool = False, **options: Any) -> T:
    """Parse the options of `ncollapse VERB` into a dataclass; `pairs` also makes a --no-X for every flag --X."""
    quick = tyro.conf.HelptextFromCommentsOff  # our help texts are docstrings
    config = (quick,) if pairs else (quick, tyro.conf.FlagCreatePairsOff)
    plain: Any = get_origin(kind) or kind
    explain_options(plain)
    with make_registry():
        parsed: T = tyro.cli(kind, args=argv, prog=f"ncollapse {verb}", config=config, **options)
    return parsed


@cache
def explain_options(kind: type) -> None:
    """Give every option its help text as one paragraph, and its default only where that is more than "not given"."""
    texts, hints = field_help(kind), get_type_hints(kind, include_extras=True)
    for item in fields(kind):
        if item.name in texts:
            hint = "" if item.default in (None, False, ()) else None
            text = tyro.conf.arg(help=texts[item.name], help_behavior_hint=hint)
            kind.__annotations__[item.name] = Annotated[hints[item.name], text]


def make_registry() -> ConstructorRegistry:
    """Return the rules for `X | None`: the help shows X's own placeholder, and the word none is accepted."""
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        kinds = get_args(info.type) if get_origin(info.type) in (Union, UnionType) else ()
        rest = [kind for kind in kinds if kind is not NoneType]
        if len(rest) != len(kinds) - 1:
            return None
        kind: Any = Union[tuple(rest)]  # noqa: UP007
        inner = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kind, info.markers))
        if not isinstance(inner, PrimitiveConstructorSpec):
            return None
        choices = None if inner.choices is None else (*inner.choices, NONE)
        return PrimitiveConstructorSpec(
            nargs=inner.nargs,
            metavar=inner.metavar,
            instance_from_str=lambda words: None if is_none(words) else inner.instance_from_str(words),
            is_instance=lambda value: value is None or bool(inner.is_instance(value)),
            str_from_instance=lambda value: [NONE] if value is None else inner.str_from_instance(value),
            choices=choices,
        )

    return registry


def is_none(words: Sequence[str]) -> bool:
    """Whether an option was given the word none.

    >>> is_none(["none"]), is_none(["None"]), is_none(["3"])
    (True, True, False)
    """
    return [word.lower() for word in words] == [NONE]


@contextmanager
def spelling(kind: type) -> Iterator[None]:
    """Turn the arguments that an error of the library names into the options of a command."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise type(error)(spell(str(error), kind)) from error


def spell(message: str, kind: type) -> str:
    """A message of the library with its arguments as the options that the fields of `kind` are."""
    for argument, option in SPELLINGS.items():
        message = re.sub(argument, option, message)
    names = "|".join(item.name for item in fields(kind) if "_" in item.name)
    return re.sub(rf"\b({names})\b", lambda found: "--" + found[1].replace("_", "-"), message)


def parse_index(word: str | None) -> tuple[int, int] | None:
    """Read i/n, the i-th of n shares, as two numbers."""
    if word is None:
        return None
    try:
        share, shares = (int(part) for part in word.split("/"))
    except ValueError:
        raise ValueError(f"index: expected i/n, such as 1/4, got {word}") from None
    return share, shares
