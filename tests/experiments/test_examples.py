"""The examples in the docstrings run."""

import doctest
import importlib

import pytest

MODULES = (
    *("catalogue", "experiment", "coverage", "publications", "rebalance", "runs", "sweep", "verdicts"),
    *("engines", "engines.job", "page", "records"),
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(f"ncollapse.experiments.{name}")
    assert doctest.testmod(module).failed == 0
