"""Recipe files: TOML and JSON in, TOML out, unknown keys and values of the wrong kind refused."""

from __future__ import annotations

import difflib
import json
import tomllib
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
KINDS: dict[type, str] = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}
"""Plain types, and what messages call them."""


def read(path: Path) -> dict[str, Any]:
    """The content of a TOML or JSON file."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # Windows editors write a byte order mark
        json_file = path.suffix == ".json"
        content = json.loads(text, object_pairs_hook=_refuse_repeated) if json_file else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"recipe file {path}: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"recipe file {path}: must hold one table of keys, holds a {type(content).__name__}")
    return content


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A table of JSON; a key that is there twice is refused, as in TOML, instead of counting once."""
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"{key} is there twice")
        table[key] = value
    return table


def structure(content: dict[str, Any], kind: type[T]) -> T:
    """Make a recipe from nested plain values; every refusal names its key."""
    import cattrs

    if not isinstance(content, dict):
        raise TypeError(f"recipe: expected a table of keys, got a {type(content).__name__}")
    refuse_unknown(content, kind)
    try:
        made: T = make_converter().structure(content, kind)
        return made
    except cattrs.BaseValidationError as error:
        leaf = _innermost(error)
        if isinstance(leaf, ValueError) and str(leaf).startswith(("recipe:", "augment.")):
            raise ValueError(f"recipe: {str(leaf).removeprefix('recipe: ')}") from None
        lines = cattrs.transform_error(error, format_exception=lambda exc, _: str(exc))
        named = (line.rpartition(" @ $.") for line in lines)
        raise ValueError("recipe: " + "; ".join(f"{key}: {text}" for text, _, key in named)) from None


def update(recipe: T, changes: dict[str, Any], at: str = "") -> T:
    """Return a copy of a dataclass with nested changes, each value checked against the type of its field.

    Only what changes is checked again, so that a grid of thousands of recipes is made quickly. `at` is the path of the
    dataclass in messages.
    """
    refuse_unknown(changes, type(recipe), at)
    kind_of_recipe: Any = type(recipe)
    types = _field_types(kind_of_recipe)
    checked = {}
    for name, value in changes.items():
        kind = types[name]
        if is_dataclass(value):
            checked[name] = value
        elif is_dataclass(kind):
            checked[name] = update(getattr(recipe, name), value, f"{at}{name}.")
        else:
            checked[name] = structure_value(value, kind, f"{at}{name}")
    return replace(recipe, **checked)  # type: ignore[type-var]


def structure_value(value: Any, kind: Any, name: str) -> Any:
    """Return a value as the type of its field asks for it, or refuse it by name."""
    import cattrs

    try:
        return make_converter().structure(value, kind)
    except (cattrs.BaseValidationError, ValueError, TypeError) as error:
        raise ValueError(f"recipe: {name}: {_innermost(error)}") from None


@cache
def _field_types(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


@cache
def make_converter() -> Any:
    """The one that reads recipes; making it takes a hundred times as long as using it."""
    import cattrs
    from cattrs.strategies import configure_union_passthrough

    converter = cattrs.Converter()
    for plain in KINDS:
        converter.register_structure_hook(plain, _exactly)
    configure_union_passthrough(int | float | bool | str | None, converter)
    converter.register_structure_hook_func(_names_words, _one_of)
    converter.register_structure_hook(float | str, lambda value, _: value)
    return converter


def refuse_unknown(content: dict[str, Any], kind: type, at: str = "") -> None:
    """Refuse keys that no dataclass knows, with the nearest one that exists."""
    hints = _field_types(kind)
    known = [item.name for item in fields(kind)]
    for key, value in content.items():
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1)
            hint = f"did you mean {at}{near[0]}? " if near else ""
            raise ValueError(f"recipe: {at}{key} is not a key; {hint}known here: {', '.join(known)}")
        if _is_list(hints[key]) and value is not None and not isinstance(value, list | tuple):
            raise ValueError(f"recipe: {at}{key}: expected a list, got {value!r}")
        if is_dataclass(hints[key]) and not is_dataclass(value):
            if not isinstance(value, dict):
                raise ValueError(f"recipe: {at}{key} = {value!r} must be a table of keys")
            refuse_unknown(value, hints[key], f"{at}{key}.")


def _is_list(kind: Any) -> bool:
    """Whether a field holds a list, and nothing else but None."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return all(get_origin(each) is tuple for each in kinds if each is not type(None))


def dump_toml(content: dict[str, Any], at: str = "") -> str:
    """Nested plain values as TOML: scalars, lists, tables; None is left out, as TOML has no word for it."""
    plain = {key: value for key, value in content.items() if not isinstance(value, dict) and value is not None}
    lines = [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
    for key, value in content.items():
        if isinstance(value, dict):
            lines += ["", f"[{at}{key}]", dump_toml(value, f"{at}{key}.").rstrip()]
    return "\n".join(lines) + "\n"


def _exactly(value: Any, kind: type) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"expected {KINDS[kind]}, got {value!r}")
    return value


def _names_words(kind: Any) -> bool:
    """Whether a type is one of some words, or such a word or a number."""
    if get_origin(kind) in (Union, UnionType):
        return float in get_args(kind) and any(get_origin(part) is Literal for part in get_args(kind))
    return get_origin(kind) is Literal


def _one_of(value: Any, kind: Any) -> Any:
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    words = [word for part in parts for word in get_args(part)]
    if value in words:
        return value
    number = float in parts
    if number and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    said = ("one of " if len(words) > 1 else "") + ", ".join(map(repr, words))
    raise ValueError(f"expected {'a number or ' if number else ''}{said}, got {value!r}")


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
