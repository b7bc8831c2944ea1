"""The wheel and the source archive: built, installed into a clean environment, and used from there.

Nothing is downloaded: setuptools builds them, and the clean environment borrows the dependencies of this one.
"""

import json
import os
import site
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

import ncollapse

ROOT = Path(__file__).parents[2]
pytest.importorskip("setuptools", minversion="77", reason="building needs setuptools, which would be downloaded")
BUILD = """
import sys
from setuptools import build_meta
print(getattr(build_meta, f"build_{sys.argv[1]}")(sys.argv[2]))
"""


def build(kind, sources, target):
    command = [sys.executable, "-c", BUILD, kind, str(target)]
    done = subprocess.run(command, cwd=sources, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return target / done.stdout.splitlines()[-1]


def copy_sources(target):
    """The files that git knows, where it is there: a build writes beside its sources."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True)
    if listed.returncode:
        pytest.skip("needs git to know which files belong to the project")
    for name in filter(None, listed.stdout.decode().split("\0")):
        if name.startswith("results/") or not (ROOT / name).is_file():
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes((ROOT / name).read_bytes())
    return target


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """The source archive, and the wheel that is built from what it holds."""
    folder = tmp_path_factory.mktemp("dist")
    archive = build("sdist", copy_sources(tmp_path_factory.mktemp("sources")), folder)
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(archive) as file:
        file.extractall(unpacked, filter="data")
    (inside,) = unpacked.iterdir()
    return archive, build("wheel", inside, folder)


@pytest.fixture(scope="module")
def clean(archives, tmp_path_factory):
    """An environment with the wheel; its other packages are this one's, without its own ncollapse."""
    home = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / ("Scripts" if os.name == "nt" else "bin") / "python"
    words = ["--quiet", "--no-index", "--no-deps", "--no-warn-script-location"]
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", *words, str(archives[1])]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    own = next(home.glob("**/site-packages"))
    # a path in a .pth file is searched last, and .pth files in it (the editable install's) are not read
    (own / "borrowed.pth").write_text("\n".join(site.getsitepackages()))
    return python.parent


def run(clean, *words, cwd):
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL"))}
    done = subprocess.run([str(clean / words[0]), *words[1:]], cwd=cwd, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_archives_hold_what_they_should(archives):
    archive, wheel = archives
    assert archive.name == f"ncollapse-{ncollapse.__version__}.tar.gz"
    assert wheel.name == f"ncollapse-{ncollapse.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        metadata = file.read(f"ncollapse-{ncollapse.__version__}.dist-info/METADATA").decode()
    package = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "ncollapse").rglob("*.py")}
    assert {name.replace(os.sep, "/") for name in package} <= names
    assert {"ncollapse/py.typed", "ncollapse/report/templates/page.html"} <= names
    assert "ncollapse/papers/published/bce-vs-ce.json" in names
    assert not {name for name in names if name.startswith(("tests/", "results/", "docs/"))}
    assert wheel.stat().st_size < 1_500_000
    assert "Requires-Dist: torch>=2.6" in metadata
    assert "Requires-Python: >=3.11" in metadata
    with tarfile.open(archive) as file:
        held = {name.partition("/")[2] for name in file.getnames()}
    assert {"tests/packaging/test_wheel.py", "docs/index.md", "constraints-oldest.txt", "Makefile"} <= held


def test_commands_run_from_the_wheel(clean, tmp_path):
    assert run(clean, "ncollapse", "--version", cwd=tmp_path) == f"ncollapse {ncollapse.__version__}\n"
    where = run(clean, "python", "-c", "import ncollapse; print(ncollapse.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(clean.parent)
    rng = np.random.default_rng(0)
    arrays = {"features": rng.normal(size=(60, 5)), "labels": np.arange(60) % 3, "weight": rng.normal(size=(3, 5))}
    np.savez(tmp_path / "features.npz", **arrays)
    found = json.loads(run(clean, "ncollapse", "measure", "features.npz", "--json", cwd=tmp_path))
    assert found["num_classes"] == 3
    report = json.loads(run(clean, "python", "-m", "ncollapse", "env", "--json", cwd=tmp_path))
    assert report["ncollapse"] == ncollapse.__version__


@pytest.mark.slow
def test_the_demo_runs_from_the_wheel(clean, tmp_path):
    words = ["--epochs", "1", "--seeds", "1", "--jobs", "1", "--out", "demo"]
    printed = run(clean, "ncollapse", "compare", "--data", "digits", *words, cwd=tmp_path)
    assert printed.splitlines()[-1].endswith("report.html")
    assert (tmp_path / "demo" / "report.html").stat().st_size > 100_000
