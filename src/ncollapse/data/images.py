"""One image file as bytes of RGB: formats named, ranges of pixels respected, everything else refused by name."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "BMP", "PPM", "WEBP", "TIFF")
"""What Pillow may decode. Without a list it would also try formats that start other programs, such as EPS."""
SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
WIDEST_SIXTEEN_BITS = 65535
NO_PILLOW = "image folders need Pillow: pip install 'ncollapse[images]'"


def read_image(path: str) -> Image:
    """Read an image file as an RGB image of 8 bits a channel; a file that cannot be read raises ValueError.

    Grey images of 16 bits are scaled to 8. Pixels of 32 bits (whole numbers or floating point, as TIFF may hold) have
    no known range, so they are refused rather than clipped.
    """
    try:
        from PIL import Image
    except ImportError:
        raise ValueError(NO_PILLOW) from None
    unreadable = (
        OSError,
        SyntaxError,
        ValueError,
        MemoryError,
        Image.DecompressionBombError,
        Image.DecompressionBombWarning,
    )
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ValueError("it is not a regular file")
        with Image.open(path, formats=FORMATS) as file:
            return _to_rgb(file)
    except unreadable as error:
        raise ValueError(f"cannot decode {path}: {error}") from None


def _to_rgb(image: Any) -> Image:

    if image.mode in SIXTEEN_BITS:
        return _scale(np.asarray(image)).convert("RGB")
    if image.mode == "I" and image.format in ("PNG", "PPM"):  # how some versions of Pillow read 16 bits
        levels = np.asarray(image)
        if levels.min() < 0 or levels.max() > WIDEST_SIXTEEN_BITS:
            raise ValueError("its pixels exceed 16 bits")
        return _scale(levels).convert("RGB")
    if image.mode in ("I", "F"):
        kind = "whole numbers" if image.mode == "I" else "floating point numbers"
        raise ValueError(
            f"its pixels are {kind} of 32 bits, whose range is not known; save it with 8 or 16 bits a channel, or use "
            "floating point images in an .npz file (npz:PATH)"
        )
    converted: Image.Image = image.convert("RGB")
    return converted


def _scale(levels: np.ndarray[Any, Any]) -> Any:
    """An image of 8 bits from levels of 16, rounded to the nearest."""
    from PIL import Image

    wide = levels.astype(np.uint32)
    return Image.fromarray(((wide * 255 + WIDEST_SIXTEEN_BITS // 2) // WIDEST_SIXTEEN_BITS).astype(np.uint8))
