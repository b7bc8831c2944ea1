"""Variants of runs and their labels."""

import itertools

from ncollapse.compare import group_runs
from ncollapse.compare.variants import leave_out
from ncollapse.runs.record import read_runs
from reference.runs import write_run


def test_a_setting_left_out_leaves_the_rest_of_the_label(tmp_path):
    """Losses of one class name keep their modules, and settings that stay keep their words."""
    for loss, bias, dim in itertools.product(("mine:Hinge", "theirs:Hinge"), (0.1, 0.2), (5, 6)):
        write_run(tmp_path, {"loss.name": loss, "decays.bias": bias, "model.feature_dim": dim})
    variants = group_runs(read_runs(tmp_path))
    assert len(variants) == 8
    for variant in variants:
        shorter = leave_out(variant, "decays.")
        assert variant.label == f"{variant.loss} · λb {variant.settings['decays.bias']:g} · {shorter.label[-3:]}"
        assert shorter.label == f"{variant.loss} · d {variant.settings['model.feature_dim']}"
        assert shorter.settings == {"model.feature_dim": variant.settings["model.feature_dim"]}
    assert len({leave_out(variant, "decays.").label for variant in variants}) == 4
