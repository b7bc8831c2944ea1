"""The fused patches, class token and positions of a vision transformer against torch's."""

import contextlib
import copy
import sys

import pytest
import torch
from torch import nn

import reference.transformer_ops as definitions
from ncollapse.models import create, embedding
from ncollapse.models.embedding import can_fuse_embedding, embed, knows_patches
from ncollapse.models.vit import VisionTransformer
from ncollapse.train.backend import switches
from reference.norm_ops import INTERPRETED

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
EXACT = not ON_GPU and not INTERPRETED
DTYPE = torch.float64 if EXACT else torch.float32
kernels = pytest.mark.skipif(EXACT, reason="the kernels need a GPU, or TRITON_INTERPRET=1")
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # Triton's interpreter


@pytest.fixture
def defined(monkeypatch):
    """The kernels on a GPU or in Triton's interpreter, else their definitions."""
    if EXACT:
        monkeypatch.setitem(sys.modules, "ncollapse.models.fused_transformer", definitions)
    if not ON_GPU:
        monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    with switches(DEVICE, "fp32", True):
        yield


class Start(nn.Module):
    """What a vision transformer does before its layers."""

    def __init__(self, channels, width, size, patch):
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width))

    def forward(self, x):
        y = self.patches(x).flatten(2).transpose(1, 2)
        return torch.cat([self.token.expand(len(y), -1, -1), y], 1) + self.position


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize(("channels", "width", "size", "patch", "images"), [(3, 48, 8, 4, 3), (1, 200, 6, 3, 35)])
def test_the_start_is_torchs(defined, channels, width, size, patch, images, last):
    torch.manual_seed(0)
    start = Start(channels, width, size, patch).to(DEVICE, DTYPE)
    x = torch.randn(images, channels, size, size, dtype=DTYPE).to(DEVICE)
    if last:
        start, x = start.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    twin, found = copy.deepcopy(start), []
    d_out = torch.randn(images, (size // patch) ** 2 + 1, width, dtype=DTYPE).to(DEVICE)
    for module, work in ((start, lambda x: embed(start.patches, start.token, start.position, x, DTYPE)), (twin, twin)):
        y = work(x)
        y.backward(d_out)
        found.append([y.detach(), *(p.grad for p in module.parameters())])
    for ours, theirs in zip(*found, strict=True):
        assert ours.shape == theirs.shape
        assert (ours - theirs).norm() <= (1e-12 if EXACT else 1e-5) * theirs.norm()
    if last:
        assert start.patches.weight.grad.stride() == start.patches.weight.stride()


@kernels
def test_gradients_in_bfloat16():
    from ncollapse.models import fused_transformer as source

    dx = torch.randn(70, 5, 48, device=DEVICE)
    dy, d_position = source.differentiate_positions(dx, torch.bfloat16)
    rounding = 2**-8 if ON_GPU else 2**-7  # the interpreter cuts off
    torch.testing.assert_close(dy.float(), dx[:, 1:].flatten(0, 1), rtol=rounding, atol=0.0)
    torch.testing.assert_close(d_position, dx.double().sum(0).float(), rtol=1e-5, atol=1e-5)


def test_where_it_is_used(monkeypatch):
    class OnGPU:
        shape, requires_grad = torch.Size([2, 3, 32, 32]), False

    trunk, x = create("vit-small", 4).trunk, OnGPU()
    assert not can_fuse_embedding(trunk.patches, trunk.position, torch.zeros(x.shape))
    monkeypatch.setattr(embedding, "fuses_products", lambda x: True)
    assert can_fuse_embedding(trunk.patches, trunk.position, x)
    x.requires_grad = True  # the kernels do not differentiate images
    assert not can_fuse_embedding(trunk.patches, trunk.position, x)
    shape = x.shape
    assert knows_patches(trunk.patches, trunk.position, shape)
    assert not knows_patches(trunk.patches, trunk.position[:, 1:], shape)
    assert not knows_patches(trunk.patches, trunk.position.bfloat16(), shape)
    assert not knows_patches(nn.Conv2d(3, 384, 4, stride=2), trunk.position, shape)
    assert not knows_patches(nn.Conv2d(3, 384, 4, stride=4, bias=False), trunk.position, shape)
    assert not knows_patches(nn.Conv2d(1, 384, 4, stride=4), trunk.position, shape)
    trunk.patches.register_forward_hook(lambda *_: None)
    assert not knows_patches(trunk.patches, trunk.position, shape)


def test_other_images_are_refused_as_before(monkeypatch):
    monkeypatch.setattr(embedding, "fuses_products", lambda x: True)
    with pytest.raises(RuntimeError, match="must match the size"):
        VisionTransformer(3, 16, 4)(torch.zeros(1, 3, 24, 24))
