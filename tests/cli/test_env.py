"""`ncollapse env` and `--version`: what a bug report needs."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import ncollapse
from ncollapse.cli import main
from ncollapse.runs.environment import OPTIONAL, REQUIRED

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def name_of(requirement):
    return requirement.partition(">")[0].partition("[")[0]


def test_env_names_versions_and_data_sets(tmp_path, capsys):
    (tmp_path / "cifar-10-batches-py").mkdir()
    assert main(["env", "--json", "--data-root", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ncollapse"] == ncollapse.__version__
    assert found["torch"] == torch.__version__
    assert found["data"]["cifar10"] == "there"
    assert found["data"]["mnist"] == "missing"
    assert all(found["packages"].values())
    assert main(["env", "--data-root", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"ncollapse {ncollapse.__version__}\npython ")
    assert "data sets: digits (embedded), cifar10 (there)" in printed
    assert str(tmp_path) not in printed


def test_env_knows_every_dependency():
    assert {*map(name_of, PYPROJECT["dependencies"])} == {"torch", *REQUIRED}
    extras = PYPROJECT["optional-dependencies"]
    tools = ("dev", "docs")
    assert {name_of(item) for name, items in extras.items() if name not in tools for item in items} == set(OPTIONAL)


@pytest.mark.parametrize("words", [["--version"], ["env"]])
def test_the_module_can_be_run(words):
    done = subprocess.run([sys.executable, "-m", "ncollapse", *words], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == f"ncollapse {ncollapse.__version__}"


def test_the_version_is_written_once():
    root = Path(__file__).parents[2]
    assert "version" not in PYPROJECT
    assert f"\nversion: {ncollapse.__version__}\n" in (root / "CITATION.cff").read_text()
