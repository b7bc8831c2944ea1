"""The fused kernels are used only where they agree with torch's own."""

import pytest
import torch

from ncollapse.models import create, norm
from ncollapse.train import verify
from ncollapse.train.verify import differentiate_features, find_fault


@pytest.fixture
def model():
    torch.manual_seed(0)
    return create("wide-resnet18-0.25", 10, image_size=8)


def test_the_plain_network_agrees_with_itself_and_stays_as_it_was(model):
    x = torch.randn(8, 3, 8, 8)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert find_fault(model, x, "fp32") is None
    features, gradients = differentiate_features(model, x, "fp32", fused=False)
    assert features.shape == (8, model.num_features)
    assert gradients.numel() == sum(p.numel() for p in model.trunk.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda h: h * 1.5, "their features differ by 0.5"),
        (lambda h: h.detach() + h.sum() * 0, "their gradients differ by 1"),
        (lambda h: h * float("nan"), "their features differ by nan"),
        (lambda h: h.view(-1, 7), "RuntimeError"),
    ],
)
def test_wrong_kernels_are_found(model, monkeypatch, harm, said):
    plain = type(model).features

    def features(self, x):
        h = plain(self, x)
        return harm(h) if norm._is_fusing() else h

    monkeypatch.setattr(type(model), "features", features)
    assert said in find_fault(model, torch.randn(8, 3, 8, 8), "fp32")


def test_a_fault_switches_the_kernels_off(model, monkeypatch, caplog):
    class OnGPU:
        is_cuda, device = True, torch.device("cuda")

        def __getitem__(self, _):
            return self

    monkeypatch.setattr(norm, "HAS_TRITON", True)
    monkeypatch.setattr(verify, "find_fault", lambda *_: "no such instruction")
    verify.verify_kernels("resnet18", model, OnGPU(), "bf16")
    assert not norm.HAS_TRITON
    assert "'resnet18': the fused kernels are not used on this GPU, torch's own are: no such instruction" in caplog.text
