"""What a step minimises, against sums in float64: each decay alone, shares of a batch, and several processes."""

import numpy as np
import pytest
import torch

from ncollapse.losses import BCELoss, CELoss
from ncollapse.models import create
from ncollapse.train.objective import Objective
from ncollapse.train.recipe import DecaySpec

NAMES = ("weight", "feature", "bias")


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    made = create("mlp-small", num_classes=4, in_channels=1, image_size=6)
    with torch.no_grad():
        made.head.bias.uniform_(-1, 1)
    return made


def draw(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 1, 6, 6, generator=generator), torch.randint(4, (rows,), generator=generator)


def define(network, x, y, loss, decays, weight_decay=0.0):
    """(objective, mean loss) of a whole batch, in numpy."""
    with torch.no_grad():
        h, w, b = (t.double().numpy() for t in (network.features(x), network.head.weight, network.head.bias))
        squares = sum(float(p.double().square().sum()) for p in network.parameters())
    z = h @ w.T - b
    own = z[np.arange(len(z)), y]
    if isinstance(loss, BCELoss):
        mean = np.mean(np.log1p(np.exp(z)).sum(1) - own)
    else:
        mean = np.mean(np.log(np.exp(z).sum(1)) - own)
    penalty = decays.weight * (w**2).sum() + decays.feature * (h**2).sum() + decays.bias * (b**2).sum()
    return mean + penalty / 2 + weight_decay * squares / 2, mean


@pytest.mark.parametrize("loss", [CELoss(), BCELoss()], ids=["ce", "bce"])
@pytest.mark.parametrize("names", [(), *((name,) for name in NAMES), NAMES], ids="+".join)
def test_each_decay_alone_is_added(network, loss, names):
    x, y = draw(9)
    decays = DecaySpec(**{name: {"weight": 0.3, "feature": 0.02, "bias": 0.5}[name] for name in names})
    total, mean = Objective(network, loss, decays)(x, y)
    assert (total.item(), mean.item()) == pytest.approx(define(network, x, y, loss, decays), rel=1e-5)
    assert not mean.requires_grad
    later = Objective(network, loss, DecaySpec())
    later.set_decays(decays)
    assert later(x, y)[0].item() == total.item()


def test_a_decay_of_all_parameters_is_half_their_squares(network):
    x, y = draw(5)
    found = Objective(network, CELoss(), DecaySpec(bias=0.1), weight_decay=0.07)(x, y)
    wanted = define(network, x, y, CELoss(), DecaySpec(bias=0.1), 0.07)
    assert tuple(value.item() for value in found) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("sizes", [(4, 4), (5, 3), (6, 2, 1), (7, 0)])
def test_the_mean_over_processes_is_the_whole_batch(network, sizes):
    """Value and gradient, however unevenly the batch is spread; one share may even be empty."""
    decays = DecaySpec(weight=0.3, feature=0.02, bias=0.5)
    x, y = draw(sum(sizes))
    whole = Objective(network, BCELoss(), decays)
    parts = Objective(network, BCELoss(), decays, world=len(sizes))
    shares = [parts(a, b, sum(sizes)) for a, b in zip(x.split(sizes), y.split(sizes))]
    mean = torch.stack([total for total, _ in shares]).mean()
    total, loss = whole(x, y)
    assert mean.item() == pytest.approx(total.item(), rel=1e-5)
    assert torch.stack([part for _, part in shares]).mean().item() == pytest.approx(loss.item(), rel=1e-5)
    slopes = [torch.autograd.grad(value, list(network.parameters()), allow_unused=True) for value in (mean, total)]
    for part, every in zip(*slopes):
        assert (part - every).norm() <= 1e-5 * every.norm() + 1e-7


def test_what_is_frozen_is_not_decayed(network):
    x, y = draw(5)
    frozen = network.trunk[1].weight
    plain = define(network, x, y, CELoss(), DecaySpec(), 0.07)[0]
    frozen.requires_grad_(False)
    try:
        total, _ = Objective(network, CELoss(), DecaySpec(), weight_decay=0.07)(x, y)
    finally:
        frozen.requires_grad_(True)
    assert total.item() == pytest.approx(plain - 0.035 * frozen.double().square().sum().item(), rel=1e-5)
