"""The examples in the docstrings of the losses, heads and frames, and in docs/losses.md, run as printed."""

import doctest
import importlib
import re
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "module",
    [
        *("losses.base", "losses.binary_cross_entropy", "losses.contrastive_check", "losses.cross_entropy"),
        *("losses.focal", "losses.label_smoothing", "losses.mse", "losses.one_logit", "heads", "frames"),
    ],
)
def test_docstring_examples(module):
    result = doctest.testmod(importlib.import_module(f"ncollapse.{module}"))
    assert result.attempted > 0
    assert result.failed == 0


def test_the_page_on_losses():
    page = Path(__file__).parents[2] / "docs" / "losses.md"
    (example,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    names = {}
    exec(example, names)
    assert names["head"].weight.grad.any()
    assert names["objective"] > 0
