"""The second stage of table 4: class-balanced retraining of the classifier on frozen features."""

import json
import math
from dataclasses import replace

import pytest
import torch

from ncollapse.papers.experiment import Experiment, Point
from ncollapse.papers.rebalance import balance_weights, rebalance_all, retrain, score, second_stage_lines
from ncollapse.sweep.sweep import sweep
from ncollapse.train import recipes


def test_weights_follow_the_effective_number():
    weights = balance_weights([1000, 100, 10], beta=0.99)
    effective = [(1 - 0.99**n) / 0.01 for n in (1000, 100, 10)]
    assert weights[2] / weights[0] == pytest.approx(effective[0] / effective[2])
    assert sum(weights) == pytest.approx(3)


def test_the_tail_gains_and_norms_stay_bounded():
    generator = torch.Generator().manual_seed(0)
    counts, centres = (400, 12), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    labels = torch.repeat_interleave(torch.arange(2), torch.tensor(counts))
    features = centres[labels] + 0.45 * torch.randn(len(labels), 2, generator=generator)
    weight, bias = torch.tensor([[1.0, 0.0], [0.0, 0.1]]), torch.tensor([0.0, 1.0])  # in favour of the head
    even = torch.repeat_interleave(torch.arange(2), 500)
    test = centres[even] + 0.45 * torch.randn(1000, 2, generator=generator)
    for loss in ("ce", "bce"):
        w, b = retrain((features, labels), weight, bias, loss, counts, 1e-4, 1.5, seed=0)
        assert float(w.norm(dim=1).max()) <= 1.5 + 1e-5
        assert score(test, even, w, b) > score(test, even, weight, bias) + 0.2
    w, _ = retrain((features, labels), weight, bias, "ce", counts, 1e-4, 50.0, seed=0)
    assert float(w.norm(dim=1).max()) < 20, "a bound does not lengthen"


def test_both_stages_on_digits(tmp_path, monkeypatch):
    monkeypatch.setattr("ncollapse.papers.rebalance.DECAYS", (1e-4,))
    monkeypatch.setattr("ncollapse.papers.rebalance.BOUNDS", (0.5, math.inf))
    base = recipes.get("digits").override(model__name="mlp-32", data__long_tail=10.0, data__validation=0.2)
    base = base.override(optim__epochs=3)
    points = [
        Point({"loss": name, "weight_decay": decay}, base.override(loss__name=name, optim__weight_decay=decay))
        for name, decay in (("ce", 0.0), ("ce", 1e-3), ("bce", 0.0))
    ]
    records = sweep([p.recipe for p in points], tmp_path, engine="packed", jobs=1, device="cpu")
    assert {r.status for r in records} == {"finished"}
    weights = records[1].path / "final.safetensors"
    kept = weights.read_bytes()
    weights.unlink()
    (records[2].path / "final.safetensors").rename(tmp_path / "whole")
    (records[2].path / "final.safetensors").write_bytes(b"cut")
    lost, broken = rebalance_all(records, None, "cpu", None)
    assert lost.startswith(records[1].run_id)
    assert "weights are not here" in lost
    assert broken.startswith(f"{records[2].run_id}: the second stage failed")
    weights.write_bytes(kept)
    (tmp_path / "whole").rename(records[2].path / "final.safetensors")
    assert rebalance_all(records, None, "cpu", None) == []
    result = json.loads((records[0].path / "rebalanced.json").read_text())
    assert set(result["before"]) == set(result["after"]) == {"train", "test", "validation"}
    stamps = [(r.path / "rebalanced.json").stat().st_mtime_ns for r in records]
    rebalance_all(records, None, "cpu", None)
    assert stamps == [(r.path / "rebalanced.json").stat().st_mtime_ns for r in records]

    experiment = Experiment("bce-vs-ce/table-4", "", lambda: points, finals=("test.accuracy",))
    keyed = [Point({"data": "cifar100-lt", "model": "resnet32", "factor": 10, **p.keys}, p.recipe) for p in points]
    lines = second_stage_lines(experiment, keyed, records)
    assert [line.published.mean for line in lines] == ["70.91", "71.54"]
    assert [line.keys["loss"] for line in lines] == ["ce", "bce"]
    assert not any("weight_decay" in line.keys for line in lines)
    other = tmp_path / "seed-1"
    other.mkdir()
    (other / "rebalanced.json").write_text('{"after": {"validation": 0.5, "test": 0.25}}')
    config = {**records[0].config, "seed": 1}
    more = [*records, replace(records[0], path=other, run_id="seed-1", config=config)]
    assert second_stage_lines(experiment, keyed, more)[0].values == (lines[0].values[0], 0.25), "one value a seed"
    chosen = [json.loads((r.path / "rebalanced.json").read_text())["after"] for r in records[:2]]
    assert lines[0].values == (max(chosen, key=lambda after: after["validation"])["test"],)
