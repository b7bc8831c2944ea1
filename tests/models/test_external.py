"""Foreign networks lose their classifier and get ours; weight files of ours and of others fit."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from ncollapse.models import create
from ncollapse.models.external import take_trunk
from ncollapse.models.weights import load_weights


class TorchvisionLike(nn.Module):
    def __init__(self, relu=True):
        super().__init__()
        self.features = nn.Conv2d(3, 6, 3)
        self.relu = relu
        self.classifier = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 11))

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


class TimmLike(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(3 * 64, 9)
        self.decoy = nn.Linear(1, 1)
        self.odd_name = nn.Linear(9, 11)

    def get_classifier(self):
        return self.odd_name

    def forward(self, x):
        return self.odd_name(self.stem(x.flatten(1)))


def test_the_last_linear_layer_is_taken_off():
    module = TorchvisionLike()
    x = torch.randn(4, 3, 8, 8)
    module.eval()
    expected = module.classifier[:3](module.features(x).mean((2, 3)))
    trunk, width, kind = take_trunk(module, 3, (8, 8))
    assert (width, kind) == (5, "relu")
    assert torch.equal(trunk(x), expected)
    assert not trunk.training


def test_get_classifier_comes_first():
    trunk, width, kind = take_trunk(TimmLike(), 3, (8, 8))
    assert (width, kind) == (9, "free")
    assert trunk(torch.randn(2, 3, 8, 8)).shape == (2, 9)
    assert trunk.training


def test_a_network_without_classifier_is_refused():
    with pytest.raises(ValueError, match="no linear classifier"):
        take_trunk(nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), 3, (8, 8))


@pytest.mark.parametrize("name", ["timm:resnet18", "torchvision:resnet18"])
def test_a_missing_extra_is_named(name, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, name.split(":")[0], None)
    monkeypatch.setitem(__import__("sys").modules, "torchvision.models", None)
    with pytest.raises(ImportError, match=r"ncollapse\[vision\]"):
        create(name, 10)
    with pytest.raises(ValueError, match="feature_dim_linear"):
        create(name, 10, feature_dim=3)


def foreign(network, classifier="fc."):
    """A state dict as torchvision would name it, bias added and not subtracted."""
    state = {}
    for name, value in network.state_dict().items():
        if name == "head.bias":
            value = -value
        state[name.replace("trunk.", "").replace("head.", classifier)] = value.clone()
    return state


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_weights_of_torchvisions_names(tmp_path, suffix):
    torch.manual_seed(0)
    source = create("resnet32", 5, image_size=8).eval()
    path = tmp_path / f"weights.{suffix}"
    if suffix == "pth":
        torch.save({"state_dict": {f"module.{name}": value for name, value in foreign(source).items()}}, path)
    else:
        save_file(foreign(source), path)
    copy = create("resnet32", 5, image_size=8, weights=path).eval()
    x = torch.randn(3, 3, 8, 8)
    with torch.no_grad():
        assert torch.equal(source(x), copy(x))


def test_weights_of_our_own_names(tmp_path):
    source = create("mlp-small", 5, in_channels=1, image_size=8)
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    copy = create("mlp-small", 5, in_channels=1, image_size=8, weights=tmp_path / "w.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(source.parameters(), copy.parameters()))


def test_first_densenet_files(tmp_path):
    source = create("densenet121", 3, stem="imagenet")
    state = {}
    for name, value in foreign(source, "classifier.").items():
        old = name.replace("norm1.", "norm.1.").replace("conv2.", "conv.2.") if "denselayer" in name else name
        if not name.endswith("num_batches_tracked"):
            state[old if old.startswith("classifier.") else f"features.{old}"] = value
    torch.save(state, tmp_path / "w.pth")
    copy = create("densenet121", 3, stem="imagenet", weights=tmp_path / "w.pth")
    assert all(torch.equal(a, b) for a, b in zip(source.parameters(), copy.parameters()))


def test_a_classifier_of_other_classes_is_left_out(tmp_path):
    source = create("resnet32", 5)
    save_file(foreign(source), tmp_path / "w.safetensors")
    network = create("resnet32", 9, weights=tmp_path / "w.safetensors")
    assert network.num_classes == 9
    assert torch.equal(network.trunk.conv1.weight, source.trunk.conv1.weight)
    fixed = create("resnet32", 5, head="etf", bias=False, weights=tmp_path / "w.safetensors")
    assert torch.equal(fixed.trunk.conv1.weight, source.trunk.conv1.weight)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda state: state.pop("conv1.weight"), "lacks trunk.conv1.weight"),
        (lambda state: state.update(extra=torch.zeros(1)), "unknown trunk.extra"),
        (lambda state: state.update({"conv1.weight": torch.zeros(16, 3, 7, 7)}), "other shapes for trunk.conv1.weight"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path, change, match):
    network = create("resnet32", 5)
    state = foreign(network)
    change(state)
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=match):
        load_weights(network, tmp_path / "w.safetensors")


def test_files_that_hold_no_weights(tmp_path):
    network = create("mlp-small", 5)
    with pytest.raises(FileNotFoundError, match="no file of weights"):
        load_weights(network, tmp_path / "none.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ValueError, match="no dictionary of tensors"):
        load_weights(network, tmp_path / "list.pth")


class OwnNetwork(nn.Module):
    """A network with classifiers of no known name: only the number of outputs tells which layer is the last."""

    def __init__(self, num_classes):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.ReLU())
        self.to_classes = nn.Linear(7, num_classes)

    def forward(self, x):
        return self.to_classes(self.body(x))


def make_own(num_classes):
    return OwnNetwork(num_classes)


def make_two_outputs(num_classes):
    network = OwnNetwork(num_classes)
    network.forward = lambda x: (network.to_classes(network.body(x)), x)
    return network


def make_other_size(num_classes):
    return OwnNetwork(num_classes + 1)


def test_a_factory_s_network_gets_our_head():
    network = create(f"{__name__}:make_own", 5, in_channels=3, image_size=2)
    assert (network.num_features, network.feature_kind, network.num_classes) == (7, "relu", 5)
    x = torch.randn(4, 3, 2, 2)
    assert torch.equal(network(x), network.head(network.trunk.body(x)))


def test_a_factory_s_network_takes_vectors():
    network = create(f"{__name__}:make_own", 5, in_channels=12, image_size=1)
    assert network(torch.randn(4, 12)).shape == (4, 5)


@pytest.mark.parametrize(
    ("factory", "size", "message"),
    [
        ("make_own", 3, r"model: OwnNetwork cannot be run on inputs \[3, 3, 3\]"),
        ("make_two_outputs", 2, r"without to_classes: expected features \[2, 7\], got tuple"),
        ("make_other_size", 2, "no linear classifier in any of fc, classifier, head, heads, nor one with 5 outputs"),
    ],
)
def test_a_factory_s_network_that_does_not_fit_is_named(factory, size, message):
    with pytest.raises(ValueError, match=message):
        create(f"{__name__}:{factory}", 5, in_channels=3, image_size=size)


class WideImages(nn.Module):
    """A network that fits images of 4 x 6 pixels alone."""

    def __init__(self, num_classes):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 6, 7), nn.ReLU())
        self.fc = nn.Linear(7, num_classes)

    def forward(self, x):
        return self.fc(self.body(x))


@pytest.mark.parametrize("name", [f"{__name__}:WideImages", "mlp-small", "mlp-20", "resnet32"])
def test_images_need_not_be_square(name):
    network = create(name, 5, in_channels=3, image_size=(4, 6))
    assert network(torch.randn(2, 3, 4, 6)).shape == (2, 5)


def make_linear(num_classes):
    return nn.Linear(12, num_classes)


def test_a_single_linear_layer_is_a_linear_probe():
    network = create(f"{__name__}:make_linear", 5, in_channels=12, image_size=1)
    x = torch.randn(4, 12)
    assert torch.equal(network.features(x), x)
    with pytest.raises(ValueError, match=r"model: Linear that is a single linear layer: expected features \[2, 12\]"):
        create(f"{__name__}:make_linear", 5, in_channels=3, image_size=2)


def test_a_width_cannot_be_given_to_a_network_of_one_s_own():
    with pytest.raises(ValueError, match=r"feature_dim: cannot change .*; use feature_dim_linear"):
        create(f"{__name__}:make_own", 5, in_channels=3, image_size=2, feature_dim=3)
    assert create(f"{__name__}:make_own", 5, image_size=2, feature_dim_linear=3).num_features == 3
