"""Colours: every mark can be seen in both themes, and every loss told from the others, also in grey."""

import itertools
import math

import numpy as np
import pytest

from ncollapse.report.style import DARK, HUES, LIGHT, LOSS_STYLES, OTHERS, class_colour, loss_style, resolve, theme_css

THEMES = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
# Machado, Oliveira and Fernandes 2009, deuteranopia at full strength, for linear RGB
DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
)
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour):
    """Linear RGB of #rrggbb."""
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(first, second):
    """The contrast ratio of WCAG 2."""
    light, dark = sorted((float(XYZ[1] @ linear(c)) for c in (first, second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def lab(rgb):
    """CIELAB of linear RGB."""
    ratios = XYZ @ np.clip(rgb, 0, 1) / [0.9505, 1, 1.089]
    f = np.where(ratios > 0.008856, np.cbrt(ratios), 7.787 * ratios + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@THEMES
def test_every_mark_has_a_contrast_of_three_to_one(theme):
    marks = [*LOSS_STYLES, "other", "positive", "negative", "ink", "faint", "link", "warn", "good", "bad"]
    marks += [f"class{i}" for i in range(10)]
    for name in marks:
        assert contrast(theme[name], theme["paper"]) >= 3, name
    for name in ("ink", "faint", "link"):
        assert contrast(theme[name], theme["paper"]) >= 4.5, f"{name} is text"
    for name in ("warn",):
        assert contrast(theme[name], theme["warn-wash"]) >= 4.5
    for name in ("ink", "faint", "good", "bad"):
        assert contrast(theme[name], theme["wash"]) >= 4.5, f"{name} is text on the card"


@pytest.mark.parametrize(("scheme", "theme"), [("light", LIGHT), ("dark", DARK)])
def test_hues_of_many_classes_can_be_seen(scheme, theme):
    import colorsys

    saturation, lightness = (float(part.strip("%")) / 100 for part in HUES[scheme].split(","))
    for hue in range(0, 360, 5):
        rgb = colorsys.hls_to_rgb(hue / 360, lightness, saturation)
        colour = "#" + "".join(f"{round(255 * v):02x}" for v in rgb)
        assert contrast(colour, theme["paper"]) >= 3, hue


@THEMES
def test_losses_are_told_apart_in_deuteranopia_and_in_grey(theme):
    for first, second in itertools.combinations(LOSS_STYLES, 2):
        a, b = linear(theme[first]), linear(theme[second])
        assert np.linalg.norm(lab(a) - lab(b)) > 25
        assert np.linalg.norm(lab(DEUTERANOPIA @ a) - lab(DEUTERANOPIA @ b)) > 18
        assert abs(lab(a)[0] - lab(b)[0]) > 6, f"{first} and {second} are the same grey"
    assert len({style.marker for style in (*LOSS_STYLES.values(), *OTHERS)}) == 9
    assert loss_style("bce") is LOSS_STYLES["bce"]
    assert {loss_style(f"module:Loss{i}") for i in range(40)} == set(OTHERS)


def test_the_colours_of_losses_mean_losses_alone():
    for theme in (LIGHT, DARK):
        losses = {theme[name] for name in LOSS_STYLES}
        assert theme["positive"] not in losses
        assert theme["negative"] not in losses


def test_tokens_are_resolved_and_themes_complete():
    assert LIGHT.keys() == DARK.keys()
    assert resolve("var:bce") == LIGHT["bce"]
    assert resolve(class_colour(3, 200)).startswith("hsl(")
    assert not math.isnan(float(resolve("var:ce@0.5").split(",")[-1].strip(")")))
    css = theme_css()
    assert css.count("--paper:") == 3
    assert "prefers-color-scheme:dark" in css
