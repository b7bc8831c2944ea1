"""What is computed for the page while the runs still train: only for runs that it shows, and never twice."""

import pytest

from ncollapse.commands import ahead
from ncollapse.compare import group_runs
from ncollapse.report.figures import features, phases
from ncollapse.report.snapshots import load_snapshots
from ncollapse.runs.record import read_run
from ncollapse.train import recipes
from reference.runs import write_run


@pytest.fixture
def made(monkeypatch):
    """Folders that something was computed for."""
    folders = []
    monkeypatch.setattr(ahead, "draw_ahead", folders.append)
    return folders


def test_the_first_run_of_each_variant_is_drawn_once_it_has_finished(tmp_path, made):
    runs = [recipes.digits(loss, seed) for loss in ("ce", "bce") for seed in (1, 2)]
    with ahead.drawing_ahead(runs, tmp_path) as see:
        for recipe in runs:
            see({"run_id": recipe.run_id, "status": "started"})
            see({"run_id": recipe.run_id, "epoch": 1})
        for recipe in runs[:3]:
            see({"run_id": recipe.run_id, "status": "finished" if recipe is not runs[2] else "failed"})
    assert made == [tmp_path / runs[0].run_id]


def test_what_cannot_be_drawn_is_left_to_the_page(tmp_path, monkeypatch):
    tried = []

    def fail(folder):
        tried.append(folder)
        raise OSError("no such file")

    monkeypatch.setattr(ahead, "draw_ahead", fail)
    runs = [recipes.digits("ce"), recipes.digits("bce")]
    with ahead.drawing_ahead(runs, tmp_path) as see:
        for recipe in runs:
            see({"run_id": recipe.run_id, "status": "finished"})
    assert len(tried) == 2


def test_an_interrupt_does_not_wait(tmp_path, monkeypatch):
    recipe = recipes.digits("ce")
    monkeypatch.setattr(ahead.threading.Thread, "join", None)
    with pytest.raises(KeyboardInterrupt), ahead.drawing_ahead([recipe], tmp_path):
        raise KeyboardInterrupt


def test_without_runs_nothing_is_drawn(tmp_path, made):
    with ahead.drawing_ahead([], tmp_path) as see:
        see({"run_id": "any", "status": "finished"})
    assert made == []


def test_the_page_finds_what_was_computed(tmp_path):
    folders = [write_run(tmp_path, {"loss.name": loss}) for loss in ("ce", "bce")]
    for folder in folders:
        ahead.draw_ahead(folder)
    kept = features.embed_run.cache_info(), phases.map_phases.cache_info()
    variants = group_runs([read_run(folder) for folder in folders])
    assert features.draw_embedding(variants, load_snapshots(variants, variants)) is not None
    assert phases.draw_phases(variants) is not None
    assert features.embed_run.cache_info().misses == kept[0].misses
    assert features.embed_run.cache_info().hits == kept[0].hits + 2
    assert phases.map_phases.cache_info().misses == kept[1].misses
