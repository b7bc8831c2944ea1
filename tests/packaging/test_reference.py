"""The reference of the site names everything public, and the site builds where its tools are installed."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import ncollapse

ROOT = Path(__file__).parents[2]


def test_every_public_name_is_in_the_reference_once():
    listed = re.findall(r"^::: ncollapse\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(ncollapse.__all__)


def test_every_page_is_in_the_contents():
    pages = {page.name for page in (ROOT / "docs").glob("*.md")}
    assert set(re.findall(r": (\w+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)) == pages


@pytest.mark.skipif(shutil.which("mkdocs") is None, reason="needs mkdocs: make docs")
def test_the_site_builds_without_a_broken_link(tmp_path):
    command = ["mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "ncollapse.measure" in (tmp_path / "api.html").read_text()
