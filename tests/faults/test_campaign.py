"""The short form of the campaign: some cases of every family; `make faults` runs all."""

import random

import pytest

from faults.campaign import Family, format_table, run_cases
from faults.long_form import FAMILIES
from faults.mutations import damage_bytes, damage_json


@pytest.mark.parametrize("family", [family for family in FAMILIES if family.short], ids=lambda family: family.name)
def test_the_promise_holds(family):
    spread = max(1, family.cases // family.short)
    tally = run_cases(family, range(0, spread * family.short, spread))
    assert tally.cases == family.short
    assert not tally.failures, format_table([tally], {})
    if tally.skipped == tally.cases:
        pytest.skip("; ".join(tally.reasons))


def test_the_campaign_is_as_large_as_it_says():
    assert sum(family.cases for family in FAMILIES) >= 20_000


def test_failures_are_counted_with_their_seeds():
    def check(seed, folder):
        if seed == 2:
            raise KeyError("x")
        return "" if seed else "bad"

    tally = run_cases(Family("toy", "", 3, 3, check), range(3))
    assert (tally.cases, [seed for seed, _ in tally.failures]) == (3, [0, 2])
    assert "FAILED toy, seed 2: KeyError" in format_table([tally], {})


def test_damage_is_a_function_of_the_seed_and_changes_the_content():
    content = b'{"a": [1, {"b": 2}], "c": "d"}'
    for damage in (damage_bytes, damage_json):
        drawn = [damage(content, random.Random(seed)) for seed in range(100)]
        assert drawn == [damage(content, random.Random(seed)) for seed in range(100)]
        assert sum(item != content for item in drawn) > 80
