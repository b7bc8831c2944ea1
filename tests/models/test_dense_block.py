"""The shared map of a dense block against its layers one after another, and pooling before the transition's squeeze."""

import contextlib
import copy
import sys

import pytest
import torch
from torch.nn import functional as F

import reference.dense_ops as dense_definitions
import reference.norm_ops as definitions
from ncollapse.models import dense_block, norm_ops
from ncollapse.models import norm as norms
from ncollapse.models.dense_block import run_block, share_pass
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


def make_block(channels, growth, layers):
    torch.manual_seed(0)
    block = DenseBlock(*[DenseLayer(channels + i * growth, growth) for i in range(layers)])
    with torch.no_grad():
        for name, p in block.named_parameters():
            if "norm" in name:
                p.add_(0.3 * torch.randn_like(p))
        block[-1].norm1.weight[:3] = 0.0
        block[-1].norm1.eps = 0.1
    return block.to(DEVICE, DTYPE).to(memory_format=torch.channels_last).train()


@pytest.mark.parametrize(
    ("images", "channels", "growth", "layers", "group"),
    [(4, 32, 16, 3, 1), (4, 32, 16, 3, 2), (4, 24, 8, 1, 2), (4, 64, 32, 2, 2), (1, 20, 12, 5, 4), (1, 20, 12, 7, 8)],
)
def test_a_shared_map_is_the_same(kernels, monkeypatch, images, channels, growth, layers, group):
    monkeypatch.setattr(dense_block, "GROUP", group)
    monkeypatch.setattr(dense_block, "FORWARD_GROUP", group)
    if not EXACT:  # small tiles, so that each kernel has several programs
        for name, value in (("VALUES", 256), ("TRACKED", 16), ("ADD_PROGRAMS", 6)):
            monkeypatch.setattr("ncollapse.models.fused_dense." + name, value)
        monkeypatch.setattr("ncollapse.models.fused_norm.APPLY_TILE", (32, 16))
    block = make_block(channels, growth, layers)
    twin = copy.deepcopy(block)
    x = make_map(images, channels, 6, 4)
    shared = collect(block, lambda x: run_block(list(block), x), x)
    plain = collect(twin, torch.nn.Sequential(*twin), x)
    compare(shared, plain)


@pytest.mark.parametrize("group", [1, 2, 4, 8])
@pytest.mark.parametrize("layers", [1, 2, 6, 11, 24])
def test_each_layer_meets_each_channel_once(group, layers):
    channels, growth = 5, 3
    met = {}
    for i in range(layers):
        number, low, high = share_pass(i, group, channels, growth)
        assert number <= group
        for k in range(i, min(i + number, layers)):
            for channel in range(low, high):
                assert (k, channel) not in met
                met[k, channel] = i
    assert set(met) == {(k, channel) for k in range(layers) for channel in range(channels + growth * k)}
    for channel in range(channels + growth * layers):  # the backward pass begins with the last layer's gradient
        passes = sorted({i for (k, met_channel), i in met.items() if met_channel == channel}, reverse=True)
        fresh = [i + share_pass(i, group, channels, growth)[0] >= layers for i in passes]
        assert fresh == [True] + [False] * (len(passes) - 1) if passes else channel >= channels + growth * (layers - 1)


def test_the_given_gradient_stays_as_it_was(kernels):
    block = make_block(16, 8, 3)
    x = make_map(2, 16, 4, 4).requires_grad_()
    y = run_block(list(block), x)
    given = make_map(*y.shape, seed=1)
    before = given.clone()
    once = torch.autograd.grad(y, [x, *block.parameters()], given, retain_graph=True)
    assert torch.equal(given, before)
    again = torch.autograd.grad(y, [x, *block.parameters()], given)
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


@pytest.mark.skipif(EXACT, reason="needs a GPU or Triton's interpreter")
def test_statistics_far_from_zero(kernels):
    from ncollapse.models.fused_dense import append_channels

    new = 1e-2 * make_map(8, 20, 6, 7) + 30.0
    wide, stats = torch.zeros(8, 50, 6, 7, device=DEVICE), torch.zeros(2, 50, device=DEVICE)
    wide = wide.contiguous(memory_format=torch.channels_last)
    append_channels(new, wide, stats, 16)
    variance, mean = torch.var_mean(new.double(), (0, 2, 3), correction=0)
    torch.testing.assert_close(stats[:, 16:36].double(), torch.stack([mean, variance]), rtol=1e-4, atol=0)
    assert torch.equal(wide[:, 16:36], new)
    assert not wide[:, :16].any()
    assert not wide[:, 36:].any()
    assert not stats[:, :16].any()
    assert not stats[:, 36:].any()


@pytest.mark.skipif(EXACT, reason="needs a GPU or Triton's interpreter")
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_layers_are_added_as_defined(kernels, monkeypatch, count, dtype):
    """In several blocks of rows, for channels that are not whole tiles, in two parts, after another layer's."""
    from ncollapse.models import fused_dense

    monkeypatch.setattr(fused_dense, "ADD_PROGRAMS", 6)
    monkeypatch.setattr(fused_dense, "NARROW", 4)  # 3 blocks in the first part, 5 in the second one
    wide, given = make_map(3, 100, 7, 13).to(dtype), make_map(3, 100, 7, 13, seed=1).to(dtype)
    stats = torch.stack([wide.float().mean((0, 2, 3)), wide.float().var((0, 2, 3), correction=0)])
    layers = []
    for i in range(count + 1):
        weight, bias = make_map(2, 72 + 8 * i, 1, 1, seed=2 + i)[..., 0, 0].float()
        weight[5] = 0.0
        layers.append((make_map(3, len(weight), 7, 13, seed=9 + i).to(dtype), weight, bias, 1e-3 * (i + 1)))

    def differentiate(module, to):
        """The gradient of channels 0 to 69, and all sums."""
        x, known, source = to(wide), to(stats), to(given)
        total, coefficients = torch.full_like(x, torch.nan), torch.full_like(known, torch.nan)
        parts = [
            module.LayerGradient(to(dy), to(weight), to(bias), eps, to(torch.zeros(2, len(weight), device=DEVICE)))
            for dy, weight, bias, eps in layers
        ]
        for low, high in ((0, 40), (40, 70)):
            module.add_gradients(parts[-1:], x, known, source, total, coefficients, low, high)
            module.add_gradients(parts[:-1], x, known, total, total, coefficients, low, high)
        assert total[:, 70:].isnan().all()
        copied = [module.copy_gradient(total, x, known, coefficients, *ends) for ends in ((0, 33), (33, 70))]
        assert all(part.is_contiguous(memory_format=torch.channels_last) for part in copied)
        return [torch.cat(copied, 1), *(part.sums[:, :70] for part in parts)]

    found = differentiate(fused_dense, lambda tensor: tensor)
    wanted = differentiate(dense_definitions, lambda tensor: tensor.double())
    bounds = [1e-5 if dtype == torch.float32 else 1.2e-2, *[1e-5] * len(layers)]  # sums are float32 in any case
    for a, b, bound in zip(found, wanted, bounds, strict=True):
        assert torch.linalg.vector_norm(a.double() - b) <= bound * torch.linalg.vector_norm(b)


def test_kernels_are_given_channels_last(kernels, monkeypatch):
    """Whatever layout the convolution's own kernels leave a gradient in: the fused ones read it as rows of channels."""
    differentiate, layouts = dense_block.differentiate_convolution, []

    def in_another_layout(*arguments):
        dx, d_kernel = differentiate(*arguments)
        return dx.contiguous(), d_kernel

    def note(kernel):
        def noted(given, *rest):
            dy = given[0].dy if isinstance(given, list) else given
            layouts.append(dy.is_contiguous(memory_format=torch.channels_last))
            return kernel(given, *rest)

        return noted

    monkeypatch.setattr(dense_block, "differentiate_convolution", in_another_layout)
    if EXACT:
        for module, name in ((definitions, "differentiate_norm"), (dense_definitions, "add_gradients")):
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


def test_a_norm_of_the_wide_map_finds_its_statistics(kernels, monkeypatch):
    if not ON_GPU:
        monkeypatch.setattr(norms, "can_fuse", lambda norm, x, residual: True)
    taken, statistics = [], norm_ops.norm_statistics
    monkeypatch.setattr(norm_ops, "norm_statistics", lambda *given: taken.append(1) or statistics(*given))
    block, transition = make_block(24, 8, 3), Transition(48, 12).to(DEVICE, DTYPE).to(memory_format=torch.channels_last)
    both = torch.nn.ModuleList([block, transition])
    twin = copy.deepcopy(both)
    x = make_map(3, 24, 6, 4)
    with fusing():
        found = collect(both, lambda x: transition(run_block(list(block), x)), x)
    assert not taken
    with monkeypatch.context() as plain:
        plain.setattr(norms, "can_fuse", lambda norm, x, residual: False)
        compare(found, collect(twin, torch.nn.Sequential(*twin[0], twin[1]), x))
    with fusing(), torch.no_grad():
        y = run_block(list(block), x)
        transition(y)
        assert not taken
        transition(y.mul_(2.0))  # a map changed in place has other statistics
    assert taken


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
