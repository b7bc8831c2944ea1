"""The fused last layer against float64 autograd over its definition; on a GPU or in Triton's interpreter."""

import pytest
import torch

from ncollapse.heads import ETFHead, LinearHead, decay
from ncollapse.losses import BCELoss, CELoss, FocalLoss
from ncollapse.models import create, norm
from ncollapse.train import last_layer, verify
from ncollapse.train.objective import Objective
from ncollapse.train.recipe import DecaySpec
from reference.norm_ops import INTERPRETED

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
kernels = pytest.mark.skipif(not ON_GPU and not INTERPRETED, reason="the kernels need a GPU, or TRITON_INTERPRET=1")
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # Triton's interpreter
DECAYS = DecaySpec(weight=5e-2, feature=2e-3, bias=3e-2)


def differentiate(work, features, head, target):
    """(total, loss, gradients of features, weight and bias, the last one perhaps None), in float64."""
    head.zero_grad()
    leaf = features.detach().requires_grad_()
    total, loss = work(leaf, target)
    (3.0 * total).backward()
    bias = None if head.bias is None else head.bias.grad.double()
    return total.detach().double(), loss.detach().double(), leaf.grad.double(), head.weight.grad.double(), bias


def compare(loss, rows, dim, classes, *, bias=True, soft=False, scale=1.0):
    """The kernels in float32 and the definition in float64, as pairs."""
    torch.manual_seed(0)
    head = LinearHead(dim, classes, bias=bias).to(DEVICE)
    features = scale * torch.randn(rows, dim, device=DEVICE)
    target = torch.randint(classes, (rows,), device=DEVICE)
    if soft:
        target = torch.rand(rows, classes, device=DEVICE).square()
        target /= target.sum(1, keepdim=True)

    def fused(h, y):
        return last_layer.fuse_last_layer(head, loss, DECAYS, h, y)

    found = differentiate(fused, features, head, target)
    exact = LinearHead(dim, classes, bias=bias).to(DEVICE).double()
    exact.load_state_dict(head.state_dict())

    def define(h, y):
        value = loss(exact(h), y.double() if soft else y)
        strengths = {"weight_decay": DECAYS.weight, "feature_decay": DECAYS.feature, "bias_decay": DECAYS.bias}
        return value + decay(exact, h, **strengths), value

    wanted = differentiate(define, features.double(), exact, target)
    return [(a, b) for a, b in zip(found, wanted) if b is not None]


@kernels
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("loss", [CELoss(), BCELoss()], ids=["ce", "bce"])
@pytest.mark.parametrize(
    ("rows", "dim", "classes"), [(128, 512, 10), (80, 100, 100), (5, 3, 2), (33, 64, 17), (1, 7, 3)]
)
def test_the_kernels_match_the_definition(loss, rows, dim, classes, soft):
    for found, wanted in compare(loss, rows, dim, classes, soft=soft):
        assert (found - wanted).norm() <= 1e-5 * wanted.norm()


@kernels
@pytest.mark.parametrize("loss", [CELoss(), BCELoss()], ids=["ce", "bce"])
def test_without_a_bias(loss):
    pairs = compare(loss, 20, 30, 4, bias=False)
    assert len(pairs) == 4
    for found, wanted in pairs:
        assert (found - wanted).norm() <= 1e-5 * wanted.norm()


@kernels
@pytest.mark.parametrize("loss", [CELoss(), BCELoss()], ids=["ce", "bce"])
def test_small_losses_keep_their_digits(loss):
    """Collapsed features far from the boundary: a loss of 1e-12 has a gradient too."""
    head = LinearHead(4, 4, bias=False).to(DEVICE)
    with torch.no_grad():
        head.weight.copy_(28.0 * (torch.eye(4) - 0.5))
    features, target = 1.0 * torch.eye(4, device=DEVICE), torch.arange(4, device=DEVICE)

    def fused(h, y):
        return last_layer.fuse_last_layer(head, loss, DecaySpec(), h, y)

    _, value, *found = differentiate(fused, features, head, target)
    exact = LinearHead(4, 4, bias=False).to(DEVICE).double()
    exact.load_state_dict(head.state_dict())
    _, wanted, *gradients = differentiate(lambda h, y: (loss(exact(h), y),) * 2, features.double(), exact, target)
    assert 0 < wanted < 1e-5
    assert value.item() == pytest.approx(wanted.item(), rel=1e-5)
    for a, b in zip(found[:2], gradients[:2]):
        assert (a - b).norm() <= 1e-5 * b.norm()


@kernels
def test_two_calls_give_the_same_bits():
    first, second = (compare(BCELoss(), 128, 512, 10) for _ in range(2))
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(first, second))


def test_other_heads_and_losses_are_torchs():
    head, ce = LinearHead(5, 4), CELoss()
    assert last_layer.knows_last_layer(head, ce)
    assert last_layer.knows_last_layer(head, BCELoss())
    assert not last_layer.can_fuse_last_layer(head, ce, torch.zeros(2, 5), torch.zeros(2, dtype=torch.long))
    for other in (
        FocalLoss(),
        CELoss(label_smoothing=0.1),
        BCELoss(weight=[1.0] * 4),
        CELoss(reduction="sum"),
        type("Mine", (CELoss,), {"name": "mine"})(),
    ):
        assert not last_layer.knows_last_layer(head, other)
    assert not last_layer.knows_last_layer(ETFHead(5, 4), ce)
    assert not last_layer.knows_last_layer(LinearHead(5, last_layer.MOST_CLASSES + 1), ce)
    assert not last_layer.knows_last_layer(LinearHead(5, 4).double(), ce)
    head.register_forward_hook(lambda *_: None)
    assert not last_layer.knows_last_layer(head, ce)


@kernels
@pytest.mark.parametrize("loss", [CELoss(), BCELoss()], ids=["ce", "bce"])
@pytest.mark.parametrize("soft", [False, True])
def test_no_fault_is_found(loss, soft):
    model = create("mlp-64", 10, in_channels=3, image_size=4).to(DEVICE)
    target = torch.full((12, 10), 0.1, device=DEVICE) if soft else torch.arange(12, device=DEVICE) % 10
    assert verify.find_last_layer_fault(Objective(model, loss, DECAYS), target) is None


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda total, loss: (1.01 * total, loss), "their values differ by 0.0"),
        (lambda total, loss: (total.detach() + 0.0 * total, loss), "their gradients differ by 1 of the norm"),
        (lambda total, loss: total.no_such_name, "AttributeError"),
    ],
)
def test_faults_are_found(monkeypatch, harm, said):
    model = create("mlp-64", 10, in_channels=3, image_size=4)
    objective = Objective(model, CELoss(), DECAYS)

    def fused(head, loss, decays, features, target):
        value = loss(head(features), target)
        return harm(value + objective.decay(features, head), value)

    monkeypatch.setattr(verify, "fuse_last_layer", fused)
    assert said in verify.find_last_layer_fault(objective, torch.arange(12) % 10)
    monkeypatch.setattr(verify, "fuse_last_layer", lambda *args: harm_nothing(objective, *args))
    assert verify.find_last_layer_fault(objective, torch.arange(12) % 10) is None


def harm_nothing(objective, head, loss, decays, features, target):
    value = loss(head(features), target)
    return value + objective.decay(features, head), value


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
@pytest.mark.parametrize("loss", [CELoss(), BCELoss()], ids=["ce", "bce"])
def test_the_objective_uses_it_in_captured_steps(loss, monkeypatch):
    torch.manual_seed(0)
    model = create("mlp-64", 10, in_channels=3, image_size=4).cuda()
    objective = Objective(model, loss, DECAYS)
    x, y = torch.randn(32, 3, 4, 4, device="cuda"), torch.randint(10, (32,), device="cuda")
    calls, found = [], []
    keep = last_layer.LastLayer.forward
    monkeypatch.setattr(last_layer.LastLayer, "forward", staticmethod(lambda *a: calls.append(1) or keep(*a)))
    for fused in (True, False):
        model.zero_grad()
        with norm.fusing() if fused else norm.without_kernels():
            total, value = objective(x, y, 32)
        total.backward()
        found.append([total.detach(), value, *(p.grad.clone() for p in model.parameters())])
    assert calls == [1]
    for a, b in zip(*found):
        assert (a - b).norm() <= 1e-4 * b.norm()
