"""What is particular to single losses, and their construction by name."""

import math

import pytest
import torch
import torch.nn.functional as F

import ncollapse as nc
from ncollapse.losses import LOSS_NAMES, functional, make_loss


def batch(K=6, B=9, seed=0):
    generator = torch.Generator().manual_seed(seed)
    z = 3 * torch.randn(B, K, generator=generator, dtype=torch.float64)
    return z, torch.randint(K, (B,), generator=generator)


def test_cross_entropy_is_torchs():
    z, target = batch()
    weight = torch.linspace(1, 2, 6, dtype=torch.float64)
    torch.testing.assert_close(functional.cross_entropy(z, target, weight=weight), F.cross_entropy(z, target, weight))
    torch.testing.assert_close(
        functional.cross_entropy(z, target, label_smoothing=0.3), F.cross_entropy(z, target, label_smoothing=0.3)
    )


def test_bce_is_torchs_times_the_number_of_classes():
    z, target = batch()
    torchs = F.binary_cross_entropy_with_logits(z, F.one_hot(target, 6).double())
    torch.testing.assert_close(functional.binary_cross_entropy(z, target), 6 * torchs)


def test_bce_takes_several_classes_at_once():
    z, _ = batch()
    many = (torch.rand(z.shape, generator=torch.Generator().manual_seed(3)) < 0.5).double()
    expected = F.binary_cross_entropy_with_logits(z, many, reduction="none").sum(1).mean()
    torch.testing.assert_close(nc.BCELoss()(z, many), expected)


def test_bce_keeps_the_positive_gradient_where_torch_loses_it():
    z = torch.tensor([[25.0, -25.0]], requires_grad=True)
    nc.BCELoss()(z, torch.tensor([0])).backward()
    assert z.grad[0, 0].item() == pytest.approx(-math.exp(-25), rel=1e-5)
    lost = torch.tensor([[25.0, -25.0]], requires_grad=True)
    F.binary_cross_entropy_with_logits(lost, torch.tensor([[1.0, 0.0]]), reduction="sum").backward()
    assert lost.grad[0, 0] == 0


def test_cross_entropy_keeps_the_gradient_where_torch_loses_it():
    z = torch.tensor([[25.0, 0.0]], requires_grad=True)
    nc.CELoss()(z, torch.tensor([0])).backward()
    assert z.grad[0].tolist() == pytest.approx([-math.exp(-25), math.exp(-25)], rel=1e-5)


@pytest.mark.parametrize("level", [1e4, -1e4, 300.0])
@pytest.mark.parametrize("soft", [False, True])
def test_logits_far_from_zero_lose_no_digits(level, soft):
    for classes in (3, 7):
        expected = (math.log(classes), 1 / classes)
        target = F.one_hot(torch.tensor([1]), classes).float() if soft else torch.tensor([1])
        for loss in (nc.CELoss(), nc.FocalLoss(0.0), nc.LabelSmoothingLoss(0.0)):
            z = torch.full((1, classes), level, requires_grad=True)
            value = loss(z, target)
            (gradient,) = torch.autograd.grad(value, z)
            assert value.item() == pytest.approx(expected[0], rel=1e-6)
            assert gradient[0, 0].item() == pytest.approx(expected[1], rel=1e-6)
            assert gradient[0, 1].item() == pytest.approx(expected[1] - 1, rel=1e-6)
            again = loss.value_and_gradient(z, target)
            assert again[0].item() == value.item()
            assert torch.equal(again[1], gradient)


@pytest.mark.parametrize("name", LOSS_NAMES)
def test_gradients_of_single_samples_by_vmap(name):
    loss, (z, index) = make_loss(name), batch(K=4, B=5)
    for target in (index, z.softmax(1)):

        def one(logits, goal):
            return loss(logits[None], goal[None])

        together = torch.func.vmap(torch.func.grad(one))(z, target)
        apart = torch.stack([torch.func.grad(one)(*sample) for sample in zip(z, target)])
        torch.testing.assert_close(together, apart)


def test_losses_that_coincide():
    z, target = batch()
    assert torch.equal(nc.LabelSmoothingLoss(0.2)(z, target), nc.CELoss(label_smoothing=0.2)(z, target))
    torch.testing.assert_close(nc.LabelSmoothingLoss(0.0)(z, target), nc.CELoss()(z, target))
    torch.testing.assert_close(nc.FocalLoss(0.0)(z, target), nc.CELoss()(z, target))
    torch.testing.assert_close(nc.MSELoss(alpha=1, M=1)(z, target), nc.MSELoss()(z, target))
    torch.testing.assert_close(nc.MSELoss(kappa=3, beta=2)(z, target), 2 * nc.MSELoss(alpha=3, M=2)(z, target))


def test_binary_loss_equals_cross_entropy_of_two_classes():
    z, target = batch(K=2)
    one = z[:, 1] - z[:, 0]
    for weight in (None, [1.0, 3.0]):
        expected = nc.CELoss(weight=weight)(z, target)
        loss = nc.BinaryLoss(weight=weight)
        for aim in (target, target.double(), F.one_hot(target, 2)):
            torch.testing.assert_close(loss(one, aim), expected)
            torch.testing.assert_close(loss(one.unsqueeze(1), aim), expected)
    assert nc.BinaryLoss().at(2.0, -1.0, 2) == nc.CELoss().at(2.0, -1.0, 2)


def test_soft_targets_of_cross_entropy_and_bce_mix_the_losses():
    z, first = batch()
    second = (first + 1) % 6
    mixed = 0.3 * F.one_hot(first, 6) + 0.7 * F.one_hot(second, 6)
    for loss in (nc.CELoss(), nc.BCELoss(), nc.LabelSmoothingLoss(0.2), nc.FocalLoss(2.0)):
        torch.testing.assert_close(loss(z, mixed.double()), 0.3 * loss(z, first) + 0.7 * loss(z, second))


@pytest.mark.parametrize("gamma", [0.1, 0.5, 0.9, 1.0, 3.0])
def test_focal_has_no_nan_at_certainty(gamma):
    for aim in (torch.tensor([0, 0]), torch.tensor([[1.0, 0.0], [0.5, 0.5]])):
        z = torch.tensor([[1e4, -1e4], [0.0, 1e4]], requires_grad=True)
        value = nc.FocalLoss(gamma)(z, aim)
        value.backward()
        assert torch.isfinite(value)
        assert torch.isfinite(z.grad).all()


@pytest.mark.parametrize("logits", [[[1.0, -math.inf]], [[-3.0, -math.inf, -math.inf]], [[0.5, 2.0, -math.inf]]])
def test_classes_masked_by_minus_infinity(logits):
    """Alone with its class, a sample has loss and gradient 0, as in torch."""
    target = torch.tensor([0])
    twin = torch.tensor(logits, requires_grad=True)
    expected = F.cross_entropy(twin, target)
    expected.backward()
    for loss in (nc.CELoss(), nc.FocalLoss(0.0), nc.FocalLoss(0.5), nc.FocalLoss(3.0)):
        z = torch.tensor(logits, requires_grad=True)
        value = loss(z, target)
        value.backward()
        assert torch.isfinite(value)
        assert torch.isfinite(z.grad).all()
        assert z.grad[0, -1] == 0
        if isinstance(loss, nc.CELoss) or loss.gamma == 0 or expected == 0:
            torch.testing.assert_close(value, expected)
            torch.testing.assert_close(z.grad, twin.grad)


def hessian_floor(gamma, z):
    """The least eigenvalue of the focal loss's Hessian in the logits, for target class 0."""
    loss, target = nc.FocalLoss(gamma), torch.tensor([0])
    hessian = torch.autograd.functional.hessian(lambda x: loss(x.unsqueeze(0), target), z)
    return torch.linalg.eigvalsh(hessian)[0].item()


@pytest.mark.parametrize("gamma", [0.3, 1.0, 3.0])
def test_focal_is_convex_inside_its_region_and_not_everywhere(gamma):
    generator = torch.Generator().manual_seed(0)
    loss = nc.FocalLoss(gamma)
    inside, outside = [], []
    for _ in range(60):
        z = 3.5 * torch.randn(4, generator=generator, dtype=torch.float64)
        convex = loss.in_convex_region(z.unsqueeze(0), torch.tensor([0])).item()
        (inside if convex else outside).append(hessian_floor(gamma, z))
    assert len(inside) > 10
    assert min(inside) > -1e-12
    assert min(outside) < -1e-4
    assert not loss.convex
    edges = torch.tensor([[0.0585, 0.9415], [0.0584, 0.9416]]).log() + 5
    assert loss.in_convex_region(edges, torch.tensor([0, 0])).tolist() == [True, False]
    with pytest.raises(ValueError, match="target: expected class indices"):
        loss.in_convex_region(edges, edges.softmax(1))


def test_the_convex_region_of_focal_loss_is_sharp():
    """The worst gamma is sqrt((1/p - 1) / log(1/p)) = 2.38: there the loss is convex just above the bound alone."""
    gamma = 2.3818630626
    for p, convex in ((0.0590, True), (0.0579, False)):
        z = torch.tensor([math.log(p / (1 - p)), 0.0], dtype=torch.float64)
        assert (hessian_floor(gamma, z) > -1e-12) == convex


def test_make_loss_by_name():
    assert tuple(LOSS_NAMES) == ("ce", "bce", "focal", "ls", "mse")
    for name in LOSS_NAMES:
        loss = make_loss(name)
        assert loss.name == name
        assert make_loss(name, **loss.params()).params() == loss.params()
    assert make_loss("focal", gamma=2).params() == {"gamma": 2.0}
    assert make_loss("focal", gamma=None).params() == {"gamma": 3.0}
    assert make_loss("mse", kappa=1, beta=15, alpha=None).params() == {"kappa": 1.0, "beta": 15.0}
    assert make_loss("ce").params() == make_loss("bce").params() == make_loss("mse").params() == {}
    assert make_loss("bce", label_smoothing=0.1).params() == {"label_smoothing": 0.1}
    assert make_loss("ce", reduction="sum").reduction == "sum"
    loss = nc.BinaryLoss()
    assert make_loss(loss) is loss


def test_bad_parameters_are_named():
    with pytest.raises(ValueError, match=r"mse, package\.module:Class or a loss"):
        make_loss("hinge")
    with pytest.raises(TypeError, match=r"loss 'ce': expected label_smoothing; got gamma$"):
        make_loss("ce", gamma=2.0)
    with pytest.raises(TypeError, match=r"loss 'focal': expected gamma; got gama$"):
        make_loss("focal(gama=2)")
    with pytest.raises(TypeError, match=r"loss 'mse': expected kappa, beta, alpha, M, class_reduction; got slope$"):
        make_loss("mse", slope=2.0)
    with pytest.raises(TypeError, match="a loss object takes no further parameters, got gamma"):
        make_loss(nc.FocalLoss(), gamma=2.0)
    for kind, name in ((nc.FocalLoss, "gamma"), (nc.LabelSmoothingLoss, "alpha"), (nc.CELoss, "label_smoothing")):
        with pytest.raises(TypeError, match=f"^{name}: expected a number, got '0.1'$"):
            kind(**{name: "0.1"})
    with pytest.raises(TypeError, match=r"^kappa: expected a number, got '1'$"):
        nc.MSELoss(kappa="1", beta=15)
    for gamma in (-0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match="gamma: expected a finite number >= 0"):
            nc.FocalLoss(gamma)
    for value in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match=r"alpha: expected a number in \[0, 1\)"):
            nc.LabelSmoothingLoss(value)
        for loss in (nc.CELoss, nc.BCELoss):
            with pytest.raises(ValueError, match=r"label_smoothing: expected a number in \[0, 1\)"):
                loss(label_smoothing=value)
    for wrong in ({"kappa": 1}, {"alpha": 1}, {"kappa": 1, "M": 2}, {"kappa": 1, "beta": 1, "M": 2}):
        with pytest.raises(ValueError, match="mse takes no parameter, alpha and M, or kappa and beta; got"):
            nc.MSELoss(**wrong)
    with pytest.raises(ValueError, match="beta: expected a finite number > 0, got 0"):
        nc.MSELoss(kappa=1, beta=0)


def test_an_empty_batch_sums_to_nothing():
    z, target = torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)
    for name in LOSS_NAMES:
        assert make_loss(name, reduction="sum")(z, target) == 0
        assert make_loss(name, reduction="none")(z, target).shape == (0,)


def test_repr_shows_what_matters():
    assert (
        repr(nc.FocalLoss(2, weight=[1, 2], reduction="sum"))
        == "FocalLoss(gamma=2, weight=[1.0, 2.0], reduction='sum')"
    )
    assert repr(nc.CELoss()) == "CELoss()"


def test_bce_refuses_targets_above_one_and_takes_several_ones():
    z = torch.zeros(1, 3)
    with pytest.raises(ValueError, match=r"soft target must not exceed 1, got 1\.5"):
        nc.BCELoss()(z, torch.tensor([[1.5, 0.0, 0.0]]))
    assert nc.BCELoss()(z, torch.tensor([[1.0, 1.0, 0.0]])).item() == pytest.approx(3 * math.log(2))


def test_class_reduction_is_a_choice_of_two_words():
    with pytest.raises(ValueError, match="class_reduction: expected 'sum' or 'mean', got 'none'"):
        nc.MSELoss(class_reduction="none")
    assert nc.MSELoss(class_reduction="sum").params() == {}
    mean = nc.MSELoss(class_reduction="mean")
    assert mean.params() == {"class_reduction": "mean"}
    assert repr(mean) == "MSELoss(class_reduction='mean')"
    z, y = torch.randn(4, 6, dtype=torch.float64), torch.arange(4)
    assert mean(z, y).item() == pytest.approx(nc.MSELoss()(z, y).item() / 6)
    torch_mse = torch.nn.functional.mse_loss(z, torch.eye(6, dtype=torch.float64)[:4])
    assert 2 * mean(z, y).item() == pytest.approx(torch_mse.item())
