"""The shared map of a dense block against its layers one after another, and pooling before the transition's squeeze."""

import contextlib
import copy
import sys

import pytest
import torch
from torch.nn import functional as F

import reference.dense_ops as dense_definitions
import reference.norm_ops as definitions
from ncollapse.models import dense_block
from ncollapse.models import norm as norms
from ncollapse.models.dense_block import run_block
from ncollapse.models.densenet import DenseBlock, DenseLayer, Transition
from ncollapse.models.norm import fusing

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
EXACT = not ON_GPU and not definitions.INTERPRETED
DTYPE = torch.float64 if EXACT else torch.float32
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")


@pytest.fixture
def kernels(monkeypatch):
    """The kernels on a GPU or in Triton's interpreter, else their definitions."""
    if EXACT:
        monkeypatch.setitem(sys.modules, "ncollapse.models.fused_norm", definitions)
        monkeypatch.setitem(sys.modules, "ncollapse.models.fused_dense", dense_definitions)
    if not ON_GPU:
        definitions.register()
        monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def make_map(*shape, seed=0):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (2 * x + 1).to(DEVICE, DTYPE).contiguous(memory_format=torch.channels_last)


def collect(module, work, x, seed=1):
    """Output, gradients and buffers of one training step."""
    leaf = x.clone().requires_grad_()
    y = work(leaf)
    y.backward(make_map(*y.shape, seed=seed))
    return [y.detach(), leaf.grad, *(p.grad for p in module.parameters()), *module.buffers()]


def compare(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape
        difference = torch.linalg.vector_norm((a - b).double())
        assert difference <= (1e-6 if EXACT else 2e-4) * torch.linalg.vector_norm(b.double()) + 1e-6


@pytest.mark.parametrize(("channels", "growth", "layers"), [(32, 16, 3), (24, 8, 1), (64, 32, 2)])
def test_a_shared_map_is_the_same(kernels, channels, growth, layers):
    torch.manual_seed(0)
    block = DenseBlock(*[DenseLayer(channels + i * growth, growth) for i in range(layers)])
    with torch.no_grad():
        for name, p in block.named_parameters():
            if "norm" in name:
                p.add_(0.3 * torch.randn_like(p))
    block = block.to(DEVICE, DTYPE).to(memory_format=torch.channels_last).train()
    twin = copy.deepcopy(block)
    x = make_map(4, channels, 6, 4)
    shared = collect(block, lambda x: run_block(list(block), x), x)
    plain = collect(twin, torch.nn.Sequential(*twin), x)
    compare(shared, plain)


def test_kernels_are_given_channels_last(kernels, monkeypatch):
    """Whatever layout the convolution's own kernels leave a gradient in: the fused ones read it as rows of channels."""
    differentiate, layouts = dense_block.differentiate_convolution, []

    def in_another_layout(*arguments):
        dx, d_kernel = differentiate(*arguments)
        return dx.contiguous(), d_kernel

    def note(kernel):
        def noted(dy, *rest):
            layouts.append(dy.is_contiguous(memory_format=torch.channels_last))
            return kernel(dy, *rest)

        return noted

    monkeypatch.setattr(dense_block, "differentiate_convolution", in_another_layout)
    if EXACT:
        for module, name in ((definitions, "differentiate_norm"), (dense_definitions, "differentiate_channels")):
            monkeypatch.setattr(module, name, note(getattr(module, name)))
    block = DenseBlock(DenseLayer(16, 8), DenseLayer(24, 8)).to(DEVICE, DTYPE).to(memory_format=torch.channels_last)
    twin = copy.deepcopy(block)
    x = make_map(4, 16, 6, 4)
    compare(collect(block, lambda x: run_block(list(block), x), x), collect(twin, torch.nn.Sequential(*twin), x))
    assert all(layouts)
    assert bool(layouts) == EXACT  # on a GPU wrong gradients would show


def test_a_watched_block_runs_layer_by_layer(kernels, monkeypatch):
    monkeypatch.setattr("ncollapse.models.densenet.can_fuse", lambda norm, x, residual: True)
    block = DenseBlock(DenseLayer(16, 8), DenseLayer(24, 8)).to(DEVICE, DTYPE)
    x = make_map(2, 16, 4, 4)
    assert block.shares(x)
    seen = []
    block[1].conv1.register_forward_hook(lambda *_: seen.append(1))
    assert not block.shares(x)
    block(x)
    assert seen == [1]


@pytest.mark.parametrize("training", [True, False])
def test_pooling_before_the_squeeze_is_the_same(kernels, monkeypatch, training):
    torch.manual_seed(0)
    transition = Transition(40, 12).to(DEVICE, DTYPE).to(memory_format=torch.channels_last).train(training)
    twin = copy.deepcopy(transition)
    x = make_map(3, 40, 6, 8)
    if not ON_GPU:
        monkeypatch.setattr(norms, "can_fuse", lambda norm, x, residual: True)
    with fusing(), torch.set_grad_enabled(training):
        found = collect(transition, transition, x) if training else [transition(x)]
    monkeypatch.setattr(norms, "can_fuse", lambda norm, x, residual: False)

    def squeeze_first(x):
        return F.avg_pool2d(twin.conv(F.relu(twin.norm(x))), 2)

    with torch.set_grad_enabled(training):
        wanted = collect(twin, squeeze_first, x) if training else [squeeze_first(x)]
    compare(found, wanted)
