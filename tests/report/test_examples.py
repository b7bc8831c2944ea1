"""The examples in the docstrings run."""

import doctest
import importlib

import pytest

REPORT = ("numbers", "style", "export", "panels", "page")
EXPERIMENTS = ("statistics", "variants", "comparison", "compare")


@pytest.mark.parametrize("name", [*(f"report.{n}" for n in REPORT), *(f"experiments.{n}" for n in EXPERIMENTS)])
def test_examples(name):
    module = importlib.import_module(f"ncollapse.{name}")
    assert doctest.testmod(module).failed == 0
