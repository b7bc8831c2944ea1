"""Measuring and predicting need torch, numpy and scipy alone; what else is missing is named with how to install it."""

import subprocess
import sys

import pytest

HIDE = """
import importlib.abc, sys
GONE = {"sklearn", "torchmetrics", "safetensors", "tyro", "cattrs", "rich", "jinja2", "plotly", "threadpoolctl", "PIL"}
class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in GONE:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
"""
CORE = """
import torch, ncollapse as nc
features, labels = torch.randn(60, 8), torch.arange(60) % 3
linear = torch.nn.Linear(8, 3)
m = nc.measure(features, labels, head=linear)
p = nc.predict("bce", num_classes=3, batch_size=60, weight_decay=5e-4, feature_decay=5e-4, bias_decay=5e-4)
m.compare(p)
nc.certify(features, labels, head=linear, loss="bce", weight_decay=5e-4, feature_decay=5e-4, batch_size=60)
nc.solve(nc.Problem("ce", 3, per_class=1, weight_decay=0.05, feature_decay=0.05), restarts=1)
nc.BCELoss()(linear(features), labels).backward()
nc.landscape("mse", 4)
statistics = nc.ClassStatistics(3, 8)
statistics.update(features, labels)
assert abs(nc.measure(statistics, head=linear).nc1 - m.nc1) < 1e-9
model = torch.nn.Sequential(linear)
watch = nc.monitor(model, [(features, labels)])
watch.step()
assert len(watch.history) == 1
print("ok")
"""


def run(code):
    return subprocess.run([sys.executable, "-c", HIDE + code], capture_output=True, text=True)


def test_the_library_works_with_torch_numpy_and_scipy_alone():
    done = run(CORE)
    assert done.stdout == "ok\n", done.stderr


@pytest.mark.parametrize(
    ("verb", "package"), [("measure", "tyro"), ("compare", "tyro"), ("predict", "tyro"), ("env", "tyro")]
)
def test_commands_say_what_they_lack(verb, package):
    done = run(f"from ncollapse.cli import main; sys.exit(main([{verb!r}]))")
    assert done.returncode == 2
    assert done.stderr == f"ncollapse {verb}: the commands need {package}: pip install ncollapse, without --no-deps\n"
