"""One contract for every network; published numbers of parameters; features of any dimension."""

import re
from pathlib import Path

import pytest
import torch

from ncollapse.heads import ETFHead, LinearHead
from ncollapse.models import NAMES, count_parameters, create

# He et al. and Huang et al. as in torchvision (1000 classes, ImageNet stem); timm's vit_small_patch16_224
PUBLISHED = {
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "wide-resnet50-2": 68_883_240,
    "densenet121": 7_978_856,
    "densenet161": 28_681_000,
}
# the usual CIFAR versions with the 3 x 3 stem, 10 classes
SMALL = {
    "resnet18": 11_173_962,
    "resnet34": 21_282_122,
    "resnet50": 23_520_842,
    "resnet101": 42_512_970,
    "densenet121": 6_956_298,
    "resnet32": 464_154,
    "wide-resnet18-1": 11_173_962,
    "wide-resnet50-1": 23_520_842,
}
# what bce-vs-ce's public code prints for its DenseNet121, and the count of the Zhou papers' ResNet18 with 10 features
SMALL["densenet121-small"] = 1_766_858
NARROWED = {("resnet18", 10): 8_859_862, ("resnet18", 512): 11_173_962, ("resnet50", 2048): 23_520_842}
WIDTHS = {
    "resnet18": 512,
    "resnet32": 64,
    "resnet34": 512,
    "densenet121": 1024,
    "densenet121-small": 512,
    "densenet161": 2208,
    "vit-small": 384,
}
QUICK = (
    *("resnet18", "resnet32", "resnet50", "densenet121", "densenet121-small"),
    *("wide-resnet18-0.25", "wide-resnet50-0.5", "mlp-small"),
)


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_parameters_with_the_imagenet_stem(name, count):
    with torch.device("meta"):
        assert count_parameters(create(name, 1000, stem="imagenet")) == count


@pytest.mark.parametrize(("name", "count"), SMALL.items())
def test_parameters_with_the_small_stem(name, count):
    with torch.device("meta"):
        assert count_parameters(create(name, 10)) == count


@pytest.mark.parametrize(("asked", "count"), NARROWED.items())
def test_parameters_with_narrower_features(asked, count):
    name, dim = asked
    with torch.device("meta"):
        assert count_parameters(create(name, 10, feature_dim=dim)) == count


@pytest.mark.parametrize("name", ["resnet18", "resnet32", "resnet50", "wide-resnet50-0.5"])
def test_feature_dim_narrows_the_last_block_alone(name):
    with torch.device("meta"):
        whole = dict(create(name, 10).trunk.named_parameters())
        narrow = dict(create(name, 10, feature_dim=5).trunk.named_parameters())
    changed = {key for key in narrow if key not in whole or narrow[key].shape != whole[key].shape}
    last = max(key.split(".")[:2] for key in whole if key.startswith("layer"))
    assert set(whole) <= set(narrow)
    assert {key.split(".")[0] for key in changed} == {last[0]}
    assert {int(key.split(".")[1]) for key in changed} == {int(last[1])}
    assert len(changed) == 6


def test_parameters_of_perceptrons_and_transformer():
    d, w = 3 * 32 * 32, 1024
    with torch.device("meta"):
        assert count_parameters(create("mlp-1024", 10, bias=False)) == d * w + w + 5 * (w * w + w) + 10 * w
        assert count_parameters(create("vit-small", 1000, image_size=224)) == 22_050_664


@pytest.mark.parametrize("name", NAMES)
def test_the_contract(name):
    torch.manual_seed(0)
    size = 16 if name == "densenet121-small" else 8
    network = create(name, 7, in_channels=1, image_size=size).eval()
    x = torch.randn(2, 1, size, size)
    with torch.no_grad():
        logits, features, maps = network(x), network.features(x), network.forward_features(x)
        head = network.get_classifier()
        assert logits.shape == (2, 7)
        assert features.shape == (2, network.num_features) == (2, WIDTHS.get(name, features.shape[1]))
        assert torch.equal(head(features), logits)
        assert torch.equal(network.forward_head(maps), logits)
        assert torch.equal(network.forward_head(maps, pre_logits=True), features)
        assert torch.allclose(logits, features @ head.weight.T - head.bias, atol=1e-5)
    assert network.head is head
    assert network.num_classes == 7
    assert (network.feature_kind == "relu") == bool((features >= 0).all())


@pytest.mark.parametrize("name", ["wide-resnet50-0.25", "wide-resnet50-2", "wide-resnet18-2"])
def test_wide_networks_keep_their_features(name):
    with torch.device("meta"):
        assert create(name, 10).num_features == (512 if "18" in name else 2048)


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("dim", [3, 70])
def test_feature_dim_keeps_relu_features(name, dim):
    torch.manual_seed(1)
    network = create(name, 4, image_size=16, feature_dim=dim).eval()
    with torch.no_grad():
        features = network.features(torch.randn(3, 3, 16, 16))
    assert features.shape == (3, dim)
    assert network.num_features == dim
    assert network.feature_kind == "relu"
    assert bool((features >= 0).all())
    assert bool((features > 0).any())


def test_feature_dim_linear_frees_the_features():
    torch.manual_seed(0)
    network = create("resnet32", 4, image_size=8, feature_dim_linear=5).eval()
    with torch.no_grad():
        features = network.features(torch.randn(16, 3, 8, 8))
    assert features.shape == (16, 5)
    assert network.feature_kind == "free"
    assert bool((features < 0).any())


def test_heads():
    fixed = create("mlp-small", 5, in_channels=1, image_size=8, head="etf", bias=False)
    assert isinstance(fixed.head, ETFHead)
    assert all(not name.startswith("head.") for name, _ in fixed.named_parameters())
    free = create("mlp-small", 5, in_channels=1, image_size=8, bias=False)
    assert isinstance(free.head, LinearHead)
    assert free.head.bias is None
    biased = create("mlp-small", 5, in_channels=1, image_size=8, bias_init=6.0)
    assert abs(float(biased.head.bias.detach().mean()) - 6) < 0.1
    turned = create("mlp-small", 5, in_channels=1, image_size=8, head="etf", bias_init=6.0)
    assert turned.head.bias.tolist() == [6.0] * 5
    with pytest.raises(ValueError, match=r"bias_init=6\.0 needs a bias"):
        create("mlp-small", 5, in_channels=1, image_size=8, head="etf", bias=False, bias_init=6.0)


def test_vectors_go_through_a_perceptron():
    network = create("mlp-32", 3, in_channels=16, image_size=1)
    assert network(torch.randn(4, 16)).shape == (4, 3)
    assert network.num_features == 32


def test_features_keep_the_heads_precision():
    for linear in (None, 6):
        network = create("resnet32", 4, image_size=8, feature_dim_linear=linear)
        with torch.autocast("cpu", torch.bfloat16):
            maps = network.forward_features(torch.randn(2, 3, 8, 8))
            assert maps.dtype == torch.bfloat16
            assert network.forward_head(maps, pre_logits=True).dtype == torch.float32
            assert network.forward_head(maps).dtype == torch.float32


def test_channels_last_gives_the_same():
    torch.manual_seed(0)
    network = create("resnet32", 4, image_size=8).eval()
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        plain = network(x)
        last = network.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
    assert torch.allclose(plain, last, atol=1e-5)


@pytest.mark.parametrize("name", ["resnet32", "densenet121", "vit-small", "mlp-small"])
def test_every_parameter_learns(name):
    torch.manual_seed(0)
    network = create(name, 4, image_size=16)
    network(torch.randn(4, 3, 16, 16)).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in network.parameters())


@pytest.mark.parametrize("name", ["resnet18", "densenet121"])
def test_trunks_start_as_torchvisions_do(name):
    torch.manual_seed(0)
    network = create(name, 10)
    for module in network.trunk.modules():
        if isinstance(module, torch.nn.Conv2d) and module.weight.numel() > 30_000:
            fan = module.weight.shape[0 if name == "resnet18" else 1] * module.kernel_size[0] ** 2
            assert float(module.weight.detach().std()) == pytest.approx((2 / fan) ** 0.5, rel=0.05)
        if isinstance(module, torch.nn.BatchNorm2d):
            assert bool((module.weight == 1).all())
            assert bool((module.bias == 0).all())


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"name": "resnet19"}, "model: expected .*got 'resnet19'"),
        ({"name": "wide-resnet18-3"}, "model: expected"),
        ({"name": "mlp-0"}, "model: expected"),
        ({"stem": "large"}, "stem"),
        ({"head": "cosine"}, "head: expected"),
        ({"feature_dim": 0}, "feature_dim"),
        ({"feature_dim_linear": -1}, "feature_dim_linear"),
        ({"num_classes": 1}, "num_classes"),
        ({"name": "vit-small", "feature_dim": 10}, "feature_dim_linear"),
        ({"name": "vit-small", "image_size": 130}, "multiple of the patch"),
        (
            {"image_size": (3, 32, 32)},
            r"image_size: expected a number of pixels, or \(height, width\), got \(3, 32, 32\)",
        ),
        ({"image_size": 0}, "image_size: expected a number of pixels, .* got 0"),
        ({"name": "vit-small", "image_size": (32, 64)}, "image_size: vit-small takes square images, got 32 x 64"),
        ({"name": "densenet121-small", "image_size": (14, 40)}, "image_size: .* at least 15, got 14"),
        ({"name": "densenet121-small", "image_size": 14}, "image_size: densenet121-small .* at least 15, got 14"),
        ({"name": "densenet121", "image_size": 28, "stem": "imagenet"}, "image_size: .* at least 29, got 28"),
    ],
)
def test_impossible_networks_are_refused(options, match):
    with torch.device("meta"), pytest.raises(ValueError, match=match):
        create(**{"name": "resnet18", "num_classes": 10, **options})


@pytest.mark.parametrize("name", ["resnet18", "densenet121-small", "vit-small", "mlp-small"])
def test_the_classifier_is_replaced_as_in_timm(name):
    network = create(name, 10, in_channels=3).double()
    network.reset_classifier(4)
    head = network.get_classifier()
    assert (head.weight.shape, head.weight.dtype) == ((4, network.num_features), torch.float64)
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    assert network.eval()(x).shape == (2, 4)
    assert network.num_classes == 4
    without = create(name, 10, in_channels=3, bias=False)
    without.reset_classifier(4)
    assert without.get_classifier().bias is None


def test_the_documented_table_is_true():
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    rows = re.findall(r"^\| `(\S+)` \| (\d+) \| (\w+) \| ([\d ]+) \| ([\d ]*) \|$", text, re.MULTILINE)
    assert [row[0] for row in rows] == list(NAMES)
    with torch.device("meta"):
        for name, features, kind, small, large in rows:
            network = create(name, 10)
            assert (network.num_features, network.feature_kind) == (int(features), kind)
            assert count_parameters(network) == int(small.replace(" ", ""))
            if large.strip():
                stem = {"image_size": 224} if name == "vit-small" else {"stem": "imagenet"}
                assert count_parameters(create(name, 1000, **stem)) == int(large.replace(" ", ""))
