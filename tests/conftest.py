"""Fixtures every part of the suite shares."""

import os
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder with the image data sets in torchvision's layout; tests that need them skip without it."""
    root = os.environ.get("NCOLLAPSE_DATA")
    if not root:
        pytest.skip("NCOLLAPSE_DATA names no data root: the image data sets are not here")
    return Path(root)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Tests run side by side, one core each."""
    torch.set_num_threads(1)
