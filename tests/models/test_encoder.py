"""The fused layers of a vision transformer: the kernels against float64, the layers against torch's."""

import contextlib
import copy
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import reference.transformer_ops as definitions
from ncollapse.models import create, encoder, overlap, vit
from ncollapse.models.encoder import can_fuse_encoder, differentiate_linear, knows_layers, run_encoder
from ncollapse.models.norm import fusing, is_fusing, without_kernels
from ncollapse.models.vit import EncoderLayer
from ncollapse.train import optimiser
from ncollapse.train.backend import switches
from ncollapse.train.casting import CastFeatures
from ncollapse.train.objective import autocast
from ncollapse.train.recipe import OptimSpec
from ncollapse.train.verify import find_fault
from reference.norm_ops import INTERPRETED
from reference.streams import pretend, run
from reference.updates import define_updates

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
EXACT = not ON_GPU and not INTERPRETED
DTYPE = torch.float64 if EXACT else torch.float32
on_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
kernels = pytest.mark.skipif(EXACT, reason="the kernels need a GPU, or TRITON_INTERPRET=1")
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # Triton's interpreter
BFLOAT16 = 4e-3 if ON_GPU else 8e-3  # the interpreter cuts off where a GPU rounds


@pytest.fixture
def defined(monkeypatch):
    """The kernels on a GPU or in Triton's interpreter, else their definitions."""
    if EXACT:
        for name in ("fused_transformer", "fused_attention"):
            monkeypatch.setitem(sys.modules, f"ncollapse.models.{name}", definitions)
    if not ON_GPU:
        monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    with switches(DEVICE, "fp32", True):
        yield


@pytest.fixture
def exact(defined, monkeypatch):
    """The same, with attention in float32: on a GPU its kernels have ten bits of precision, whatever they are given."""
    if ON_GPU:
        monkeypatch.setitem(sys.modules, "ncollapse.models.fused_attention", definitions)


def make(*shape, dtype=torch.float32, seed=0):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.to(DEVICE, dtype)


def assert_near(found, wanted, tolerance):
    assert found.shape == wanted.shape
    assert (found.double() - wanted.double()).norm() <= tolerance * wanted.double().norm()


@kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize(("rows", "width"), [(70, 384), (3, 192), (33, 48), (1, 768)])
def test_the_norm_of_a_sum(rows, width, added, dtype):
    from ncollapse.models import fused_transformer as source

    x, y = 2 * make(rows, width) + 1, make(rows, width, dtype=dtype, seed=1) if added else None
    weight, bias = make(width, seed=2), make(width, seed=3)
    total, h = source.add_norm(x, y if y is None else y.clone(), weight, bias, 1e-6, dtype)
    exact = x.double() if y is None else x.double() + y.double()
    assert_near(total, exact, 1e-6)
    assert h.dtype == dtype
    wanted = F.layer_norm(exact, (width,), weight.double(), bias.double(), 1e-6)
    assert_near(h, wanted, 1e-6 if dtype == torch.float32 else BFLOAT16)


@kernels
def test_the_norm_of_some_rows():
    from ncollapse.models import fused_transformer as source

    x, y, one = make(12, 48), make(4, 48, seed=1), torch.ones(48, device=DEVICE)
    total, h = source.add_norm(x[::3], y.clone(), one, 0 * one, 1e-6, torch.float32)
    assert_near(total, x[::3] + y, 1e-6)
    assert_near(h, F.layer_norm((x[::3] + y).double(), (48,), eps=1e-6), 1e-6)


@kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("used", "every", "added"), [(True, 1, True), (False, 1, True), (True, 5, True), (True, 1, False)]
)
@pytest.mark.parametrize(("rows", "width", "blocks"), [(70, 384, 2), (5, 48, 3), (35, 192, 1)])
def test_the_derivative_of_the_norm_of_a_sum(rows, width, blocks, used, every, added, dtype):
    from ncollapse.models import fused_transformer as source

    x, dh = 2 * make(rows, width) + 1, make(rows, width, dtype=dtype, seed=1)
    weight, d_total = make(width, seed=2), make(rows // every, width, seed=3) if used else None
    partial = torch.full((blocks, 3 * width + 16), float("nan"), device=DEVICE)[:, : (3 if added else 2) * width]
    given = dh.clone(), None if d_total is None else d_total.clone()
    dx, dy = source.differentiate_add_norm(*given, x, weight, 1e-6, partial, dtype if added else None, every)
    assert used or torch.equal(given[0], dh)  # the gradient of the last norm's result belongs to others
    exact = [t.double().requires_grad_() for t in (x, weight, torch.zeros_like(weight))]
    value = (F.layer_norm(exact[0], (width,), *exact[1:], 1e-6) * dh.double()).sum()
    if used:
        value = value + (exact[0][::every] * d_total.double()).sum()
    d_exact, d_weight, d_bias = torch.autograd.grad(value, exact)
    assert_near(dx, d_exact, 2e-6)
    assert dy.dtype == (dtype if added else torch.float32)
    assert_near(dy, d_exact, BFLOAT16 if dtype == torch.bfloat16 else 2e-6)
    wanted = torch.cat([d_weight, d_bias, *([d_exact.sum(0)] if added else [])])
    assert_near(source.add_blocks(partial.contiguous()), wanted, 1e-5)


@kernels
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # of the largest values, in the interpreter
def test_gelu():
    from ncollapse.models import fused_transformer as source

    large = torch.tensor([0.0, -0.0, 1e-30, 1e30, -1e30, 3e38, -3e38], device=DEVICE)
    torch.testing.assert_close(source.compute_gelu(large), F.gelu(large.double()).float(), rtol=1e-6, atol=0.0)
    u = torch.linspace(-12, 12, 5000, device=DEVICE)
    error = (source.compute_gelu(u).double() - F.gelu(u.double())).abs()
    assert (error <= 3e-7 + 1e-7 * u.abs()).all()
    assert source.compute_gelu(torch.full((3,), float("nan"), device=DEVICE)).isnan().all()
    assert_near(source.compute_gelu(u.bfloat16()), F.gelu(u.bfloat16().double()), BFLOAT16)


@kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "width", "blocks"), [(70, 256, 2), (5, 40, 3), (33, 200, 1)])
def test_the_derivative_of_gelu(rows, width, blocks, dtype):
    from ncollapse.models import fused_transformer as source

    u, dg = 3 * make(rows, width, dtype=dtype), make(rows, width, dtype=dtype, seed=1)
    partial = torch.full((blocks, width + 8), float("nan"), device=DEVICE)[:, :width]
    du = source.differentiate_gelu(dg.clone(), u, partial)
    exact = u.double().requires_grad_()
    F.gelu(exact).backward(dg.double())
    assert_near(du, exact.grad, BFLOAT16 if dtype == torch.bfloat16 else 1e-6)
    assert_near(source.add_blocks(partial.contiguous()), exact.grad.sum(0), 1e-6)


@kernels
@pytest.mark.parametrize(("blocks", "width"), [(1, 5), (70, 300), (264, 128)])
def test_blocks_are_added(blocks, width):
    from ncollapse.models import fused_transformer as source

    partial = make(blocks, width)
    assert_near(source.add_blocks(partial), partial.double().sum(0), 1e-6)


@kernels
@pytest.mark.parametrize(("tokens", "heads", "dim"), [(65, 2, 64), (5, 2, 16), (100, 1, 32)])
def test_the_sums_of_the_attention_gradient(tokens, heads, dim):
    from ncollapse.models import fused_attention as source

    dtype, width = torch.bfloat16 if ON_GPU else torch.float32, heads * dim  # the interpreter has no bfloat16 products
    qkv, d_out = make(3, tokens, 3 * width, dtype=dtype), make(3, tokens, width, dtype=dtype, seed=1)
    sums = torch.full((3, 3 * width + 16), float("nan"), device=DEVICE)[:, : 3 * width]
    found = source.differentiate_attention(d_out, qkv, heads, sums)
    exact = definitions.differentiate_attention(d_out.double(), qkv.double(), heads)
    assert_near(found, exact, 1e-2 if ON_GPU else 1e-5)
    assert_near(sums, exact.sum(1), 2e-2 if ON_GPU else 1e-5)
    assert (sums[:, width : 2 * width] == 0).all()  # adding a vector to all keys changes no weight
    assert torch.equal(found, source.differentiate_attention(d_out, qkv, heads))


def make_layers(monkeypatch, width, heads, count, dtype):
    monkeypatch.setattr(vit, "WIDTH", width)
    monkeypatch.setattr(vit, "HEADS", heads)
    torch.manual_seed(0)
    layers = nn.Sequential(*[EncoderLayer() for _ in range(count)])
    norm = nn.LayerNorm(width, eps=1e-6)
    both = nn.ModuleList([layers, norm]).to(DEVICE, dtype)
    with torch.no_grad():
        for p in both.parameters():
            p.add_((0.1 if p.ndim == 1 else 0.01) * torch.randn_like(p))
    return both


def collect(both, work, x, **options):
    """Output and gradients of x and of all parameters."""
    leaf = x.clone().requires_grad_()
    y = work(*both, leaf)
    y.backward(make(*y.shape, dtype=y.dtype, seed=5))
    return [y.detach(), leaf.grad, *(p.grad for p in both.parameters())]


def run_plain(layers, norm, x):
    with without_kernels():
        return norm(layers(x)[:, 0])


@pytest.mark.parametrize(("width", "heads", "count", "tokens"), [(96, 6, 3, 5), (48, 3, 1, 2), (48, 3, 2, 1)])
def test_the_layers_are_torchs(exact, monkeypatch, width, heads, count, tokens):
    """In the precision of the parameters, whatever computes the parts."""
    both = make_layers(monkeypatch, width, heads, count, DTYPE)
    twin = copy.deepcopy(both)
    x = make(3, tokens, width, dtype=DTYPE, seed=4)
    found = collect(both, lambda layers, norm, x: run_encoder(layers, norm, x, DTYPE), x)
    wanted = collect(twin, run_plain, x)
    assert len(found) == 2 + 12 * count + 2
    for a, b in zip(found, wanted, strict=True):
        assert_near(a, b, 1e-10 if EXACT else 1e-4)
    with torch.no_grad():
        assert torch.equal(run_encoder(both[0], both[1], x, DTYPE), found[0])


class Later:
    """Stands for the streams: counts what is started and updated."""

    def __init__(self):
        self.started, self.updated = 0, []

    def start(self, work, *inputs):
        self.started += 1
        return work()

    def update(self, weight, gradient):
        self.updated.append((weight.data_ptr(), gradient))


def test_weight_gradients_go_beside(defined, monkeypatch):
    both, later = make_layers(monkeypatch, 48, 3, 2, DTYPE), Later()
    twin, x = copy.deepcopy(both), make(3, 4, 48, dtype=DTYPE, seed=4)
    work = lambda layers, norm, x: run_encoder(layers, norm, x, DTYPE)  # noqa: E731
    plain = collect(twin, work, x)
    with overlap.overlapping(later):
        found = collect(both, work, x)
    assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))
    matrices = {p.data_ptr(): p.grad for p in both.parameters() if p.ndim == 2}
    assert later.started == len(later.updated) == len(matrices) == 8
    assert all(torch.equal(matrices[place], gradient) for place, gradient in later.updated)


def test_an_update_follows_both_products(monkeypatch):
    pretend(monkeypatch)
    order = []
    beside = overlap.Beside(torch.device("cuda"), lambda weight, gradient: order.append(run("update")))

    class Noted(torch.Tensor):
        def __matmul__(self, other):
            run("weight gradient" if self.shape[0] == 6 else "input gradient")
            return torch.Tensor.__matmul__(self.as_subclass(torch.Tensor), other)

    dy, x, weight = torch.randn(4, 6), torch.randn(4, 3), torch.randn(6, 3)
    dx, d_weight = differentiate_linear(dy.as_subclass(Noted), x, weight, beside)
    torch.testing.assert_close(dx, dy @ weight)
    torch.testing.assert_close(d_weight, dy.t() @ x)
    assert order == [{"weight gradient", "input gradient"}]
    assert "weight gradient" not in beside.own.seen


def test_no_second_derivative(defined, monkeypatch):
    both, x = make_layers(monkeypatch, 48, 3, 1, DTYPE), make(2, 3, 48, dtype=DTYPE).requires_grad_()
    y = run_encoder(*both, x, DTYPE)
    (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


class OnGPU:
    """A residual stream on a GPU."""

    is_cuda, dtype, shape = True, torch.float32, (2, 65, 384)


def test_where_the_kernels_are_used(monkeypatch):
    monkeypatch.setattr(encoder, "has_kernels", lambda: True)
    trunk = create("vit-small", 4).trunk
    given = trunk.layers, trunk.norm, OnGPU()
    with torch.autocast("cuda", torch.bfloat16) if ON_GPU else pretend_autocast(monkeypatch):
        assert not can_fuse_encoder(*given)
        with fusing():
            assert can_fuse_encoder(*given)
            monkeypatch.setattr(OnGPU, "dtype", torch.bfloat16)
            assert not can_fuse_encoder(*given)
            monkeypatch.setattr(OnGPU, "dtype", torch.float32)
            monkeypatch.setattr(OnGPU, "is_cuda", False)
            assert not can_fuse_encoder(*given)
            monkeypatch.setattr(OnGPU, "is_cuda", True)
            monkeypatch.setattr(encoder, "has_kernels", lambda: False)
            assert not can_fuse_encoder(*given)
            monkeypatch.setattr(encoder, "has_kernels", lambda: True)
            trunk.layers[3].linear1.register_forward_hook(lambda *_: None)
            assert not can_fuse_encoder(*given)


@contextlib.contextmanager
def pretend_autocast(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(torch, "is_autocast_enabled", lambda device: True)
        patch.setattr(torch, "get_autocast_dtype", lambda device: torch.bfloat16)
        yield


def test_which_layers_the_kernels_know(monkeypatch):
    def check(change, tokens=65):
        trunk = create("vit-small", 4).trunk
        trunk.layers = trunk.layers[:2]
        change(trunk)
        return knows_layers(trunk.layers, trunk.norm, tokens)

    assert check(lambda trunk: None)
    assert not check(lambda trunk: None, tokens=129)
    assert not check(lambda trunk: trunk.norm.register_forward_pre_hook(lambda *_: None))
    assert not check(lambda trunk: setattr(trunk.layers[1].norm2, "eps", 1e-5))
    assert not check(lambda trunk: setattr(trunk.layers[1], "linear1", nn.Sequential(nn.Linear(384, 1536))))
    assert not check(lambda trunk: trunk.layers[0].linear2.register_parameter("bias", None))
    assert not check(lambda trunk: trunk.layers[0].bfloat16())
    monkeypatch.setattr(vit, "WIDTH", 320)
    monkeypatch.setattr(vit, "HEADS", 5)
    assert not check(lambda trunk: None)


@pytest.mark.skipif(ON_GPU or INTERPRETED, reason="by the definitions")
def test_updates_beside_the_fused_layers(defined, monkeypatch):
    """Bit by bit as torch's kernel stands for ours: no weight is updated before its last use, none twice."""
    define_updates(monkeypatch)
    monkeypatch.setattr(vit, "DEPTH", 2)
    for name in ("can_fuse_embedding", "can_fuse_encoder"):
        monkeypatch.setattr(vit, name, lambda *_: True)
    torch.manual_seed(0)
    first, x = create("vit-small", 4, image_size=16), torch.randn(3, 3, 16, 16)
    found, early = [], []
    for fused in (False, True):
        model = copy.deepcopy(first)
        solver = optimiser.make(OptimSpec("adamw", 1e-3, weight_decay=5e-2), model)
        features = CastFeatures(model, optimiser=solver if fused else None)
        if fused:
            change = features.updates.update_early
            streams = overlap.Beside(DEVICE, lambda *pair, change=change: early.append(change(*pair)))
            monkeypatch.setattr(CastFeatures, "find_beside", lambda self, x, streams=streams: streams)
        for _ in range(3):
            model.zero_grad()
            with autocast(DEVICE, "bf16"):
                features(x).square().sum().backward()
            solver.step()
        found.append([p.detach() for p in model.trunk.parameters()])
    assert len(early) == 3 * 8
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(found[0], first.trunk.parameters()))


def run_fused(layers, norm, x):
    with fusing(), autocast(x.device, "bf16"):
        assert can_fuse_encoder(layers, norm, x)
        return run_encoder(layers, norm, x)


@on_gpu
@pytest.mark.parametrize(("width", "heads", "tokens"), [(384, 6, 65), (192, 3, 17)])
def test_bfloat16_layers_are_near_float32(monkeypatch, width, heads, tokens):
    """About as near as torch's own in bfloat16."""
    both = make_layers(monkeypatch, width, heads, 2, torch.float32)
    x = make(32, tokens, width, seed=4)
    with switches(DEVICE, "fp32", True):
        exact = collect(copy.deepcopy(both), run_plain, x)
    with autocast(DEVICE, "bf16"):
        plain = collect(copy.deepcopy(both), run_plain, x)
    found = collect(both, run_fused, x)
    for ours, theirs, wanted in zip(found, plain, exact, strict=True):
        assert ours.dtype == torch.float32
        error = (theirs - wanted).norm() / wanted.norm()
        assert_near(ours, wanted, 1.5 * float(error) + 2e-3)


@pytest.fixture
def network(defined, monkeypatch):
    """A network whose kernels are used as on a GPU; a shallow one where their definitions stand for them."""
    if EXACT:
        monkeypatch.setattr(vit, "DEPTH", 2)
        for name in ("can_fuse_embedding", "can_fuse_encoder"):
            monkeypatch.setattr(vit, name, lambda *_: is_fusing() and torch.is_autocast_enabled("cpu"))
    torch.manual_seed(0)
    return create("vit-small", 10, image_size=32 if ON_GPU else 16).to(DEVICE)


@pytest.mark.skipif(INTERPRETED, reason="by the definitions, or on a GPU")
def test_bfloat16_networks_are_near_float32(network):
    x, found = make(*((64, 3, 32, 32) if ON_GPU else (6, 3, 16, 16))), []
    for precision, fused in (("fp32", False), ("bf16", False), ("bf16", True)):
        twin = copy.deepcopy(network)
        with fusing() if fused else without_kernels(), autocast(DEVICE, precision):
            features = twin.features(x)
            with torch.no_grad():
                assert_near(twin.features(x), features, 1e-6)
        (features * make(*features.shape, seed=1)).sum().backward()
        found.append([features.detach(), *(p.grad for p in twin.trunk.parameters())])
    for exact, theirs, ours in zip(*found, strict=True):
        error = (theirs - exact).norm() / exact.norm()
        assert_near(ours, exact, 1.5 * float(error) + 1e-2)
    assert not torch.equal(found[1][0], found[2][0])  # by other kernels


@pytest.mark.skipif(ON_GPU or INTERPRETED, reason="by the definitions")
@pytest.mark.parametrize("harm", [None, "add_norm", "compute_gelu", "differentiate_gelu", "differentiate_positions"])
def test_wrong_kernels_are_found_before_a_run(network, monkeypatch, harm):
    if harm is not None:
        right = getattr(definitions, harm)

        def wrong(*given):
            found = right(*given)
            return (*found[:-1], 1.5 * found[-1]) if isinstance(found, tuple) else 1.5 * found

        monkeypatch.setattr(definitions, harm, wrong)
    fault = find_fault(network, torch.randn(4, 3, 16, 16), "bf16")
    assert (fault is None) == (harm is None)
