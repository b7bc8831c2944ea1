"""The torchmetrics metric against `measure`, however its samples arrive, and through all that torchmetrics offers."""

import copy
import doctest
import importlib
import io
import math
import pickle

import numpy as np
import pytest
import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

import ncollapse as nc
from ncollapse.metrics import streaming
from reference import two_processes
from reference.two_processes import CLASSES, DIM, SAMPLES, make_data


@pytest.fixture(scope="module")
def data():
    return make_data()


def fill(metric, features, labels, size=23):
    for x, y in zip(features.split(size), labels.split(size)):
        metric.update(x, y)
    return metric


def expect(found, measured, tolerance=1e-10):
    """Every value of a result is the measurement's field of that name."""
    assert found.keys() >= {"nc1", "nc2_means", "cdnv", "feature_energy"}
    for name, value in found.items():
        field, _, part = name.partition(".")
        exact = getattr(measured, field)
        exact = getattr(exact, part) if part else exact
        exact = math.nan if exact is None else exact
        assert float(value) == pytest.approx(exact, rel=tolerance, abs=1e-13, nan_ok=True), name


@pytest.mark.parametrize("size", [1, 23, 500])
@pytest.mark.parametrize("buffered", [40 * DIM, 1 << 21])
def test_any_split_gives_the_two_pass_numbers(data, size, buffered, monkeypatch):
    monkeypatch.setattr(streaming, "BUFFERED_NUMBERS", buffered)
    features, labels, head = data
    found = fill(nc.NeuralCollapse(CLASSES, DIM), features, labels, size).compute(head)
    assert {"nc2", "nc3", "positive_score.mean", "bias.std"} <= found.keys()
    assert all(value.dtype == torch.float64 and value.ndim == 0 for value in found.values())
    expect(found, nc.measure(features, labels, head=head))


def test_two_heads_give_two_results_and_none_gives_less(data):
    features, labels, head = data
    metric = fill(nc.NeuralCollapse(CLASSES, DIM), features, labels)
    first, second, bare = metric.compute(head), metric.compute(nc.Head(-head.weight.detach())), metric.compute()
    assert float(first["nc3"]) != float(second["nc3"])
    assert float(first["nc1"]) == float(second["nc1"]) == float(bare["nc1"])
    assert "nc2" not in bare
    with pytest.raises(KeyError, match=r"compute\(head=...\)"):
        bare["nc2"]
    with pytest.raises(KeyError, match=r"compute\(head=...\)"):
        bare["positive_score"]
    with pytest.raises(KeyError, match=r"ask for positive_score.mean"):
        first["positive_score"]
    assert bare.keys() == {*streaming.FROM_MEANS, "num_samples", "present_classes"}
    assert first.keys() == {*streaming.FROM_MEANS, *streaming.FROM_HEAD, "num_samples", "present_classes"}
    assert not any(value.isnan() for value in first.values())


def test_what_needs_a_second_pass_says_so_and_is_offered(data):
    features, labels, head = data
    metric = fill(nc.NeuralCollapse(CLASSES, DIM), features, labels)
    for name in ("accuracy", "positive_score.std", "compactness"):
        with pytest.raises(KeyError, match=f"{name} needs a second pass"):
            metric.compute(head)[name]
    with pytest.raises(KeyError, match=r"^'nonsense'$"):
        metric.compute(head)["nonsense"]
    batches = list(zip(features.split(50), labels.split(50)))
    assert metric.second_pass(batches, head) == nc.measure(batches, head=head)
    with pytest.raises(ValueError, match="batches: hold"):
        metric.second_pass(batches[:-1], head)


def test_forward_returns_the_batch_and_keeps_the_whole(data):
    features, labels, head = data
    metric = nc.NeuralCollapse(CLASSES, DIM)
    for x, y in zip(features.split(100), labels.split(100)):
        batch = metric(x, y)  # sorted labels: no batch has all classes, and that is no cause for a warning
        assert float(batch["num_samples"]) == len(x)
        assert float(batch["present_classes"]) < CLASSES
    expect(metric.compute(head), nc.measure(features, labels, head=head))
    whole = nc.NeuralCollapse(CLASSES, DIM)(features, labels)
    expect(whole, nc.measure(features, labels))


def test_merge_state(data):
    features, labels, head = data
    left = fill(nc.NeuralCollapse(CLASSES, DIM), features[:90], labels[:90])
    right = fill(nc.NeuralCollapse(CLASSES, DIM), features[90:], labels[90:])
    empty = nc.NeuralCollapse(CLASSES, DIM)
    empty.merge_state(left)
    empty.merge_state({"statistics": right.statistics})
    expect(empty.compute(head), nc.measure(features, labels, head=head))
    with pytest.raises(ValueError, match="do not fit"):
        nc.NeuralCollapse(CLASSES, DIM + 1).merge_state(left)
    with pytest.raises(TypeError, match="incoming_state: expected a metric or its state, got ClassStatistics"):
        empty.merge_state(left.class_statistics())
    with pytest.raises(ValueError, match="do not fit"):
        nc.NeuralCollapse(CLASSES, DIM + 1).load_state_dict(left.state_dict())


def seen(classes, dim):
    generator = torch.Generator().manual_seed(classes)
    metric = nc.NeuralCollapse(classes, dim)
    metric.update(torch.randn(40, dim, generator=generator) + 5, torch.arange(40) % classes)
    return metric


def test_states_of_other_sizes_with_as_many_numbers_are_refused():
    left, right = seen(3, 2), seen(5, 1)
    assert left.statistics.shape == right.statistics.shape
    for state in (left, left.metric_state, {"statistics": left.statistics}):
        with pytest.raises(ValueError, match="do not fit 5 classes in dimension 1"):
            right.merge_state(state)
    for saved in (left.state_dict(), {"statistics": left.statistics}):
        with pytest.raises(ValueError, match="do not fit 5 classes in dimension 1"):
            right.load_state_dict(saved)
    with pytest.raises(ValueError, match="3 classes in dimension 2 do not fit"):
        right.merge_state(left)
    assert float(right.compute()["num_samples"]) == 40


def test_a_state_saved_before_the_sizes_were_is_still_read():
    metric = seen(3, 2)
    old = {"statistics": metric.state_dict()["statistics"]}
    fresh, merged = nc.NeuralCollapse(3, 2), nc.NeuralCollapse(3, 2)
    fresh.load_state_dict(old)
    merged.merge_state(old)
    expect(fresh.compute(), nc.measure(metric.class_statistics()))
    expect(merged.compute(), nc.measure(metric.class_statistics()))
    fresh.load_state_dict(fresh.state_dict())  # and saved with them


@pytest.mark.parametrize("cast", ["to", "half", "bfloat16", "float", "set_dtype"])
def test_state_stays_float64(data, cast):
    features, labels, head = data

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.metric, self.layer = nc.NeuralCollapse(CLASSES, DIM), torch.nn.Linear(2, 2)

    module = Module()
    fill(module.metric, features[:100], labels[:100])
    if cast == "to":
        module.to(torch.bfloat16)
        assert module.layer.weight.dtype == torch.bfloat16
    elif cast == "set_dtype":
        module.metric.set_dtype(torch.float16)
    else:
        getattr(module, cast)()
    fill(module.metric, features[100:], labels[100:])
    assert module.metric.statistics.dtype == torch.float64
    expect(module.metric.compute(head), nc.measure(features, labels, head=head))
    module.metric.reset()
    assert module.metric.statistics.dtype == torch.float64


def test_moving_to_another_device_takes_what_waits_along(data):
    features, labels, _ = data
    metric = fill(nc.NeuralCollapse(CLASSES, DIM), features, labels).to("meta")
    assert metric.statistics.device.type == metric.device.type == "meta"
    with pytest.raises(ValueError, match=r"on cpu, but the metric is on meta; metric.to\('cpu'\)"):
        metric.update(features, labels)


def clone(metric):
    return metric.clone()


def unpickle(metric):
    return pickle.loads(pickle.dumps(metric))


def reload(metric):
    stream = io.BytesIO()
    torch.save(metric.state_dict(), stream)
    stream.seek(0)
    fresh = nc.NeuralCollapse(CLASSES, DIM)
    fresh.load_state_dict(torch.load(stream, weights_only=True))
    return fresh


@pytest.mark.parametrize("copy_of", [clone, unpickle, reload, copy.deepcopy])
def test_copies_go_on_alone(data, copy_of):
    features, labels, head = data
    metric = fill(nc.NeuralCollapse(CLASSES, DIM), features[:77], labels[:77])
    twin = copy_of(metric)
    fill(twin, features[77:], labels[77:])
    expect(twin.compute(head), nc.measure(features, labels, head=head))
    with pytest.warns(UserWarning, match="no sample of classes 2, 3, 4"):
        assert float(metric.compute()["num_samples"]) == 77


def test_a_state_in_low_precision_is_refused():
    metric = nc.NeuralCollapse(2, 3)
    with pytest.raises(TypeError, match="float64"):
        metric.load_state_dict({"statistics": metric.statistics.float()})


def test_collections_with_other_metrics_and_with_a_twin(data):
    features, labels, _ = data
    collection = MetricCollection({"nc": nc.NeuralCollapse(CLASSES, DIM), "twin": nc.NeuralCollapse(CLASSES, DIM)})
    for x, y in zip(features.split(60), labels.split(60)):
        collection.update(x, y)
    found = collection.compute()
    exact = nc.measure(features, labels)
    assert float(found["nc_nc1"]) == pytest.approx(exact.nc1, rel=1e-10)
    assert float(found["twin_nc1"]) == pytest.approx(exact.nc1, rel=1e-10)
    mixed = MetricCollection(
        {"nc": nc.NeuralCollapse(CLASSES, DIM), "accuracy": MulticlassAccuracy(DIM, average="micro")}
    )
    found = mixed(features, labels)
    assert float(found["nc1"]) == pytest.approx(exact.nc1, rel=1e-10)
    assert 0 <= float(found["accuracy"]) <= 1


def test_autocast_and_grad_leave_the_numbers_alone(data):
    features, labels, head = data
    watched = features.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        metric = fill(nc.NeuralCollapse(CLASSES, DIM), watched, labels)
        found = metric.compute(head)
        batch = metric(watched, labels)
    expect(found, nc.measure(features, labels, head=head))
    assert not batch["nc1"].requires_grad
    assert not metric.statistics.requires_grad


@pytest.mark.parametrize("buffered", [40 * DIM, 1 << 21])
def test_inference_mode_comes_and_goes(data, buffered, monkeypatch):
    monkeypatch.setattr(streaming, "BUFFERED_NUMBERS", buffered)
    features, labels, head = data
    metric, keep = nc.NeuralCollapse(CLASSES, DIM), torch.ones(SAMPLES, dtype=torch.bool)
    with torch.inference_mode():
        metric.update(features[:70] * 1.0, labels[:70], mask=keep[:70])
        metric.forward(features[70:90] * 1.0, labels[70:90])
    fill(metric, features[90:180], labels[90:180])
    metric.update(features[180:], labels[180:], mask=keep[180:])
    with torch.inference_mode():
        found = metric.compute(head)
    expect(found, nc.measure(features, labels, head=head))
    with torch.inference_mode():
        metric.reset()
    fill(metric, features, labels)
    expect(metric.clone().compute(head), nc.measure(features, labels, head=head))


def test_arrays_are_taken_as_tensors(data):
    features, labels, head = data
    metric = nc.NeuralCollapse(CLASSES, DIM)
    metric.update(features.numpy(), labels.numpy())
    expect(metric.compute(head), nc.measure(features, labels, head=head))


def test_a_head_of_other_classes_is_refused(data):
    features, labels, _ = data
    metric = fill(nc.NeuralCollapse(CLASSES, DIM), features, labels)
    for classes in (CLASSES - 1, CLASSES + 1):
        with pytest.raises(ValueError, match=rf"weight: {classes} rows, but the statistics are of {CLASSES} classes"):
            metric.compute(torch.nn.Linear(DIM, classes))


def test_nothing_is_ever_cached(data):
    features, labels, head = data
    metric = nc.NeuralCollapse(CLASSES, DIM, compute_with_cache=True, sync_on_compute=True)
    fill(metric, features, labels)
    first = float(metric.compute(head)["nc3"])
    with torch.no_grad():
        head = nc.Head(head.weight.roll(1, 0), head.bias)
    assert float(metric.compute(head)["nc3"]) != first


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_features_of_any_precision_count_as_they_are(data, dtype):
    features, labels, head = data
    narrow = features.to(dtype)
    found = fill(nc.NeuralCollapse(CLASSES, DIM), narrow, labels).compute(head)
    expect(found, nc.measure(narrow.double(), labels, head=head))


def test_the_buffer_holds_copies(data):
    features, labels, _ = data
    shared = torch.empty(50, DIM)
    metric = nc.NeuralCollapse(CLASSES, DIM)
    for x, y in zip(features[:200].split(50), labels[:200].split(50)):
        shared.copy_(x)
        metric.update(shared, y)
    expect(metric.compute(), nc.measure(features[:200], labels[:200]))


def test_masked_samples_do_not_count(data):
    features, labels, head = data
    keep = torch.arange(SAMPLES) % 3 != 0
    spoiled, wrong = features.clone(), labels.clone()
    spoiled[~keep], wrong[~keep] = torch.nan, CLASSES + 7
    metric = nc.NeuralCollapse(CLASSES, DIM)
    for part in torch.arange(SAMPLES).split(31):
        metric.update(spoiled[part], wrong[part], mask=keep[part])
    metric.update(features[keep], labels[keep])  # and a batch without a mask after them
    double = torch.cat([features[keep]] * 2), torch.cat([labels[keep]] * 2)
    expect(metric.compute(head), nc.measure(*double, head=head))
    with pytest.raises(ValueError, match="mask: expected bool"):
        metric.update(features, labels, mask=torch.ones(SAMPLES))


@pytest.mark.parametrize("form", [torch.as_tensor, np.asarray, torch.Tensor.tolist], ids=["tensor", "array", "list"])
@pytest.mark.parametrize("wrong", [-100, CLASSES + 7])
def test_masked_rows_are_not_looked_at(data, form, wrong):
    features, labels, head = data
    keep = torch.arange(SAMPLES) % 3 != 0
    metric = nc.NeuralCollapse(CLASSES, DIM)
    metric.update(features, torch.where(keep, labels, wrong), mask=form(keep))
    metric.update(features, torch.where(keep, labels, wrong).numpy(), mask=form(keep))
    expect(metric.compute(head), nc.measure(features[keep].repeat(2, 1), labels[keep].repeat(2), head=head))
    labels = torch.where(keep, labels, wrong)
    labels[4] = -1
    with pytest.raises(ValueError, match=r"labels: expected integers 0..4, got -1 in row 4$"):
        metric.update(features, labels, mask=form(keep))
    spoiled = features.clone()
    spoiled[[0, 8]] = torch.nan
    with pytest.raises(ValueError, match="NaN or Inf in row 8 of the batch"):
        metric.update(spoiled, data[1], mask=form(keep))


@pytest.mark.parametrize("mask", [np.ones(SAMPLES), [1] * SAMPLES, np.ones((SAMPLES, 1), bool), [True], "x"])
def test_a_mask_of_another_kind_is_refused_by_name(data, mask):
    with pytest.raises(ValueError, match=rf"^mask: expected bool \[{SAMPLES}\], got "):
        nc.NeuralCollapse(CLASSES, DIM).update(*data[:2], mask=mask)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x[:, 1:], y), r"features: expected \[B, 12\], got"),
        (lambda x, y: (x, torch.nn.functional.one_hot(y)), "one-hot or soft labels: pass labels.argmax"),
        (lambda x, y: (x, y.float()), "expected integers"),
        (lambda x, y: (x, y[1:]), "labels for 203 rows"),
        (lambda x, y: (x, y + 1), r"labels: expected integers 0..4, got 5"),
        (lambda x, y: ((x * 1e6).half(), y), "NaN or Inf in rows 0, 1, 2"),
        (lambda x, y: (x[0], y[:1]), r"expected a matrix \[N, d\]"),
        (lambda x, y: (x.to(torch.complex64), y), "expected real numbers"),
    ],
    ids=["width", "one-hot", "float", "count", "range", "overflow", "vector", "complex"],
)
def test_bad_batches_are_refused_and_not_counted(data, change, message):
    features, labels, _ = data
    metric = nc.NeuralCollapse(CLASSES, DIM)
    metric.update(features, labels)
    with pytest.raises(ValueError, match=message):
        metric.update(*change(features, labels))
    assert float(metric.compute()["num_samples"]) == SAMPLES


def test_labels_of_any_integer_type_in_turn(data):
    features, labels, _ = data
    metric = nc.NeuralCollapse(CLASSES, DIM)
    for dtype in (torch.int64, torch.int32, torch.uint8, torch.int64):
        metric.update(features, labels.to(dtype))
    expect(metric.compute(), nc.measure(features.repeat(4, 1), labels.repeat(4)))


def test_what_a_gpu_would_report_late(data, monkeypatch):
    features, labels, _ = data
    monkeypatch.setattr(streaming, "refuse", lambda *_: None)
    metric = nc.NeuralCollapse(CLASSES, DIM)
    metric.update(features, labels + 1)
    with pytest.raises(ValueError, match=r"labels: 40 samples had labels outside 0..4"):
        metric.compute()
    metric.reset()
    metric.update(features / 0.0, labels)
    with pytest.raises(ValueError, match="features: 203 samples held NaN or Inf"):
        metric.compute()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode", "ignore:The CUDA Graph is empty")
def test_on_a_gpu_nothing_waits(data, monkeypatch):
    monkeypatch.setattr(streaming, "BUFFERED_NUMBERS", 50 * DIM)  # several full buffers
    features, labels, head = (part.cuda() for part in data)
    keep = torch.arange(SAMPLES, device="cuda") % 5 != 0
    metric, masked = nc.NeuralCollapse(CLASSES, DIM).cuda(), nc.NeuralCollapse(CLASSES, DIM).cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for x, y, mask in zip(features.split(23), labels.split(23), keep.split(23)):
            metric.update(x, y)
            masked.update(x, y, mask=mask)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expect(metric.compute(head), nc.measure(features.cpu(), labels.cpu(), head=head.cpu()))
    kept = keep.cpu()
    expect(masked.compute(), nc.measure(features.cpu()[kept], labels.cpu()[kept]))
    metric.update(features, labels + 1)
    with pytest.raises(ValueError, match="labels: 40 samples had labels outside"):
        metric.compute()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="cannot be part of a CUDA graph"), torch.cuda.graph(graph):
        masked.update(features, labels)


def test_nothing_seen_is_an_error():
    with (
        pytest.warns(UserWarning, match="called before the ``update``"),
        pytest.raises(ValueError, match="no samples"),
    ):
        nc.NeuralCollapse(2, 3).compute()


def test_plot_draws_curves(data):
    features, labels, head = data
    metric = fill(nc.NeuralCollapse(CLASSES, DIM), features, labels)
    results = [metric.compute(head)]
    metric.update(features[::2] ** 2, labels[::2])
    results.append(metric.compute(head))
    assert float(results[0]["nc1"]) != float(results[1]["nc1"])
    figure = metric.plot(results)
    drawn = {curve.name: curve for curve in figure.data}
    assert list(drawn["nc1"].y) == [float(result["nc1"]) for result in results]
    assert drawn["nc1"].visible is True
    assert drawn["cdnv"].visible == "legendonly"
    assert figure.layout.yaxis.type == "log"
    assert {curve.name for curve in metric.plot().data} >= {"nc1", "nc2_means"}
    curves = metric.plot(metric.compute(head=torch.nn.Linear(metric.dim, metric.num_classes))).data
    assert [curve.name for curve in curves[:3]] == ["nc1", "nc2", "nc3"], "the curves drawn share no colour"
    assert [curve.name for curve in curves if curve.visible is True] == ["nc1", "nc2", "nc3"]
    with pytest.raises(ValueError, match="no curve"):
        metric.plot([])
    holes = metric.plot([{"nc1": 1.0, "up": -2.0}, {"nc1": 0.0, "up": -1.0}, {"nc1": math.inf}, {"nc1": 2.0}]).data
    assert [(curve.name, list(curve.y)) for curve in holes] == [("nc1", [1.0, None, None, 2.0])]  # log axis


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """What two gloo processes found together: this one and another."""
    return two_processes.run_both(tmp_path_factory.mktemp("gloo"))


@pytest.mark.parametrize("name", ["whole", "again", "masked", "idle", "step"])
def test_two_processes_give_the_numbers_of_one(data, processes, name):
    features, labels, head = data
    exact = nc.measure(features, labels, head=None if name == "step" else head)
    for found in processes:
        expect(found[name], exact)


def test_two_processes_in_the_middle_and_after_an_error(data, processes):
    features, labels, head = data
    seen = torch.cat([torch.arange(34), torch.arange(60, 94)])
    with pytest.warns(UserWarning, match="no sample of classes 3, 4"):
        exact = nc.measure(features[seen], labels[seen], head=head)
    for found in processes:
        assert float(found["half"]["num_samples"]) == 68
        assert float(found["half"]["positive_score.mean"]) == pytest.approx(exact.positive_score.mean, rel=1e-10)
    assert processes[0]["own"].tolist() == processes[0]["after error"].tolist() == [41, 19, 0, 0, 0]
    assert processes[1]["own"].sum() == SAMPLES - 60


def test_two_processes_monitor_a_ddp_model(data, processes):
    features, labels, head = data
    exact = nc.measure(features, labels, head=head).to_dict()
    for found in processes:
        assert found["monitor"]["counts"] == exact["counts"]
        for name in ("nc1", "nc2", "nc3", "accuracy", "uniform_accuracy", "compactness"):
            assert found["monitor"][name] == pytest.approx(exact[name], rel=1e-10), name


@pytest.mark.parametrize("module", ["metrics.streaming", "metrics.curves", "metrics.flattening"])
def test_docstring_examples(module):
    result = doctest.testmod(importlib.import_module(f"ncollapse.{module}"))
    assert result.attempted > 0
    assert result.failed == 0
