"""Batch norms folded into convolutions: the same network in eval mode, with fewer kernels."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ncollapse.models import create, densenet, folded, norm, resnet, stem
from ncollapse.models.convolution import Conv2d
from ncollapse.train.objective import autocast
from reference.folding import convolve_add_relu, convolve_relu, define_folding, fold_on_cpu
from reference.norm_ops import INTERPRETED

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
NETWORKS = [
    ("resnet18", {}),
    ("resnet18", {"feature_dim": 24}),
    ("resnet18", {"stem": "imagenet"}),
    ("resnet50", {}),
    ("resnet50", {"feature_dim": 32, "stem": "imagenet"}),
    ("resnet32", {}),
    ("resnet32", {"feature_dim": 10}),
    ("wide-resnet18-0.25", {"in_channels": 1}),
    ("densenet121-small", {}),
]


def make_network(name, **options):
    """A network in eval mode whose norms have statistics and weights of their own."""
    torch.manual_seed(0)
    network = create(name, 5, **options).eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.normal_(0.0, 0.2)
            module.running_mean.normal_(0.0, 0.2)
            module.running_var.uniform_(0.5, 2.0)
    return network.to(memory_format=torch.channels_last)


def make_images(*shape, dtype=torch.float32):
    return torch.randn(shape, device=DEVICE, dtype=dtype).contiguous(memory_format=torch.channels_last)


@pytest.fixture
def pretended(monkeypatch):
    """Norms are folded on the CPU, in float64; returns the names of what is called."""
    return fold_on_cpu(monkeypatch, torch.float64)


@pytest.mark.parametrize(("name", "options"), NETWORKS)
def test_a_folded_network_is_the_plain_network(name, options, pretended, monkeypatch):
    network = make_network(name, **options).double()
    images = torch.randn(2, options.get("in_channels", 3), 16, 16).bfloat16().double()  # the product's windows round
    with torch.no_grad():
        found = network.forward_features(images)
        calls = list(pretended)
        for module in (resnet, densenet):
            monkeypatch.setattr(module, "can_fold", lambda *_: False)
        monkeypatch.setattr(resnet, "can_fold_stem", lambda *_: False)
        wanted = network.forward_features(images)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    assert wanted.norm() > 0
    assert pretended == calls, "the plain network folded something"
    blocks = [module for module in network.modules() if isinstance(module, resnet.Block)]
    dense = sum(isinstance(module, densenet.DenseLayer) for module in network.modules())
    assert calls.count("add") == max(0, len(blocks) - 1)
    assert calls.count("relu") == sum(len(block.layers()) - 1 for block in blocks) + dense > 0
    assert calls.count("product") == (bool(blocks) and "stem" not in options)


def test_a_diverged_network_has_no_finite_features(pretended, monkeypatch):
    """Even where cuDNN's ReLU gives zeros for NaN."""
    for name, plain in (("relu", convolve_relu), ("add_relu", convolve_add_relu)):
        monkeypatch.setattr(torch, f"cudnn_convolution_{name}", lambda *args, plain=plain: plain(*args).nan_to_num(0.0))
    network = make_network("wide-resnet18-0.25").double()
    with torch.no_grad():
        for parameter in network.trunk.parameters():
            parameter.fill_(float("nan"))
        assert network.features(torch.randn(2, 3, 8, 8).double()).isnan().all()


def test_training_is_not_folded(pretended):
    network = make_network("wide-resnet18-0.25").double().train()
    network.trunk.stages = network.trunk.stages[:1]
    network.trunk.layer1(torch.randn(2, 64, 8, 8).double())
    assert not pretended


@pytest.mark.skipif(not ON_GPU and not INTERPRETED, reason="the kernel needs a GPU, or TRITON_INTERPRET=1")
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize(("fan_in", "fan_out", "size"), [(64, 24, 3), (200, 7, 3), (16, 5, 1), (3, 8, 7)])
def test_the_kernel_matches_the_definition(fan_in, fan_out, size, shifted):
    from ncollapse.models.fused_fold import scale_kernel

    torch.manual_seed(0)
    conv, bn = resnet.conv(fan_in, fan_out, size), nn.BatchNorm2d(fan_out)
    bn.weight.data.normal_(), bn.bias.data.normal_(), bn.running_mean.normal_(), bn.running_var.uniform_(0.1, 2.0)
    conv, bn = conv.to(DEVICE).to(memory_format=torch.channels_last), bn.to(DEVICE)
    shift = torch.randn(fan_out, device=DEVICE) if shifted else None
    wanted = define_folding((conv, bn), shift, torch.float32)
    given = bn.weight, bn.bias, bn.running_mean, bn.running_var
    with torch.no_grad():
        kernel, bias = scale_kernel(conv.weight, *given, shift, bn.eps, torch.float32)
    assert kernel.stride() == conv.weight.stride()
    torch.testing.assert_close(kernel, wanted[0], rtol=2**-7, atol=1e-6)  # the interpreter cuts off, a GPU rounds
    torch.testing.assert_close(bias, wanted[1], rtol=1e-5, atol=1e-6)


def make_layer(**options):
    conv = Conv2d(8, 8, 3, padding=1, bias=False).to(memory_format=torch.channels_last)
    return conv, nn.BatchNorm2d(8, **options).eval()


def refuse_hooks(layer, which):
    layer[which].register_forward_hook(lambda *_: None)
    return layer


@pytest.mark.parametrize(
    "make",
    [
        lambda: (make_layer()[0], nn.BatchNorm2d(8)),
        lambda: make_layer(affine=False),
        lambda: make_layer(track_running_stats=False),
        lambda: (make_layer()[0], nn.SyncBatchNorm(8).eval()),
        lambda: (nn.Conv2d(8, 8, 3, padding=1, bias=False), make_layer()[1]),
        lambda: (Conv2d(8, 8, 3, padding=1).to(memory_format=torch.channels_last), make_layer()[1]),
        lambda: (Conv2d(8, 8, 3, groups=2, bias=False).to(memory_format=torch.channels_last), make_layer()[1]),
        lambda: (Conv2d(8, 8, 3, dilation=2, bias=False).to(memory_format=torch.channels_last), make_layer()[1]),
        lambda: (Conv2d(8, 8, 3, padding="same", bias=False).to(memory_format=torch.channels_last), make_layer()[1]),
        lambda: (Conv2d(8, 8, 3, bias=False), make_layer()[1]),
        lambda: (make_layer()[0].double(), make_layer()[1]),
        lambda: refuse_hooks(make_layer(), 0),
        lambda: refuse_hooks(make_layer(), 1),
    ],
)
def test_other_layers_are_not_folded(make):
    assert folded.is_plain(make_layer())
    assert not folded.is_plain(make())


class Map:
    """A map of a captured evaluation on a GPU, as far as the conditions look at it."""

    is_cuda, dtype, shape = True, torch.bfloat16, (4, 8, 2, 2)
    channels_last = True

    def __init__(self, **changed):
        self.__dict__.update(changed)

    def numel(self):
        return torch.Size(self.shape).numel()

    def is_contiguous(self, memory_format):
        return self.channels_last


@pytest.fixture
def evaluating(monkeypatch):
    """An evaluation that is being captured on a GPU, without one."""
    monkeypatch.setattr(norm, "HAS_TRITON", True)
    monkeypatch.setattr(folded, "FOLDS", True)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda device: torch.bfloat16)
    with torch.no_grad(), norm.fusing():
        yield


def test_only_captured_evaluations_in_bfloat16_are_folded(evaluating, monkeypatch):
    layer = make_layer()
    assert folded.can_fold(Map(), layer, layer)
    assert not folded.can_fold(Map(is_cuda=False), layer)
    assert not folded.can_fold(Map(dtype=torch.float32), layer)
    assert not folded.can_fold(Map(channels_last=False), layer)
    assert not folded.can_fold(Map(shape=(2**20, 8, 16, 16)), layer), "too many values"
    assert not folded.can_fold(Map(), layer, refuse_hooks(make_layer(), 0))
    odd = Conv2d(8, 10, 3, bias=False).to(memory_format=torch.channels_last), nn.BatchNorm2d(10).eval()
    assert not folded.can_fold(Map(), odd)
    with torch.enable_grad():
        assert not folded.can_fold(Map(), layer)
    with norm.without_kernels():
        assert not folded.can_fold(Map(), layer)
    for owner, name, value in (
        (torch.backends.cudnn, "deterministic", True),
        (torch.backends.cudnn, "enabled", False),
        (norm, "HAS_TRITON", False),
        (folded, "FOLDS", False),
        (torch.compiler, "is_compiling", lambda: True),
        (norm, "is_fusing", lambda: False),
        (torch, "is_autocast_enabled", lambda _: False),
        (torch, "get_autocast_dtype", lambda _: torch.float16),
        (torch, "are_deterministic_algorithms_enabled", lambda: True),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            assert not folded.can_fold(Map(), layer), name
    assert folded.can_fold(Map(), layer)


def test_only_small_stems_are_products(evaluating):
    def make_stem(size, stride):
        conv = resnet.conv(3, 8, size, stride).to(memory_format=torch.channels_last)
        return conv, nn.BatchNorm2d(8).eval()

    image = Map(dtype=torch.float32, shape=(4, 3, 8, 8), requires_grad=False)
    assert folded.can_fold_stem(make_stem(3, 1), image)
    assert not folded.can_fold_stem(make_stem(7, 2), image)
    assert not folded.can_fold_stem((make_stem(3, 1)[0], nn.BatchNorm2d(8)), image)


def test_a_shortcut_that_is_looked_at_is_called(pretended):
    block = resnet.BasicBlock(4, 8, 8, 2, resnet.Projection(4, 8, 2)).eval()
    assert block.can_fold(torch.zeros(1, 4, 4, 4))
    block.downsample.register_forward_hook(lambda *_: None)
    assert not block.can_fold(torch.zeros(1, 4, 4, 4))


def test_the_search_of_cudnn_is_as_before(pretended, monkeypatch):
    seen = []

    def watch(*args):
        seen.append(torch.backends.cudnn.benchmark)
        return convolve_relu(*args)

    monkeypatch.setattr(torch, "cudnn_convolution_relu", watch)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    with torch.no_grad():
        folded.convolve_relu(make_layer(), torch.zeros(1, 8, 2, 2).double())
        monkeypatch.setattr(folded, "SEARCHES", True)
        folded.convolve_relu(make_layer(), torch.zeros(1, 8, 2, 2).double())
    assert seen == [False, True]
    assert torch.backends.cudnn.benchmark


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
@pytest.mark.parametrize(("name", "options"), NETWORKS)
def test_folded_features_on_this_gpu(name, options, monkeypatch):
    """As near to float64 as the kernels that they replace."""
    network = make_network(name, **options).cuda()
    x = make_images(16, options.get("in_channels", 3), 32, 32)
    called = []
    plain = folded.fold_norm
    monkeypatch.setattr(folded, "fold_norm", lambda *args, **kw: called.append(1) or plain(*args, **kw))
    with torch.no_grad():
        wanted = copy.deepcopy(network).double().features(x.double())
        with autocast(x.device, "bf16"):
            unfolded = network.features(x).double()
            assert not called
            with norm.fusing():
                found = network.features(x).double()
    assert called
    error, usual = ((h - wanted).norm() / wanted.norm() for h in (found, unfolded))
    assert error <= 1.5 * usual + 0.01


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
def test_the_stem_as_a_product_on_this_gpu():
    network = make_network("resnet18").cuda()
    x = make_images(4, 3, 32, 32)
    layer = network.trunk.conv1, network.trunk.bn1
    with torch.no_grad(), norm.fusing(), autocast(x.device, "bf16"):
        assert folded.can_fold_stem(layer, x)
        found = folded.multiply_relu(layer, x)
    assert found.dtype == torch.bfloat16
    assert found.is_contiguous(memory_format=torch.channels_last)
    wanted = F.relu(layer[1].double()(layer[0].double()(x.double())))
    assert (found - wanted).norm() <= 0.01 * wanted.norm()
    assert stem.COLUMNS == 32
