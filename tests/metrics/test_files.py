"""Archives that claim more than there is memory for."""

import io
import zipfile

import numpy as np
import pytest

from ncollapse.data.arrays import load_npz
from ncollapse.metrics.files import free_memory, read_arrays


def write(path, name, header, **others):
    """An archive with ordinary arrays, and one of which there is a header only."""
    np.savez(path, **others)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive, archive.open(f"{name}.npy", "w") as member:
        stream = io.BytesIO()
        np.lib.format.write_array_header_1_0(stream, header)
        member.write(stream.getvalue())


def test_a_header_that_claims_too_much_is_refused_before_anything_is_read(tmp_path):
    header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 30, 1 << 10)}
    path = tmp_path / "a.npz"
    write(path, "features", header, labels=np.zeros(3, int))
    with pytest.raises(ValueError, match=r"a\.npz: features takes 4096\.0 GiB, but only .* GiB of memory are free"):
        read_arrays(path)
    write(path, "images", header, labels=np.zeros(3, int))
    with pytest.raises(ValueError, match=r"a\.npz: images takes 4096\.0 GiB"):
        load_npz(path, "train")


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    shape = (1 << 12, 1 << 10)
    np.savez_compressed(path, features=np.zeros(shape, np.float32), labels=np.zeros(shape[0], int))
    assert path.stat().st_size < 100_000
    assert read_arrays(path)["features"].shape == shape
    monkeypatch.setattr("ncollapse.metrics.files.free_memory", lambda: 16 * 2**20 - 1)
    with pytest.raises(ValueError, match=r"features takes 0\.0 GiB"):
        read_arrays(path)


def test_free_memory_is_a_number_of_bytes():
    assert free_memory() > 2**20
