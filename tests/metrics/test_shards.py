"""Statistics and classifiers that several processes hold a slice of the classes of each."""

import contextlib
import math
import subprocess
import sys

import pytest
import torch

import ncollapse as nc
from reference import sharded_processes
from reference.sharded_processes import PROCESSES, SIZES, make_data

QUANTILES = ("q05", "q25", "median", "q75", "q95")
pytestmark = pytest.mark.filterwarnings("ignore:measure. no sample of class")


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    command = [sys.executable, "-W", "ignore", sharded_processes.__file__]
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(subprocess.Popen([*command, str(rank), str(folder)], stderr=subprocess.PIPE, text=True))
            for rank in range(PROCESSES)
        ]
        for process in running:
            stack.callback(process.kill)
        ended = [(process.communicate(timeout=200)[1], process.returncode) for process in running]
    assert [code for _, code in ended] == [0] * PROCESSES, ended
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(PROCESSES)]


@pytest.mark.parametrize("way", ["bare", "head", "dtensor"])
@pytest.mark.parametrize("case", SIZES)
def test_shards_give_the_numbers_of_the_whole(processes, case, way):
    features, labels, linear = make_data(case)
    exact = nc.measure(features.double(), labels, head=None if way == "bare" else linear, num_classes=SIZES[case][0])
    for found in processes:
        assert found[case][way].keys() >= {"nc1", "cdnv", "nc2_means"}
        assert ("nc3" in found[case][way]) is (way != "bare")
        for name, value in found[case][way].items():
            field, _, part = name.partition(".")
            expected = getattr(exact, field)
            expected = getattr(expected, part) if part else expected
            expected = math.nan if expected is None else expected
            binned = part in QUANTILES and "cosines" in field
            close = {"rel": 2**-10, "abs": 1e-9} if binned else {"rel": 1e-9, "abs": 1e-11}
            assert float(value) == pytest.approx(expected, **close, nan_ok=True), name


@pytest.mark.parametrize("case", SIZES)
def test_no_process_holds_all_classes(processes, case):
    classes, dim, _ = SIZES[case]
    most = -(-classes // PROCESSES)
    for found in processes:
        assert found[case]["held"][0] <= most * (dim + 2) + 2 + dim * dim
        assert float(found[case]["reloaded"]["nc1"]) == float(found[case]["head"]["nc1"])


def test_what_does_not_fit_is_refused_in_every_process(processes):
    for found in processes:
        assert "expected a plain tensor, got a DTensor" in found["K > d"]["refused"]
        assert found["K > d"]["label"] == "labels: 1 samples had labels outside 0..19"
        assert found["K > d"]["shape"].startswith("weight: expected this process's rows")
