"""relu(norm(x) + residual) against its definition in float64; the fused kernels on a GPU or in Triton's interpreter.

TRITON_INTERPRET=1 pytest tests/models/test_norm.py      where Triton is installed; no GPU is needed

Elsewhere the operators run by their definitions (`reference.norm_ops`), which tests their derivative and their use.
"""

import threading

import numpy as np
import pytest
import torch
from torch import nn

from ncollapse.models import create, norm_ops
from ncollapse.models import norm as norms
from ncollapse.models.norm import can_fuse, fork_norm_relu, fusing, norm_relu, split_fork
from reference.norm_ops import INTERPRETED, register

CASES = [(relu, residual) for relu in (True, False) for residual in (True, False)]
ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
# Triton's interpreter converts arrays of one element, which numpy warns of
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")
gpu = pytest.mark.skipif(not ON_GPU, reason="needs a GPU")


@pytest.fixture
def fused(monkeypatch):
    """norm_relu and its fork by the fused operators."""
    if not ON_GPU:
        register()
        monkeypatch.setattr(norms, "can_fuse", lambda norm, x, residual: True)
    with fusing():
        yield


def reference(x, weight, bias, residual, relu, eps):
    """The definition, in float64: normalise by the batch's own mean and variance, add, cut."""
    x = x.double()
    mean = x.mean((0, 2, 3), keepdim=True)
    variance = ((x - mean) ** 2).mean((0, 2, 3), keepdim=True)
    y = (x - mean) / (variance + eps).sqrt() * weight.double()[:, None, None] + bias.double()[:, None, None]
    if residual is not None:
        y = y + residual.double()
    return y.clamp(min=0) if relu else y


def make(shape, device="cpu", dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed)
    norm = nn.BatchNorm2d(shape[1])
    with torch.no_grad():
        norm.weight.copy_(torch.rand(shape[1], generator=g) + 0.5)
        norm.bias.copy_(torch.randn(shape[1], generator=g))
        norm.running_mean.copy_(torch.randn(shape[1], generator=g))
    tensors = [
        torch.randn(shape, generator=g) * 3 + 2,
        torch.randn(shape, generator=g),
        torch.randn(shape, generator=g),
    ]
    x, residual, dy = (t.to(device, dtype).contiguous(memory_format=torch.channels_last) for t in tensors)
    return norm.to(device), x, residual, dy


def check(work, norm, x, residual, dy, relu, tolerance):
    """Output, all gradients and the running statistics against float64 autograd over the definition."""
    before = norm.running_mean.double().clone(), norm.running_var.double().clone()
    leaves = [t.detach().requires_grad_() for t in (x, *([] if residual is None else [residual]))]
    y = work(norm, leaves[0], leaves[1] if residual is not None else None, relu)
    y.backward(dy)
    exact = [t.detach().double().requires_grad_() for t in (x, norm.weight, norm.bias)]
    rest = None if residual is None else residual.detach().double().requires_grad_()
    y_ref = reference(*exact, rest, relu, norm.eps)
    y_ref.backward(dy.double() if not relu else dy.double() * (y.detach() > 0))
    found = [y, leaves[0].grad, norm.weight.grad, norm.bias.grad]
    wanted = [y_ref, exact[0].grad, exact[1].grad, exact[2].grad]
    if rest is not None:
        found, wanted = [*found, leaves[1].grad], [*wanted, rest.grad]
    count = x.numel() // x.shape[1]
    found += [norm.running_mean, norm.running_var]
    mean, variance = x.double().mean((0, 2, 3)), x.double().var((0, 2, 3), unbiased=True)
    assert count > 1
    wanted += [0.9 * before[0] + 0.1 * mean, 0.9 * before[1] + 0.1 * variance]
    for a, b in zip(found, wanted):
        assert ((a.double() - b).norm() / b.norm()).item() < tolerance
    assert int(norm.num_batches_tracked) == 1


@pytest.mark.parametrize(("relu", "residual"), CASES)
def test_composition_matches_the_definition(relu, residual):
    norm, x, rest, dy = make((6, 5, 4, 3))
    assert not can_fuse(norm, x, rest)
    check(norm_relu, norm, x, rest if residual else None, dy, relu, 1e-5)


@pytest.mark.parametrize("shape", [(128, 64, 32, 32), (96, 512, 4, 4), (5, 48, 7, 3), (6, 12, 5, 3), (16, 200, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("relu", "residual"), CASES)
def test_fused_kernels_match_the_definition(fused, shape, dtype, relu, residual, monkeypatch):
    if not ON_GPU:  # a smaller map
        shape = (*shape[:2], min(shape[2], 8), min(shape[3], 8))
    if INTERPRETED:  # few images, and fewer programs, so that each still has several tiles
        shape = (shape[0] // 16 or 2, *shape[1:]) if shape[2] > 1 else shape
        monkeypatch.setattr("ncollapse.models.fused_norm.PROGRAMS", 16)
    norm, x, rest, dy = make(shape, DEVICE, dtype)
    assert can_fuse(norm, x, rest) or not ON_GPU
    check(norm_relu, norm, x, rest if residual else None, dy, relu, 1e-5 if dtype == torch.float32 else 6e-3)


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_two_uses_are_added(fused, residual, dtype):
    norm, x, rest, dy = make((12, 72, 5, 4), DEVICE, dtype)
    second = torch.randn_like(dy)

    def use_twice(norm, x, residual, relu):
        found = fork_norm_relu(norm, x, residual)
        assert isinstance(found, tuple)
        one, other = split_fork(found)
        assert torch.equal(one, other)
        total = (one.float() * dy.float()).sum() + (other.float() * second.float()).sum()
        return Summed.apply(one, total)

    class Summed(torch.autograd.Function):
        """The map in the forward pass, the derivative of the total in the backward pass."""

        @staticmethod
        def forward(ctx, y, total):
            return y.clone()

        @staticmethod
        def backward(ctx, grad):
            return torch.zeros_like(grad), torch.ones((), device=grad.device)

    tolerance = 1e-5 if dtype == torch.float32 else 6e-3
    check(use_twice, norm, x, rest if residual else None, dy + second, True, tolerance)


def as_rows(map_):
    """The map's pixels [B H W, C]."""
    return map_.permute(0, 2, 3, 1).reshape(-1, map_.shape[1])


RAGGED = [(3, 8, 5, 3), (2, 24, 3, 7), (5, 136, 3, 3), (1, 200, 1, 9)]
"""Shapes whose last tile of rows and last tile of channels are not full."""


@pytest.mark.parametrize("shape", RAGGED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_say_where_the_output_is_positive(fused, shape, dtype):
    norm, x, residual, _ = make(shape, DEVICE, dtype)
    x[0, :, 0, 0], residual[0, :, 0, 0] = 0.0, 0.0
    residual[0, 1], residual[0, 2] = torch.nan, -torch.inf
    with torch.no_grad():
        norm.bias[3:6] = torch.tensor([0.0, -0.0, 1e-40])
    statistics = torch.zeros_like(norm.bias), torch.ones_like(norm.bias)
    given = x, norm.weight.detach(), norm.bias.detach(), *statistics, residual, norm.eps
    y, bits = norm_ops.norm_apply_bits(*given)
    assert torch.equal(y.nan_to_num(), norm_ops.norm_apply(*given, True).nan_to_num())
    wanted = np.packbits((as_rows(y) > 0).cpu().numpy(), axis=1, bitorder="little")
    assert y[0, 1].isnan().all()
    assert not y[0, 2].any()
    assert not y[0, 3, 0, 0]
    np.testing.assert_array_equal(bits.cpu().numpy(), wanted)


@pytest.mark.parametrize("shape", RAGGED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("two_uses", [True, False])
def test_every_bit_decides_over_its_own_gradient(fused, shape, dtype, two_uses):
    norm, x, second, dy = make(shape, DEVICE, dtype)
    given = np.random.default_rng(0).integers(0, 256, (x.numel() // shape[1], shape[1] // 8), dtype=np.uint8)
    stats = torch.stack([x.float().mean((0, 2, 3)), x.float().var((0, 2, 3), correction=0)])
    bits = torch.from_numpy(given).to(DEVICE)
    rest = x, bits, norm.weight, norm.bias, stats, norm.eps, True
    dx, g, sums = norm_ops.norm_backward(dy, second if two_uses else None, *rest)
    chosen = torch.from_numpy(np.unpackbits(given, axis=1, bitorder="little")).bool().to(DEVICE)
    wanted = torch.where(chosen, as_rows(dy.float() + second.float() if two_uses else dy.float()), 0.0)
    assert torch.equal(as_rows(g) != 0, wanted != 0)
    torch.testing.assert_close(as_rows(g).float(), wanted, rtol=2**-7, atol=0)
    images, channels, height, width = shape
    ones = chosen.to(dtype).reshape(images, height, width, channels).permute(0, 3, 1, 2)
    rest = x, ones, norm.weight, norm.bias, stats, norm.eps, True
    for a, b in zip((dx, g, sums), norm_ops.norm_backward(dy, second if two_uses else None, *rest)):
        assert torch.equal(a, b)


@pytest.mark.parametrize("channels", [12, 16])
def test_what_is_kept_of_the_output_is_its_bits(fused, channels):
    norm, x, residual, _ = make((4, channels, 3, 5), DEVICE)
    y = norm_relu(norm, x.requires_grad_(), residual)
    *_, kept = y.grad_fn.saved_tensors
    assert kept.dtype == (torch.uint8 if channels % 8 == 0 else torch.float32)
    assert kept.numel() == (y.numel() // 8 if channels % 8 == 0 else y.numel())


def test_operators_have_the_shapes_that_the_compiler_expects(fused):
    norm, x, residual, dy = make((4, 16, 3, 5), DEVICE)
    mean, variance = norm.running_mean.clone(), norm.running_var.clone()
    inputs = x, norm.weight.detach(), norm.bias.detach(), mean, variance, residual
    stats = torch.stack([mean, variance])
    _, bits = norm_ops.norm_apply_bits(*inputs, norm.eps)
    rest = bits, *inputs[1:3], stats, norm.eps, True
    running = norm.running_mean, norm.running_var, norm.num_batches_tracked
    for operator, given in (
        (norm_ops.norm_statistics, (x, *running, 0.1)),
        (norm_ops.norm_apply, (*inputs, norm.eps, True)),
        (norm_ops.norm_apply_bits, (*inputs, norm.eps)),
        (norm_ops.norm_backward, (dy, residual, x, *rest)),
    ):
        torch.library.opcheck(operator, given, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("training", [True, False])
def test_fused_kernels_pass_nan_on(fused, training):
    norm, x, rest, _ = make((4, 16, 4, 4), DEVICE)
    norm.train(training)
    x[1, 3, 2, 0] = torch.nan
    with torch.no_grad():
        assert can_fuse(norm, x, rest) or not ON_GPU
        found = norm_relu(norm, x, rest)
    assert found[1, 3, 2, 0].isnan()
    assert found[:, 3].isnan().all() == training


@gpu
def test_a_norm_that_is_watched_is_called():
    norm, x, rest, _ = make((4, 16, 4, 4), "cuda")
    norm.eval()
    norm.register_forward_hook(lambda *_: None)
    assert not can_fuse(norm, x, rest)


@gpu
def test_training_fuses_on_request_alone_and_in_this_thread():
    norm, x, rest, _ = make((8, 16, 4, 4), "cuda")
    seen = []
    with fusing():
        with fusing():
            pass
        assert can_fuse(norm, x, rest)
        other = threading.Thread(target=lambda: seen.append(can_fuse(norm, x, rest)))
        other.start()
        other.join()
    assert seen == [False]
    assert not can_fuse(norm, x, rest)
    assert not can_fuse(norm.eval(), x, rest)
    with torch.no_grad():
        assert can_fuse(norm, x, rest)


@pytest.mark.parametrize("name", ["resnet32", "wide-resnet50-0.25", "densenet121-small"])
@pytest.mark.parametrize("training", [True, False])
def test_networks_are_the_same_with_the_fused_kernels(fused, monkeypatch, name, training):
    torch.manual_seed(0)
    dtype = torch.float32 if ON_GPU or INTERPRETED else torch.float64
    network = create(name, 4, image_size=16).to(DEVICE, dtype, memory_format=torch.channels_last).train(training)
    x = torch.randn(24 if ON_GPU else 6, 3, 16, 16, device=DEVICE, dtype=dtype)
    x = x.contiguous(memory_format=torch.channels_last)
    found = []
    for fuses in (True, False):
        with monkeypatch.context() as patch:
            if not fuses:
                patch.setattr(norms, "can_fuse", lambda norm, x, residual: False)
            network.zero_grad()
            with torch.set_grad_enabled(training), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
                features = network.features(x)
            if training:
                features.square().sum().backward()
        found.append([features.detach(), *(p.grad for p in network.trunk.parameters() if training)])
    tolerance = 1e-9 if dtype == torch.float64 else 5e-2  # deep networks on few images magnify what float32 rounds
    for a, b in zip(*found):
        assert torch.linalg.vector_norm(a - b) <= tolerance * (torch.linalg.vector_norm(b) + 1e-3)


@pytest.mark.parametrize(("relu", "residual"), CASES)
def test_fused_kernels_match_in_eval_mode(fused, relu, residual):
    norm, x, rest, _ = make((64, 80, 9, 5), DEVICE)
    norm.eval()
    with torch.no_grad():
        found = norm_relu(norm, x, rest if residual else None, relu)
        wanted = norm(x) + rest if residual else norm(x)
    torch.testing.assert_close(found, wanted.relu() if relu else wanted, rtol=1e-5, atol=1e-5)


@gpu
def test_fused_sums_are_deterministic():
    results = []
    for _ in range(3):
        norm, x, rest, dy = make((128, 64, 32, 32), "cuda", torch.bfloat16)
        x.requires_grad_()
        with fusing():
            y = norm_relu(norm, x, rest)
        y.backward(dy)
        results.append((y.detach().clone(), x.grad.clone(), norm.weight.grad.clone(), norm.running_var.clone()))
    for later in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], later))
