"""One image file: the range of its pixels is respected, its format is one of a list, and a pipe does not block."""

import os
import subprocess

import numpy as np
import pytest
import torch

from ncollapse.data import load
from ncollapse.data.decoding import decode, decode_images
from ncollapse.data.images import read_image

Image = pytest.importorskip("PIL.Image")
RAMP = np.arange(256, dtype=np.uint32).reshape(16, 16)


def decoded(path):
    return decode_images([str(path)], 16, workers=0)[0]


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_are_scaled(tmp_path, suffix):
    path = tmp_path / f"ramp.{suffix}"
    Image.fromarray((RAMP * 257).astype(np.uint16)).save(path)
    assert torch.equal(decoded(path), torch.from_numpy(RAMP.astype(np.uint8)).expand(3, 16, 16))


def test_sixteen_bits_are_rounded(tmp_path):
    levels = np.random.default_rng(0).integers(0, 65536, (16, 16))
    Image.fromarray(levels.astype(np.uint16)).save(tmp_path / "levels.png")
    expected = np.rint(levels * 255 / 65535).astype(np.uint8)
    assert torch.equal(decoded(tmp_path / "levels.png")[0], torch.from_numpy(expected))


def test_a_portable_grey_map_of_ten_bits(tmp_path):
    levels = (RAMP * 1023 // 255).astype(">u2")
    (tmp_path / "ramp.pgm").write_bytes(b"P5 16 16 1023\n" + levels.tobytes())
    off = decoded(tmp_path / "ramp.pgm")[0].int() - torch.from_numpy(RAMP.astype(np.int32))
    assert off.abs().max() <= 1


def test_sixteen_bits_of_colour(tmp_path):
    cv2 = pytest.importorskip("cv2", reason="nothing here writes PNG files of 16 bits in colour")
    cv2.imwrite(str(tmp_path / "colour.png"), np.stack([(RAMP * 257).astype(np.uint16)] * 3, axis=-1))
    assert torch.equal(decoded(tmp_path / "colour.png")[0], torch.from_numpy(RAMP.astype(np.uint8)))


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_pixels_of_unknown_range_are_refused(tmp_path, dtype):
    path = tmp_path / "wide.tif"
    Image.fromarray(RAMP.astype(dtype)).save(path)
    with pytest.raises(ValueError, match=r"cannot decode .*wide\.tif: its pixels are .* of 32 bits"):
        decoded(path)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
def test_eight_bits_are_what_pillow_says(tmp_path, mode):
    path = tmp_path / ("image.tif" if mode == "CMYK" else "image.png")
    Image.fromarray(RAMP.astype(np.uint8)).convert("RGB").convert(mode).save(path)
    with Image.open(path) as file:
        expected = np.asarray(file.convert("RGB"))
    assert np.array_equal(np.asarray(read_image(str(path))), expected)


def test_no_program_is_started_for_a_disguised_format(tmp_path, monkeypatch):
    """Pillow hands EPS to Ghostscript, whatever the file is called."""
    path = tmp_path / "page.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n")
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: pytest.fail("a program was started"))
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *a, **k: pytest.fail("Ghostscript was called"))
    with pytest.raises(ValueError, match=r"cannot decode .*page\.png"):
        read_image(str(path))


def test_a_bomb_is_refused(tmp_path, monkeypatch):
    Image.fromarray(RAMP.astype(np.uint8)).save(tmp_path / "big.png")
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ValueError, match=r"cannot decode .*big\.png"):
        read_image(str(tmp_path / "big.png"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_does_not_block(tmp_path):
    for part in ("train", "test"):
        for name in ("a", "b"):
            (tmp_path / part / name).mkdir(parents=True)
            Image.fromarray(RAMP.astype(np.uint8)).save(tmp_path / part / name / "0.png")
    data = load(f"folder:{tmp_path}")
    pipe = tmp_path / "train" / "b" / "1.png"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match=r"1\.png: an image must be a regular file"):
        load(f"folder:{tmp_path}")
    (tmp_path / "train" / "b" / "0.png").unlink()  # replaced after it was listed
    pipe.rename(tmp_path / "train" / "b" / "0.png")
    with pytest.raises(ValueError, match=r"0\.png: it is not a regular file"):
        decode(data, 8, workers=0)
