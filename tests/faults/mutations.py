"""Damage done to files: bytes cut, flipped, repeated and grown; values of JSON retyped, oversized and nested."""

from __future__ import annotations

import json
import random
from typing import Any

ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 7, 0.5, -0.5, 10**12, -(10**12), 2**63, 10**400, -(10**400)),
    *(1e308, -1e308, 1e-320, float("nan"), float("inf"), "", "x", "finished", "failed", "NaN", "\ud800", "\x00"),
    *("<script>alert(1)</script>", "a" * 2_000_000, [], [1], [[]], ["x"], [None] * 3, [1e308] * 3, list(range(50))),
    *({}, {"mean": 1}, {"mean": "x"}, {"a": {"b": {"c": {}}}}, {"": 0}),
)


def damage_bytes(content: bytes, draw: random.Random) -> bytes:
    """Return the content with one random damage; it may happen to be the same."""
    size = len(content)
    start = draw.randrange(size + 1)
    stop = min(size, start + draw.choice((1, 2, 8, 64, 1000)))
    kind = draw.choice(("cut", "flip", "flip", "flips", "zeros", "ones", "delete", "repeat", "insert", "empty", "swap"))
    if kind == "cut":
        return content[:start]
    if kind == "flip" and size:
        at = draw.randrange(size)
        return content[:at] + bytes([content[at] ^ (1 << draw.randrange(8))]) + content[at + 1 :]
    if kind == "flips" and size:
        found = bytearray(content)
        for _ in range(draw.randrange(1, 50)):
            found[draw.randrange(size)] = draw.randrange(256)
        return bytes(found)
    if kind == "zeros":
        return content[:start] + bytes(stop - start) + content[stop:]
    if kind == "ones":
        return content[:start] + b"\xff" * (stop - start) + content[stop:]
    if kind == "delete":
        return content[:start] + content[stop:]
    if kind == "repeat":
        return content[:stop] + content[start:]
    if kind == "insert":
        return content[:start] + draw.randbytes(draw.choice((1, 4, 100))) + content[start:]
    if kind == "swap":
        return content[start:] + content[:start]
    return draw.choice((b"", b"\x00", b"{}", b"[]", b"null", b"\xef\xbb\xbf" + content, content * 2))


def damage_json(content: bytes, draw: random.Random) -> bytes:
    """Return JSON in which one value, at any depth, is another, or gone, or deep, or has a stranger beside it."""
    tree = json.loads(content)
    node, path = tree, 0
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = draw.choice(keys)
        inner = node[key]
        if isinstance(inner, (dict, list)) and inner and draw.random() < 0.7:
            node, path = inner, path + 1
            continue
        break
    kind = draw.choice(("retype", "retype", "retype", "remove", "nest", "add", "grow"))
    if kind == "retype":
        node[key] = draw.choice(ODD_VALUES)
    elif kind == "remove":
        del node[key]
    elif kind == "nest":
        depth = draw.choice((5, 50, 500, 5000))
        text = json.dumps(tree)
        marker = json.dumps(inner)
        return text.replace(marker, "[" * depth + marker + "]" * depth, 1).encode()
    elif kind == "add" and isinstance(node, dict):
        node[draw.choice(("x", "status", "epoch", "train", "name", "\u202e", ""))] = draw.choice(ODD_VALUES)
    else:
        node[key] = [inner] * draw.choice((2, 1000))
    return json.dumps(tree).encode()
