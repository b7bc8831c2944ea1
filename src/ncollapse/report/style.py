"""The colours of the page: one colour and one marker for each loss, and everything else in two themes.

Figures name colours by tokens: "var:ink", "var:ce", "var:ce@0.2" (with opacity), "hue:120". The page replaces them by
the colours of its theme, exports and figures without JavaScript by those of print. Every mark keeps a contrast of at
least 3:1 against the paper in both themes, and the losses differ in lightness, so that they can be told apart in
deuteranopia and in grey.
"""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple


class LossStyle(NamedTuple):
    """How a loss is drawn everywhere: the token of its colour, plotly's marker, and the same marker as an SVG path."""

    colour: str
    marker: str
    glyph: str


LOSS_STYLES = {
    "ce": LossStyle("var:ce", "diamond", "M6 0 12 6 6 12 0 6Z"),
    "bce": LossStyle("var:bce", "circle", "M6 .5a5.5 5.5 0 1 0 .01 0Z"),
    "focal": LossStyle("var:focal", "square", "M1 1h10v10H1Z"),
    "ls": LossStyle("var:ls", "triangle-up", "M6 .5 12 11H0Z"),
    "mse": LossStyle("var:mse", "triangle-down", "M0 1h12L6 11.5Z"),
}
OTHERS = (
    LossStyle("var:other", "cross", "M4.5 0h3v4.5H12v3H7.5V12h-3V7.5H0v-3h4.5Z"),
    LossStyle("var:other", "x", "M1.6 0 6 4.4 10.4 0 12 1.6 7.6 6 12 10.4 10.4 12 6 7.6 1.6 12 0 10.4 4.4 6 0 1.6Z"),
    LossStyle("var:other", "star", "M6 0 7.8 4.2 12 4.5 8.8 7.4 9.7 12 6 9.6 2.3 12 3.2 7.4 0 4.5 4.2 4.2Z"),
    LossStyle("var:other", "hexagon", "M3 .8h6L12 6 9 11.2H3L0 6Z"),
)
"""Losses from elsewhere share a colour and differ in their markers, as far as these go."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
INK, FAINT, PAPER, GRID, VEIL = "var:ink", "var:faint", "var:paper", "var:grid", "var:veil"
CLASS_COLOURS = tuple(f"var:class{i}" for i in range(10))

LIGHT = {
    "paper": "#fffefb",
    "ink": "#1c1c1a",
    "faint": "#65645e",
    "grid": "#e6e4dd",
    "veil": "rgba(255,254,251,0.72)",
    "wash": "#f5f3ec",
    "link": "#005a8c",
    "warn": "#8a4b00",
    "warn-wash": "#fdf3e1",
    "good": "#00714f",
    "bad": "#a3320f",
    "ce": "#004c8a",
    "bce": "#a9340f",
    "focal": "#087f59",
    "ls": "#6c0b5f",
    "mse": "#ba8700",
    "other": "#5a6b7a",
    "negative": "#1f6f8b",
    "positive": "#8a3a74",
    "middle": "#f4f2ea",
    **dict(
        zip(
            (f"class{i}" for i in range(10)),
            (
                *("#0072b2", "#b06f00", "#00855f", "#b0568a", "#c95400"),
                *("#2b87bd", "#7a5f1a", "#6f6f6f", "#5b3a8e", "#74861c"),
            ),
        )
    ),
}
DARK = {
    "paper": "#16181b",
    "ink": "#e9e7e1",
    "faint": "#a3a29b",
    "grid": "#2f3237",
    "veil": "rgba(22,24,27,0.72)",
    "wash": "#1e2125",
    "link": "#7cc0ec",
    "warn": "#f0b866",
    "warn-wash": "#2a2417",
    "good": "#4ed6a6",
    "bad": "#f58a5c",
    "ce": "#5cb2f2",
    "bce": "#f06a30",
    "focal": "#4ed6a6",
    "ls": "#b05da2",
    "mse": "#ffd667",
    "other": "#9fb3c8",
    "negative": "#5fc4e6",
    "positive": "#e58ac6",
    "middle": "#2c3036",
    **dict(
        zip(
            (f"class{i}" for i in range(10)),
            (
                *("#4aa8e0", "#e69f00", "#2bbd90", "#cc79a7", "#ee7733"),
                *("#8fd0f5", "#c4a24a", "#a0a0a0", "#a98fe0", "#b2c94a"),
            ),
        )
    ),
}
HUES = {"light": "70%,35%", "dark": "65%,65%"}
PRINT = LIGHT | {"paper": "#ffffff", "veil": "rgba(255,255,255,0.7)"}
DIVERGING = [[0, "var:negative"], [0.5, "var:middle"], [1, "var:positive"]]
SEQUENTIAL = [[0, "#00204D"], [0.25, "#3F4B6C"], [0.5, "#7D7C78"], [0.75, "#BCAF6F"], [1, "#FFE945"]]


def loss_style(loss: str) -> LossStyle:
    """The style of a loss; that of a loss from elsewhere follows from its name, so it is the same on every page."""
    return LOSS_STYLES.get(loss) or OTHERS[zlib.crc32(loss.encode()) % len(OTHERS)]


def fade(colour: str, opacity: float) -> str:
    """A colour with an opacity.

    >>> fade("var:ce", 0.2), fade("#0072B2", 0.2)
    ('var:ce@0.2', 'rgba(0,114,178,0.2)')
    """
    if colour.startswith("var:"):
        return f"{colour}@{opacity:g}"
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


def class_colour(index: int, total: int) -> str:
    """A colour for a class: fixed ones for up to ten classes, evenly spaced hues for more."""
    return CLASS_COLOURS[index] if total <= len(CLASS_COLOURS) else f"hue:{360 * index / total:.0f}"


def resolve(colour: Any, theme: dict[str, str] = PRINT) -> Any:
    """The colour that a token stands for; whatever is no token is given back.

    >>> resolve("var:ce@0.5", {"ce": "#004c8a"}), resolve("hue:120"), resolve("red")
    ('rgba(0,76,138,0.5)', 'hsl(120,70%,35%)', 'red')
    """
    if not isinstance(colour, str):
        return colour
    if colour.startswith("hue:"):
        return f"hsl({colour[4:]},{HUES['light']})"
    if not colour.startswith("var:"):
        return colour
    name, _, opacity = colour[4:].partition("@")
    return fade(theme[name], float(opacity)) if opacity else theme[name]


def theme_css() -> str:
    """The themes as custom properties of CSS: the system's setting, and the reader's own choice before it."""
    light, dark = (
        ";".join(f"--{name}:{value}" for name, value in {**theme, "hue-style": HUES[scheme]}.items())
        + f";color-scheme:{scheme}"
        for scheme, theme in (("light", LIGHT), ("dark", DARK))
    )
    return (
        f":root{{{light}}}\n@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}\n"
        f":root[data-theme=dark]{{{dark}}}\n"
    )
