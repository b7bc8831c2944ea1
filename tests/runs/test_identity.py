"""Runs recorded in the past keep their ids, and each notion of sameness ignores just what it says."""

import json
from pathlib import Path

import pytest

from ncollapse.runs.identity import measured_whenever, point_key, run_id, setting_key
from ncollapse.train import recipes

KEPT = sorted((Path(__file__).parents[2] / "results" / "runs").glob("*/config.json"))
BASE = recipes.get("bce-vs-ce/setting-1").to_dict()


def change(dotted, value):
    content = json.loads(json.dumps(BASE))
    *path, last = dotted.split(".")
    part = content
    for name in path:
        part = part[name]
    assert part[last] != value
    part[last] = value
    return content


def test_kept_records_keep_their_run_ids():
    assert len(KEPT) > 90
    for file in KEPT:
        assert run_id(json.loads(file.read_text())) == file.parent.name


@pytest.mark.parametrize(
    ("dotted", "value", "kept_by"),
    [
        ("name", "another", (run_id, measured_whenever, setting_key, point_key)),
        ("measure_every", 7, (measured_whenever, setting_key, point_key)),
        ("seed", 5, (setting_key, point_key)),
        ("optim.epochs", 3, (point_key,)),
        ("precision", "tf32", (point_key,)),
        ("schedule.lag", 4, (point_key,)),
        ("schedule.name", "constant", ()),
        ("optim.lr", 0.3, ()),
        ("loss.name", "mse", ()),
        ("decays.bias", 0.25, ()),
    ],
)
def test_what_each_key_ignores(dotted, value, kept_by):
    other = change(dotted, value)
    for key in (run_id, measured_whenever, setting_key, point_key):
        assert (key(other) == key(BASE)) == (key in kept_by), key.__name__


def test_measuring_counts_where_the_best_epoch_is_reported():
    best = {**BASE, "select": "best-test"}
    assert setting_key({**best, "measure_every": 7}) != setting_key(best)


def test_whole_numbers_and_unset_later_fields_do_not_count():
    assert run_id({"optim": {"epochs": 30}, "schedule": {"lag": 0}}) == run_id(
        {"optim": {"epochs": 30.0}, "schedule": {}}
    )
    assert run_id({"schedule": {"lag": 1}}) != run_id({"schedule": {}})
