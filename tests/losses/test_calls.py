"""Losses with parameters in their name, of the package and of the user's own."""

import sys

import pytest
import torch

import ncollapse as nc
from ncollapse.compare.plan import plan
from ncollapse.losses import is_loss_name
from ncollapse.losses.calls import join_call, split_call
from ncollapse.train import Recipe, recipes, run
from ncollapse.train.recipe import LossSpec

TILTED = """
import torch.nn.functional as F
from ncollapse.losses import Loss

class Tilted(Loss):
    name = "tilted"
    contrastive = True

    def __init__(self, slope=1.0, shape="soft", **rest):
        super().__init__(**rest)
        self.slope, self.shape = slope, shape

    def params(self):
        return {"slope": self.slope}

    def forward(self, logits, target):
        return F.cross_entropy(self.slope * logits, target, reduction=self.reduction)
"""


@pytest.fixture
def own_loss(tmp_path, monkeypatch):
    (tmp_path / "own_losses.py").write_text(TILTED)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "own_losses:Tilted"
    sys.modules.pop("own_losses", None)


def test_calls_are_read_and_written():
    assert split_call("bce") == ("bce", {})
    assert split_call("a.b:C(x=1.5, y='t', z=True)") == ("a.b:C", {"x": 1.5, "y": "t", "z": True})
    assert join_call("a:C", {"y": 2.0, "x": "t"}) == "a:C(x='t', y=2)"
    for wrong in ("focal(2)", "focal(gamma=", "focal(gamma=[1])", "focal(**{})", "focal(gamma=open('x'))", "focal()()"):
        assert not is_loss_name(wrong), wrong
    with pytest.raises(ValueError, match=r"loss: expected NAME\(parameter=value, ...\), got 'focal\(2\)'"):
        split_call("focal(2)")


def test_a_loss_of_the_package():
    assert nc.make_loss("focal(gamma=2)").params() == {"gamma": 2}
    with pytest.raises(TypeError, match="gamma given twice"):
        nc.make_loss("focal(gamma=2)", gamma=3)
    with pytest.raises(TypeError, match="loss 'ce'"):
        nc.make_loss("ce(slope=2)")
    # the same loss has one spelling in a recipe, and so one run id
    assert LossSpec("focal(gamma=2)") == LossSpec("focal", gamma=2.0)
    assert LossSpec("ls( alpha = 0.2 )") == LossSpec("ls", alpha=0.2)
    assert Recipe(loss=LossSpec("focal(gamma=2)")).run_id == Recipe(loss=LossSpec("focal", gamma=2.0)).run_id
    with pytest.raises(ValueError, match=r"recipe: loss\.gamma: expected none beside"):
        LossSpec("focal(gamma=2)", gamma=3.0)
    with pytest.raises(ValueError, match=r"recipe: loss\.name"):
        LossSpec("focal(2)")
    decays = {"weight_decay": 5e-3, "feature_decay": 5e-3}
    p = nc.predict("focal(gamma=2)", 4, per_class=1, **decays)
    assert p.objective == nc.predict("focal", 4, per_class=1, gamma=2, **decays).objective


def test_a_loss_of_one_s_own(own_loss, tmp_path):
    name = f"{own_loss}(slope=0.5)"
    loss = nc.make_loss(name)
    z, y = torch.tensor([[2.0, 0.0, 1.0]]), torch.tensor([0])
    assert loss(z, y).item() == pytest.approx(nc.CELoss()(z / 2, y).item(), rel=1e-6)
    spec = LossSpec(f"{own_loss}( slope=0.50 )")
    assert spec.name == name
    assert LossSpec(name, gamma=None).make().slope == 0.5
    recipe = recipes.get("digits").override(loss__name=name)
    assert Recipe.from_json(recipe.to_json()) == recipe
    path = tmp_path / "recipe.toml"
    path.write_text(recipe.to_toml())
    assert Recipe.from_file(path).run_id == recipe.run_id
    planned = plan("digits", ["ce", name, f"{own_loss}(slope=2)", "focal(gamma=1)"], seeds=1)
    assert [r.loss.name for r in planned] == ["ce", name, f"{own_loss}(slope=2)", "focal"]
    assert len({r.run_id for r in planned}) == 4
    short = planned[1].override(optim__epochs=1, data__samples_per_class=8)
    summary = run(short, tmp_path / "runs", device="cpu")
    assert summary["status"] == "finished"
