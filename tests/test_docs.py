"""The Python on the pages: short, and what it calls is there. Pages whose own tests run them are not run again."""

import inspect
import re
from pathlib import Path

import pytest
import torch

from ncollapse import train
from ncollapse.sweep import sweep

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))


def blocks_of(page):
    """The Python blocks of a page, but for sessions (">>> "), which doctest runs where their part is tested."""
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [block for block in blocks if not block.startswith(">>>")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_are_short_and_compile(page):
    for block in blocks_of(page):
        assert len([line for line in block.splitlines() if line.strip()]) <= 10
        compile(block, page.name, "exec")


def run_page(name, **names):
    page = next(page for page in PAGES if page.stem == name)
    for block in blocks_of(page):
        exec(compile(block.replace('"cuda"', '"cpu"'), page.name, "exec"), names)
    return names


def test_recipes(monkeypatch):
    known = inspect.signature(train.run)
    monkeypatch.setattr(train, "run", lambda *given, **named: known.bind(*given, **named).arguments)
    found = run_page("recipes")["summary"]
    assert found["recipe"].decays.bias == 0.5
    assert (found["recipe"].seed, found["recipe"].loss.name, found["out"]) == (1, "bce", "runs")


def test_sweeps(monkeypatch):
    known = inspect.signature(sweep.sweep)
    monkeypatch.setattr(sweep, "sweep", lambda *given, **named: known.bind(*given, **named).arguments)
    made = run_page("sweeps")["records"]["recipes"]
    assert [(recipe.loss.name, recipe.seed) for recipe in made] == [(n, s) for n in ("ce", "bce") for s in range(3)]


def test_data(data_root, monkeypatch):
    from ncollapse import data

    if not (data_root / "cifar-10-batches-py").is_dir():
        pytest.skip("no CIFAR-10 in the data root")
    load = data.load
    few = torch.arange(256)
    monkeypatch.setattr(data, "load", lambda name, root, **rest: load(name, data_root, **rest).select(few))
    x, y = (run_page("data")[name] for name in "xy")
    assert x.shape[1:] == (3, 32, 32)
    assert y.dtype == torch.int64
