"""`monitor` in a plain loop: right numbers, and a training that does not notice."""

import json
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ncollapse as nc
from ncollapse.data import load
from ncollapse.metrics import Measurement
from ncollapse.monitoring.drawing import draw_history
from ncollapse.monitoring.observation import Observation

DECAYS = {"weight_decay": 5e-3, "feature_decay": 5e-3, "bias_decay": 5e-3}


@pytest.fixture(scope="module")
def digits():
    data = load("digits")
    chosen = torch.arange(300)
    return TensorDataset(data.images[chosen].flatten(1).float() / 255, data.labels[chosen])


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))


def train(model, data, epochs, watch=None):
    """A loop that shuffles, drops out and augments with global random numbers."""
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    loader = DataLoader(data, batch_size=50, shuffle=True)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss = nc.BCELoss()
    for _ in range(epochs):
        for x, y in loader:
            x = x + 0.1 * torch.randn_like(x) + 0.01 * np.random.rand()  # noqa: NPY002
            optimiser.zero_grad()
            loss(model(x), y).backward()
            optimiser.step()
        if watch is not None:
            watch.step()


def test_the_training_does_not_notice(digits):
    plain, watched = build(), build()
    train(plain, digits, 3)
    with nc.monitor(watched, DataLoader(digits, batch_size=64, shuffle=True)) as watch:
        train(watched, digits, 3, watch)
    assert all(map(torch.equal, plain.state_dict().values(), watched.state_dict().values()))
    assert [seen.epoch for seen in watch.history] == [0, 1, 2, 3]


def test_the_metric_in_the_loop_does_not_change_it_either(digits):
    plain, watched = build(), build()
    train(plain, digits, 2)
    metric = nc.NeuralCollapse(10, 32)
    with torch.no_grad():
        handle = watched[4].register_forward_pre_hook(
            lambda module, args: metric.update(args[0], torch.arange(len(args[0])) % 10)
        )
    train(watched, digits, 2)
    handle.remove()
    assert all(map(torch.equal, plain.state_dict().values(), watched.state_dict().values()))
    assert float(metric.compute()["num_samples"]) == 600


def test_the_numbers_are_those_of_measure(digits):
    model = build()
    problem = nc.Problem("bce", 10, batch_size=50, features="relu", **DECAYS)
    with nc.monitor(model, DataLoader(digits, batch_size=64), problem=problem) as watch:
        train(model, digits, 1, watch)
    x, y = digits.tensors
    features = model.eval()[:4](x)
    exact = nc.measure(features, y, head=model[4], problem=problem)
    assert watch.last.nc1 == pytest.approx(exact.nc1, rel=1e-6)
    assert watch.last.accuracy == exact.accuracy
    problem = nc.Problem("bce", len(model[4].weight), batch_size=50, features="relu", **DECAYS)
    certificate = nc.certify(features, y, head=model[4], problem=problem)
    numbers = watch.history[-1].numbers()
    assert numbers["certified/gap"] == pytest.approx(certificate.gap, rel=1e-5)
    assert numbers["predicted/positive_score"] == nc.predict(problem).positive_score
    assert numbers["nc/positive_score.mean"] == pytest.approx(exact.positive_score.mean, rel=1e-5)
    assert numbers["nc/bias_residual"] == pytest.approx(exact.bias_residual, rel=1e-5)
    assert watch.history[-1].seconds > 0


def test_a_loss_that_is_not_convex_is_predicted_but_not_certified(digits):
    problem = nc.Problem("focal", 10, batch_size=50, **DECAYS)
    seen = nc.monitor(build(), DataLoader(digits, 64), problem=problem).observe()
    assert seen.certificate is None
    assert seen.numbers()["predicted/positive_score"] == nc.predict(problem).positive_score
    assert not any(name.startswith("certified") for name in seen.numbers())


@pytest.mark.parametrize(
    "size",
    [
        {"per_class": 10},
        {"batch_size": 40},
        {"class_counts": [10, 10, 10, 10]},
        {"class_counts": [500, 500, 500, 500], "batch_size": 40},
    ],
)
def test_the_gap_is_that_of_the_problem_however_many_rows_are_measured(size):
    problem = nc.Problem("bce", 4, **size, **DECAYS)
    optimum = nc.predict(problem).configuration(dim=8)
    for times in (1, 30):
        rows = (optimum.features.repeat(times, 1), optimum.labels.repeat(times))
        seen = nc.monitor(lambda x: x, [rows], head=(optimum.weight, optimum.bias), problem=problem).observe()
        assert seen.certificate.gap == pytest.approx(0, abs=1e-6)
        assert seen.certificate.objective == pytest.approx(nc.predict(problem).objective, rel=1e-6)


def test_the_gap_of_counted_classes_does_not_depend_on_the_shares_measured():
    problem = nc.Problem("ce", class_counts=[30, 20, 10], bias=False, features="relu", **DECAYS)
    optimum = nc.predict(problem).configuration(dim=8)
    times = 1 + 4 * optimum.labels
    rows = (optimum.features.repeat_interleave(times, 0), optimum.labels.repeat_interleave(times))
    head = (optimum.weight, None)
    assert nc.monitor(lambda x: x, [rows], head=head, problem=problem).observe().certificate.gap < 1e-6
    few = [(rows[0][rows[1] < 2], rows[1][rows[1] < 2])]  # none of the last class: the problem's gap is unknown
    with pytest.warns(UserWarning, match="class"):
        assert nc.monitor(lambda x: x, few, head=head, problem=problem).observe().certificate is None


@pytest.mark.parametrize(
    "problem",
    [
        nc.Problem("bce", class_counts=[60, 30, 10], **DECAYS),
        nc.Problem("ce", class_counts=[60, 30, 10], batch_size=20, **DECAYS),
    ],
    ids=["bce", "ce"],
)
def test_without_a_closed_form_there_is_a_certificate_and_no_prediction(problem):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    batches = [(torch.randn(90, 6), torch.arange(90) % 3)]
    with nc.monitor(model, batches, problem=problem) as watch:
        assert watch.prediction is None
    seen = watch.history[-1]
    assert seen.prediction is None
    assert seen.certificate.gap > 0
    features = model[:2](batches[0][0])
    exact = nc.certify(features, batches[0][1], loss=problem.loss, head=model[2], class_counts=problem.counts, **DECAYS)
    assert seen.certificate.gap == pytest.approx(exact.gap, rel=1e-5)
    assert "certified/gap" in seen.numbers()
    assert not any(name.startswith("predicted") for name in seen.numbers())


def test_every_may_be_any_whole_number(digits):
    watch = nc.monitor(build(), DataLoader(digits, 64), every=np.int64(2))
    assert [watch.step() is not None for _ in range(4)] == [False, True, False, True]


def test_every_so_many_epochs_and_the_last(digits):
    logged = []
    with nc.monitor(
        build(), DataLoader(digits, 64), every=3, log=lambda numbers, at: logged.append((at, numbers))
    ) as w:
        results = [w.step() for _ in range(7)]
    assert [result is not None for result in results] == [False, False, True, False, False, True, False]
    assert [at for at, _ in logged] == [0, 3, 6, 7]
    assert logged[0][1]["nc/num_samples"] == 300
    broken = nc.monitor(build(), DataLoader(digits, 64), every=3)
    with pytest.raises(ZeroDivisionError), broken:
        _ = [broken.step(), 1 / 0]
    assert len(broken.history) == 1


def test_a_function_that_returns_features_with_its_head(digits):
    model = build()
    loader = DataLoader(digits, 64)
    with nc.monitor(model[:4], loader, head=model[4]) as watch:
        train(model, digits, 1, watch)
    assert watch.last == nc.monitor(model, loader).observe().measurement


def test_missing_classes_are_said_once(digits):
    x, y = digits.tensors
    few = [(x[y < 9], y[y < 9])]
    watch = nc.monitor(build(), few)
    with pytest.warns(UserWarning, match="measure: no sample of class 9") as said:
        watch.observe()
    assert len(said) == 1
    assert watch.observe().measurement.present_classes == 9  # warnings are errors here
    nc.monitor(build(), few, min_count=2).observe()  # left out on request


def test_fields_by_choice(digits):
    seen = nc.monitor(build(), DataLoader(digits, 64), fields=["nc1", "accuracy"]).observe()
    whole = nc.monitor(build(), DataLoader(digits, 64)).observe()
    assert seen.measurement.nc1 == pytest.approx(whole.measurement.nc1, rel=1e-9)
    assert np.isnan(seen.measurement.nc2)
    assert {name for name in seen.numbers() if name.startswith("nc/")} < set(whole.numbers())


def test_a_fixed_subset(digits):
    loader = DataLoader(digits, batch_size=64, shuffle=True)
    watches = [nc.monitor(build(), loader, samples=120, seed=seed) for seed in (0, 0, 1)]
    first, again, other = (watch.observe().measurement for watch in watches)
    assert first == again
    assert first != other
    assert first.num_samples == 120


def test_curves(digits):
    model = build()
    problem = nc.Problem("bce", 10, batch_size=50, features="relu", **DECAYS)
    with nc.monitor(model, DataLoader(digits, 64), problem=problem) as watch:
        train(model, digits, 1, watch)
    figure = watch.plot()
    drawn = {curve.name: curve for curve in figure.data}
    nc1 = drawn["NC1: within-class spread"]
    assert list(nc1.x) == [0, 1]
    assert list(nc1.y) == pytest.approx([seen.measurement.nc1 for seen in watch.history], rel=1e-4)
    assert drawn["positive score, predicted"].y[0] == nc.predict(problem).positive_score
    assert drawn["positive score, predicted"].line.dash == "dash"
    gaps = [seen.certificate.gap for seen in watch.history]
    assert list(drawn["Certified gap to the optimum"].y) == pytest.approx(gaps, rel=1e-4)
    assert "Neural collapse over 1 epoch<" in figure.layout.title.text
    titles = [re.sub("<[^>]*>", "", note.text) for note in figure.layout.annotations]
    assert {"accuracy · uniform accuracy · NC4", "positive score · negative score · bias"} <= set(titles)
    assert "10 classes" in figure.layout.title.text.partition("<br>")[2]
    dark = watch.plot(dark=True)
    assert [list(curve.y) for curve in dark.data] == [list(curve.y) for curve in figure.data]
    assert (figure.layout.paper_bgcolor, dark.layout.paper_bgcolor) == ("#ffffff", "#16181b")
    assert figure.layout.font.color != dark.layout.font.color
    assert not [colour for colour in re.findall(r'"color":"([^"]*)"', dark.to_json()) if colour.startswith("var:")]
    with pytest.raises(ValueError, match="history: expected at least one observation, got none"):
        nc.monitor(model, DataLoader(digits, 64)).plot()


@pytest.mark.parametrize(("fields", "told"), [(["nc1"], ": NC1"), (["accuracy"], ": accuracy"), (["cdnv"], "</b><br>")])
def test_fields_that_were_left_out_are_not_printed_as_numbers(digits, fields, told):
    problem = nc.Problem("bce", 10, batch_size=50, features="relu", **DECAYS)
    watch = nc.monitor(build(), DataLoader(digits, 64), problem=problem, fields=fields)
    watch.observe()
    assert "nan" not in str(watch)
    title = watch.plot().layout.title.text
    assert told in title
    assert "nan" not in title


def test_zeros_have_no_place_on_a_logarithmic_axis():
    """NC1 is 0 where every sample lies on its mean, an accuracy where all are wrong."""
    history = [Observation(e, Measurement(nc1=v, accuracy=v)) for e, v in enumerate((0.5, 0.0, 0.25))]
    drawn = {curve.name: list(curve.y) for curve in draw_history(history).data}
    assert drawn["NC1: within-class spread"] == [0.5, None, 0.25]
    assert drawn["accuracy"] == [0.5, 0.0, 0.25]
    assert "NC2: classifier to simplex" not in drawn, "nothing was measured"


def test_a_monitor_is_printed_as_a_table(digits):
    problem = nc.Problem("bce", 10, batch_size=50, features="relu", **DECAYS)
    watch = nc.monitor(build(), DataLoader(digits, 64), problem=problem)
    assert str(watch) == "nothing measured yet"
    for _ in range(20):
        watch.step()
    lines = str(watch).splitlines()
    assert lines[0].split() == ["epoch", "nc1", "nc2", "nc3", "nc4", "accuracy", "gap"]
    assert [int(line.split()[0]) for line in lines[1:13]] == [1, 3, 4, 6, 8, 10, 11, 13, 15, 17, 18, 20]
    assert lines[12].split()[1] == f"{watch.last.nc1:.4g}"
    assert lines[14].split() == ["epoch", "20", "measured", "predicted"]
    shown = {line.split()[0]: line.split()[1:] for line in lines[15:]}
    assert shown["bias"] == [f"{watch.last.bias.mean:.4g}", f"{nc.predict(problem).bias:.4g}"]
    assert repr(watch) == "<Monitor of Sequential: epoch 20, 20 observations>"


def test_what_does_not_fit_is_known_before_training(digits):
    with pytest.raises(ValueError, match="no linear layer at all"), nc.monitor(nn.Flatten(), DataLoader(digits, 64)):
        pytest.fail("the loop began")
    for every in (0, 1.5, "2"):
        with pytest.raises(ValueError, match=f"every: expected a whole number of at least 1, got {every!r}"):
            nc.monitor(build(), DataLoader(digits, 64), every=every)
    with pytest.raises(TypeError, match=r"problem: expected an ncollapse.Problem, got str"):
        nc.monitor(build(), DataLoader(digits, 64), problem="bce")
    with pytest.raises(TypeError, match=r"log: expected a function of \(numbers, epoch\), got 'nc'"):
        nc.monitor(build(), DataLoader(digits, 64), log="nc")
    with pytest.raises(TypeError, match="prefix: expected a string, got 3"):
        nc.monitor(build(), DataLoader(digits, 64), prefix=3)
    with pytest.raises(ValueError, match="nothing measured yet"):
        _ = nc.monitor(build(), DataLoader(digits, 64)).last


def test_the_page_on_monitoring(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[1] / "docs" / "monitor.md"
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        assert block.count("\n") - block.count("\n\n") <= 10
        exec(block, names)
    assert [seen.epoch for seen in names["watch"].history] == [0, 2, 4]
    assert float(names["result"]["num_samples"]) == 400
    assert (tmp_path / "nc.html").exists()
    assert any((tmp_path / "events").iterdir())


def test_the_benchmark_of_memory(monkeypatch, capsys):
    script = Path(__file__).parents[1] / "benchmarks" / "monitor.py"
    monkeypatch.setattr(sys, "argv", ["monitor.py", "--device", "cpu", "--memory", "64"])
    runpy.run_path(str(script), run_name="__main__")
    assert re.match(r"features 1 MiB, peak \d+ MiB", capsys.readouterr().out)


def test_the_benchmark_ends_and_leaves_its_numbers(tmp_path, monkeypatch, capsys):
    script = Path(__file__).parents[1] / "benchmarks" / "monitor.py"
    arguments = ["--device", "cpu", "--batch", "2", "--seconds", "0", "--json", str(tmp_path / "monitor.json")]
    monkeypatch.setattr(sys, "argv", ["monitor.py", *arguments])
    runpy.run_path(str(script), run_name="__main__")
    found = json.loads((tmp_path / "monitor.json").read_text())
    assert found["eager"]["pairs"] == 2
    assert found["eager"]["plain_ms"] > found["eager"]["inside_ms"] > 0
    assert found["update"]["waits"] >= 1  # on a CPU every update looks at its labels and features
    assert "an update: 0.00 launches" in capsys.readouterr().out
