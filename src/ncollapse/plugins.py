"""Networks and losses of the user's own, by name: package.module:object."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

LIBRARIES = ("timm", "torchvision")
"""Prefixes that name a library's networks, not a module of the user's."""


def is_plugin(name: str) -> bool:
    """Whether a name has the form package.module:object.

    >>> is_plugin("my_models:small_net"), is_plugin("timm:resnet18"), is_plugin("resnet18")
    (True, False, False)
    """
    home, _, item = name.partition(":")
    dotted = all(part.isidentifier() for part in home.split("."))
    return dotted and item.isidentifier() and home not in LIBRARIES


def import_plugin(name: str, argument: str) -> Any:
    """Import package.module and return its object; `argument` names the argument in errors.

    Modules of the working folder can be imported, after all others: a file there never replaces an installed library.
    """
    home, _, item = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return getattr(import_module(home), item)
    except Exception as error:  # the module is the user's, and may fail in any way
        raise ImportError(
            f"{argument}: {name!r} cannot be imported as package.module:object ({type(error).__name__}: {error})"
        ) from error
