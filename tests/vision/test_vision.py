"""Models of timm and torchvision: `make test-vision` runs what is skipped without them."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import ncollapse as nc
from ncollapse import cli, data
from ncollapse.features import extract

timm = pytest.importorskip("timm", reason="needs timm: make test-vision")
models = pytest.importorskip("torchvision.models", reason="needs torchvision: make test-vision")

IMAGES, LABELS = torch.randn(6, 3, 64, 64, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224", "convnext_atto", "mobilenetv3_small_050"])
def test_timm_models(name):
    options = {"img_size": 64} if name.startswith("vit") else {}
    model = timm.create_model(name, num_classes=3, **options)
    found = extract(model, [(IMAGES, LABELS)])
    assert model.get_submodule(found.layer) is model.get_classifier()
    with torch.no_grad():
        whole = model.eval()(IMAGES)
        before = model.forward_head(model.forward_features(IMAGES), pre_logits=True)
    assert torch.allclose(found.head.logits(found.features), whole, atol=1e-5)
    assert torch.allclose(found.features, before, atol=1e-5)


def test_timm_s_two_heads_are_named():
    model = timm.create_model("deit_tiny_distilled_patch16_224", num_classes=3, img_size=64)
    with pytest.raises(ValueError, match="several classifiers: head, head_dist"):
        extract(model, [(IMAGES, LABELS)])
    assert extract(model, [(IMAGES, LABELS)], layer="head").features.shape == (6, 192)


def test_timm_without_a_classifier():
    with pytest.raises(ValueError, match="no linear layer"):
        extract(timm.create_model("resnet18", num_classes=0), [(IMAGES, LABELS)])


@pytest.mark.parametrize(
    ("name", "layer"),
    [("resnet18", "fc"), ("densenet121", "classifier"), ("vgg11", "classifier.6"), ("mobilenet_v2", "classifier.1")],
)
def test_torchvision_models(name, layer):
    model = models.get_model(name, weights=None, num_classes=3)
    found = extract(model, [(IMAGES, LABELS)])
    assert found.layer == layer
    with torch.no_grad():
        assert torch.allclose(found.head.logits(found.features), model.eval()(IMAGES), atol=1e-5)


def test_torchvision_vit():
    model = models.vit_b_32(weights=None, num_classes=3, image_size=64)
    assert extract(model, [(IMAGES, LABELS)]).layer == "heads.head"


def test_a_timm_checkpoint_from_the_command_line(tmp_path, capsys):
    torch.manual_seed(0)
    model = timm.create_model("resnet18", num_classes=10)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    command = ["measure", "--model", "timm:resnet18", "--weights", str(tmp_path / "w.safetensors")]
    assert cli.main([*command, "--data", "digits", "--split", "test", "--channels", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    samples = data.load("digits", split="test")
    batches = data.EvalLoader(samples, normalise=data.NORMALISATION["digits"], channels=3)
    exact = extract(model, batches)
    measured = nc.measure(exact.features, exact.labels, head=exact.head)
    assert found["accuracy"] == measured.accuracy
    assert found["positive_score"]["mean"] == pytest.approx(measured.positive_score.mean, rel=1e-4, abs=1e-6)
    assert found["bias"]["mean"] == pytest.approx(measured.bias.mean, rel=1e-6)


@pytest.mark.parametrize("name", ["timm:resnet10t", "torchvision:resnet18"])
def test_a_comparison_with_a_network_of_a_library(name, tmp_path, capsys):
    labels = torch.arange(40) % 2
    images = np.random.default_rng(0).integers(0, 100, (40, 3, 32, 32)) + 100 * labels.numpy()[:, None, None, None]
    np.savez(tmp_path / "own.npz", images=images.astype("uint8"), labels=labels.numpy())
    words = ["--data", f"npz:{tmp_path / 'own.npz'}", "--model", name, "--epochs", "1", "--seeds", "1"]
    words += ["--batch-size", "16", "--engine", "packed", "--jobs", "1", "--device", "cpu"]
    assert cli.main(["compare", *words, "--out", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [variant["label"] for variant in found["variants"]] == ["CE", "BCE"]
    assert found["unfinished"] == []
    configs = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("*/config.json")]
    assert {config["model"]["name"] for config in configs} == {name}
