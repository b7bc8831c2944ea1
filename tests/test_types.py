"""What a type checker sees in a user's script: real types, and refusals of what is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="needs mypy, of the extra dev")

ROOT = Path(__file__).parents[1]
RIGHT = """
import numpy as np
import torch
import ncollapse as nc
from torch import Tensor, nn

features, labels = torch.randn(12, 4), torch.arange(12) % 3
linear = nn.Linear(4, 3)
m: nc.Measurement = nc.measure(features, labels, head=linear)
nc1: float = m.nc1
mean: float = m.positive_score.mean
nc.measure(features.numpy(), labels.numpy(), np.eye(3, 4), np.zeros(3))
nc.measure([(features, labels), (features, labels)], head=(linear.weight, None))
p: nc.Prediction = nc.predict("bce", num_classes=3, batch_size=12, weight_decay=5e-4, feature_decay=5e-4)
phase: str = p.phase
nc.predict("focal", 10, gamma=3, per_class=5.0, weight_decay=5e-4, feature_decay=5e-4, features="relu")
problem: nc.Problem = nc.Problem("ce", 3, per_class=4, weight_decay=0.1, feature_decay=0.1)
c: nc.Certificate = nc.certify(features, labels, head=linear, problem=problem)
gap: float = c.gap
metric = nc.NeuralCollapse(3, 4)
metric.update(features, labels)
value: Tensor = metric.compute(head=linear)["nc1"]
watch: nc.Monitor = nc.monitor(nn.Sequential(linear), [(features, labels)])
loss: Tensor = nc.BCELoss()(linear(features), labels)
head: nc.Head = nc.Head.from_linear(linear)
recipe = nc.train.Recipe()
rate: float = recipe.optim.lr
"""
WRONG = {
    'nc.measure("nonsense", 3, head="x")': "arg-type",
    "nc.nonexistent": "attr-defined",
    'nc.predict("ce", 10, weight_decay="large", feature_decay=0.1, per_class=1)': "arg-type",
    'nc.predict("ce", 10, wieght_decay=0.1, feature_decay=0.1, per_class=1)': "call-arg",
    'nc.predict("ce", 10, weight_decay=0.1, feature_decay=0.1, per_class=1, features="rely")': "arg-type",
    "nc.measure(torch.eye(3), torch.arange(3)).nc5": "attr-defined",
    'nc.predict("ce", 10, weight_decay=0.1, feature_decay=0.1, per_class=1).phase + 1': "operator",
    'nc.monitor("model", [])': "arg-type",
    "nc.NeuralCollapse(3, 4).compute()['nc1'] + 'x'": "operator",
}


@pytest.mark.slow
def test_a_user_s_script_is_checked(tmp_path):
    (tmp_path / "right.py").write_text(RIGHT)
    wrong = ["import torch", "import ncollapse as nc", *WRONG]
    (tmp_path / "wrong.py").write_text("\n".join(wrong) + "\n")
    # the settings (strict) and the cache of `make lint`: torch alone takes a minute to read
    settings = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    command = [sys.executable, "-m", "mypy", *settings, "right.py", "wrong.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    found = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert not [line for line in found if line.startswith("right.py")], done.stdout
    by_line = {int(line.split(":")[1]): line for line in reversed(found) if line.startswith("wrong.py")}
    for number, (code, kind) in enumerate(WRONG.items(), 3):
        assert number in by_line, f"no error for {code}\n{done.stdout}{done.stderr}"
        assert f"[{kind}]" in by_line[number], f"{code}: {by_line[number]}"
