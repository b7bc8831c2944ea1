"""One fixed colour and marker per loss, and the palettes of the page: Okabe and Ito's, safe for colour-blind readers.

Colours of ink and paper are written as tokens ("var:ink"), replaced by the page's theme or by print's.
"""

from __future__ import annotations

from typing import NamedTuple


class Look(NamedTuple):
    """How a loss is drawn everywhere."""

    colour: str
    marker: str
    glyph: str


LOOKS = {
    "ce": Look("#0072B2", "diamond", "M6 0 12 6 6 12 0 6Z"),
    "bce": Look("#D55E00", "circle", "M6 .5a5.5 5.5 0 1 0 .01 0Z"),
    "focal": Look("#009E73", "square", "M1 1h10v10H1Z"),
    "ls": Look("#CC79A7", "triangle-up", "M6 .5 12 11H0Z"),
    "mse": Look("#E69F00", "triangle-down", "M0 1h12L6 11.5Z"),
}
OTHER = Look("#56B4E9", "cross", "M4.5 0h3v4.5H12v3H7.5V12h-3V7.5H0v-3h4.5Z")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
CLASSES = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#D55E00",
    "#56B4E9",
    "#8C6D1F",
    "#7F7F7F",
    "#5B3A8E",
    "#B2C94A",
)
INK, FAINT, PAPER, GRID, VEIL = "var:ink", "var:faint", "var:paper", "var:grid", "var:veil"
PRINT = {INK: "#1c1c1a", FAINT: "#6b6b66", PAPER: "#ffffff", GRID: "#e4e3de", VEIL: "rgba(255,255,255,0.7)"}
DIVERGING = [[0, "#0072B2"], [0.5, PAPER], [1, "#D55E00"]]
SEQUENTIAL = [[0, "#00204D"], [0.25, "#3F4B6C"], [0.5, "#7D7C78"], [0.75, "#BCAF6F"], [1, "#FFE945"]]


def look(loss: str) -> Look:
    """The look of a loss; losses from elsewhere share one."""
    return LOOKS.get(loss, OTHER)


def fade(colour: str, opacity: float) -> str:
    """A colour with an opacity.

    >>> fade("#0072B2", 0.2)
    'rgba(0,114,178,0.2)'
    """
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


def class_colour(index: int, total: int) -> str:
    """A colour for a class: fixed ones for up to ten classes, an even turn round the hues for more."""
    if total <= len(CLASSES):
        return CLASSES[index]
    return f"hsl({360 * index / total:.0f},65%,{45 + 12 * (index % 3)}%)"
