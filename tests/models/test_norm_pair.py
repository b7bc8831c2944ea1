"""relu(norm(x) + norm'(x')) against its definition in float64; the kernels on a GPU or in Triton's interpreter.

TRITON_INTERPRET=1 pytest tests/models/test_norm_pair.py      where Triton is installed; no GPU is needed
"""

import pytest
import torch
from torch import nn

from ncollapse.models import norm as norms
from ncollapse.models import norm_pair, resnet
from ncollapse.models.norm import Deferred, defer_norm, fork_norm_relu, fusing, norm_relu
from reference.norm_ops import INTERPRETED, register

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
# Triton's interpreter converts arrays of one element, which numpy warns of
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")
EPS = 1e-5, 3e-2
"""Of the two norms: different, so that neither can stand for the other."""


@pytest.fixture
def fused(monkeypatch):
    """The fused operators, on a GPU or by what stands for them."""
    if not ON_GPU:
        register()
        monkeypatch.setattr(norms, "can_fuse", lambda norm, x, residual: True)
    if INTERPRETED:  # few programs, so that each has several tiles
        monkeypatch.setattr("ncollapse.models.fused_norm.PROGRAMS", 16)
    with fusing():
        yield


def make(shape, dtype=torch.float32, maps=4, seed=0):
    """Two norms with different parameters, and random maps."""
    g = torch.Generator().manual_seed(seed)
    pair = [nn.BatchNorm2d(shape[1], eps=eps) for eps in EPS]
    with torch.no_grad():
        for norm in pair:
            norm.weight.copy_(torch.rand(shape[1], generator=g) + 0.5)
            norm.bias.copy_(torch.randn(shape[1], generator=g))
            norm.running_mean.copy_(torch.randn(shape[1], generator=g))
    found = [torch.randn(shape, generator=g) * (i + 1) + i for i in range(maps)]
    return [norm.to(DEVICE) for norm in pair], [
        one.to(DEVICE, dtype).contiguous(memory_format=torch.channels_last) for one in found
    ]


def define(x, weight, bias, eps):
    """A norm in float64."""
    mean = x.mean((0, 2, 3), keepdim=True)
    variance = ((x - mean) ** 2).mean((0, 2, 3), keepdim=True)
    return (x - mean) / (variance + eps).sqrt() * weight[:, None, None] + bias[:, None, None]


@pytest.mark.parametrize("shape", [(4, 64, 8, 8), (9, 256, 2, 2), (5, 48, 7, 3), (3, 136, 3, 3), (16, 200, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fork", [True, False])
def test_both_norms_match_their_definition(fused, shape, dtype, fork):
    (norm, other), (x, x_other, dy, second) = make(shape, dtype)
    leaves = [x.requires_grad_(), norm.weight, norm.bias, x_other.requires_grad_(), other.weight, other.bias]
    deferred = defer_norm(other, x_other)
    assert isinstance(deferred, Deferred)
    if fork:
        y, again = fork_norm_relu(norm, x, deferred)
        assert torch.equal(y, again)
        torch.autograd.backward((y, again), (dy, second))
    else:
        y = norm_relu(norm, x, deferred)
        y.backward(dy)
    assert type(y.grad_fn).__name__.startswith("NormPairReLU")
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    before_relu = define(*exact[:3], EPS[0]) + define(*exact[3:], EPS[1])
    total = dy.double() + second.double() if fork else dy.double()
    before_relu.backward(total * (y.detach() > 0))
    tolerance = 1e-5 if dtype == torch.float32 else 8e-3
    pairs = [(y, before_relu.clamp(min=0)), *((a.grad, b.grad) for a, b in zip(leaves, exact))]
    for map_, one in ((x, norm), (x_other, other)):
        mean, variance = map_.double().mean((0, 2, 3)), map_.double().var((0, 2, 3), unbiased=True)
        start = make(shape)[0][0 if one is norm else 1]
        pairs.append((one.running_mean, 0.9 * start.running_mean.double() + 0.1 * mean))
        pairs.append((one.running_var, 0.9 + 0.1 * variance))
        assert int(one.num_batches_tracked) == 1
    for found, wanted in pairs:
        assert ((found.double() - wanted).norm() / wanted.norm()).item() < tolerance


def test_the_gradients_of_both_biases_share_no_memory(fused):
    (norm, other), (x, x_other, dy, _) = make((4, 16, 3, 5))
    norm_relu(norm, x, defer_norm(other, x_other)).backward(dy)
    assert torch.equal(norm.bias.grad, other.bias.grad)
    norm.bias.grad.zero_()
    assert other.bias.grad.any()


def test_nan_is_passed_on_and_has_no_gradient(fused):
    (norm, other), (x, x_other, dy, _) = make((4, 16, 3, 5))
    stats = torch.stack([torch.zeros_like(norm.bias), torch.ones_like(norm.bias)])
    x_other[1, 3, 2, 0] = torch.nan
    parameters = norm.weight.detach(), norm.bias.detach(), stats, other.weight.detach(), other.bias.detach(), stats
    y, bits = norm_pair.norm_pair_apply(x, x_other, *parameters, *EPS)
    assert y.isnan().nonzero().tolist() == [[1, 3, 2, 0]]
    row = (1 * 3 + 2) * 5  # of that pixel
    assert not bits[row, 0] & (1 << 3)
    kept = x, x_other.nan_to_num(), bits, parameters[0], stats, parameters[3], stats
    dy[1, 3, 2, 0] = 1e6
    *_, sums = norm_pair.norm_pair_backward(dy, None, *kept, *EPS)
    assert sums.abs().max() < 1e4


def test_a_norm_without_a_partner_is_applied_by_itself(fused, monkeypatch):
    (norm, other), (x, x_other, *_) = make((4, 16, 3, 5))
    wanted = norm_relu(norm, x, defer_norm(other, x_other))
    deferred = defer_norm(other, x_other)
    monkeypatch.setattr(norms, "can_fuse", lambda norm, x, residual: False)
    for work in (norm_relu, fork_norm_relu):
        torch.testing.assert_close(work(norm, x, deferred), wanted, rtol=1e-5, atol=1e-5)
    assert int(other.num_batches_tracked) == 2  # once for each time that it was deferred
    monkeypatch.setattr(norms, "can_fuse", lambda norm, x, residual: True)
    without = norm_relu(norm, x, deferred, relu=False)
    torch.testing.assert_close(without.relu(), wanted, rtol=1e-5, atol=1e-5)
    assert without.min() < 0


def test_odd_channels_and_evaluation_defer_nothing(fused):
    (norm, _), (x, *_) = make((4, 12, 3, 5))
    assert isinstance(defer_norm(norm, x), torch.Tensor)
    (norm, _), (x, *_) = make((4, 16, 3, 5))
    with torch.no_grad():
        assert isinstance(defer_norm(norm.eval(), x), torch.Tensor)


@pytest.mark.parametrize("kind", ["register_forward_hook", "register_full_backward_hook"])
def test_a_shortcut_that_is_watched_is_called(fused, kind):
    block = resnet.BasicBlock(8, 16, 16, 2, resnet.Projection(8, 16, 2)).to(DEVICE, memory_format=torch.channels_last)
    x = torch.randn(4, 8, 6, 6, device=DEVICE).contiguous(memory_format=torch.channels_last).requires_grad_()
    y, _ = block(x)
    assert type(y.grad_fn).__name__.startswith("NormPairReLU")
    seen = []
    getattr(block.downsample, kind)(lambda *given: seen.append(given[0]))
    y, _ = block(x)
    y.sum().backward()
    assert seen == [block.downsample]


def test_operators_have_the_shapes_that_the_compiler_expects(fused):
    (norm, other), (x, x_other, dy, second) = make((4, 16, 3, 5))
    stats = torch.stack([norm.running_mean, norm.running_var])
    given = (
        x,
        x_other,
        norm.weight.detach(),
        norm.bias.detach(),
        stats,
        other.weight.detach(),
        other.bias.detach(),
        stats,
    )
    utilities = ("test_schema", "test_faketensor")
    torch.library.opcheck(norm_pair.norm_pair_apply, (*given, *EPS), test_utils=utilities)
    _, bits = norm_pair.norm_pair_apply(*given, *EPS)
    kept = x, x_other, bits, given[2], stats, given[5], stats
    torch.library.opcheck(norm_pair.norm_pair_backward, (dy, second, *kept, *EPS), test_utils=utilities)
