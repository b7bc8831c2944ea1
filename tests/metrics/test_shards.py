"""Statistics and classifiers that several processes hold a slice of the classes of each."""

import contextlib
import functools
import math
import subprocess
import sys

import pytest
import torch

import ncollapse as nc
from metrics.test_definitions import agree
from reference import sharded_processes
from reference.sharded_processes import SIZES, make_data

QUANTILES = ("q05", "q25", "median", "q75", "q95")
pytestmark = pytest.mark.filterwarnings("ignore:measure. no sample of class")


COUNTED = [(count, case) for count in (2, 3) for case in sharded_processes.cases(count)]
each_case = pytest.mark.parametrize(("processes", "case"), COUNTED, indirect=["processes"])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """What so many processes find; they are started once."""
    return functools.cache(lambda count: run_processes(count, tmp_path_factory.mktemp("shards")))


@pytest.fixture
def processes(request, run):
    return run(request.param)


def run_processes(count, folder):
    command = [sys.executable, "-W", "ignore", sharded_processes.__file__]
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(
                subprocess.Popen([*command, str(rank), str(count), str(folder)], stderr=subprocess.PIPE, text=True)
            )
            for rank in range(count)
        ]
        for process in running:
            stack.callback(process.kill)
        ended = [(process.communicate(timeout=200)[1], process.returncode) for process in running]
    assert [code for _, code in ended] == [0] * count, ended
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(count)]


@pytest.mark.parametrize("way", ["bare", "head", "dtensor", "merged"])
@each_case
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


@pytest.mark.parametrize("way", ["second bare", "second"])
@each_case
def test_a_second_pass_gives_every_field_of_the_whole(processes, case, way):
    features, labels, linear = make_data(case)
    exact = nc.measure(features.double(), labels, head=linear if way == "second" else None, num_classes=SIZES[case][0])
    expected = fill(exact.to_dict())
    for found in processes:
        measured = fill(found[case][way].to_dict())
        for name, value in expected.items():
            if not isinstance(value, dict):
                agree(measured[name], value, name, absolute=1e-10)
                continue
            binned = name in ("negative_score", "mean_cosines", "weight_cosines")
            for part, number in value.items():
                loose = {"relative": 2**-10, "absolute": 1e-7} if binned and part in QUANTILES else {"absolute": 1e-10}
                agree(measured[name][part], number, f"{name}.{part}", **loose)


def fill(value):
    """None, as undefined numbers are written, as NaN again."""
    if isinstance(value, dict):
        return {name: fill(part) for name, part in value.items()}
    if isinstance(value, list):
        return [fill(part) for part in value]
    return math.nan if value is None else value


@each_case
def test_what_sharded_metrics_refuse(processes, case):
    for rank, found in enumerate(processes):
        assert found[case]["forward"].startswith("forward: not available with shard_classes=True")
        assert found[case]["problem"].startswith("problem: not available with shard_classes=True")
        assert found[case]["other samples"].startswith("batches: hold other samples than this metric has seen")
        refused = "the batches of another process were refused" if rank else "no batches (N = 0)"
        assert refused in found[case]["no batches"]


@each_case
def test_no_process_holds_all_classes(processes, case):
    classes, dim, _ = SIZES[case]
    most = -(-classes // len(processes))
    for found in processes:
        assert found[case]["held"][0] <= most * (dim + 2) + 2 + dim * dim
        assert float(found[case]["reloaded"]["nc1"]) == float(found[case]["head"]["nc1"])


@pytest.mark.parametrize("processes", [2, 3], indirect=True)
def test_what_does_not_fit_is_refused_in_every_process(processes):
    for found in processes:
        assert "expected a plain tensor, got a DTensor" in found["K > d"]["refused"]
        assert found["K > d"]["label"] == "labels: 1 samples had labels outside 0..19"
        assert found["K > d"]["shape"].startswith("weight: expected this process's rows")


def test_shards_need_a_process_group():
    with pytest.raises(RuntimeError, match=r"^shard_classes: needs torch\.distributed\.init_process_group"):
        nc.NeuralCollapse(4, 3, shard_classes=True)


def test_samples_that_are_zero_tie_in_shards_too():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        for seed in range(20):
            generator = torch.Generator().manual_seed(seed)
            features, weight = (torch.randn(n, 12, generator=generator, dtype=torch.float64) for n in (34, 17))
            labels = torch.randperm(34, generator=generator) % 17
            features[10:30] = 0.0
            metric = nc.NeuralCollapse(17, 12, shard_classes=True)
            metric.update(features, labels)
            found = metric.second_pass([(features, labels)], head=(weight, torch.zeros(17)))
            assert found.accuracy == ((features @ weight.T).argmax(1) == labels).double().mean()
    finally:
        torch.distributed.destroy_process_group()
