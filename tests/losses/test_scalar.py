"""The losses as functions of (positive, negative) logit, and the contrastive bound."""

import numpy as np
import pytest
import torch

import ncollapse as nc
from ncollapse.losses import ScalarLoss, check_contrastive
from reference.loss_cases import CASES

every_loss = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)


def class_counts(case):
    return [2] if case.cls is nc.BinaryLoss else [2, 3, 10, 1000]


def expand(case, pos, neg, num_classes):
    """Logits [1, K] with the target class last, as the loss takes them."""
    z = torch.cat([neg.expand(num_classes - 1), pos.reshape(1)]).unsqueeze(0)
    return case.logits(z), torch.tensor([num_classes - 1])


@every_loss
def test_value_and_derivatives_are_those_of_the_forward(case):
    loss = case.make(reduction="sum")
    for K in class_counts(case):
        for pos, neg in [(0.0, 0.0), (3.0, -1.0), (-2.0, 1.5), (9.3, 2.0), (40.0, -3.0), (-60.0, 50.0), (1e4, -1e4)]:
            x, y = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (pos, neg))
            value = loss(*expand(case, x, y, K))
            slopes = torch.autograd.grad(value, (x, y))
            got = loss.at(pos, neg, K)
            assert all(type(part) is float for part in got)
            np.testing.assert_allclose(got, [v.item() for v in (value, *slopes)], rtol=2e-12, atol=1e-290)


@every_loss
def test_derivatives_agree_with_finite_differences(case):
    loss, h = case.make(), 1e-5
    for K in class_counts(case):
        pos, neg = np.meshgrid(np.linspace(-4, 8, 7), np.linspace(-5, 4, 7))
        got = loss.at(pos, neg, K)
        by_pos = (loss.at(pos + h, neg, K).value - loss.at(pos - h, neg, K).value) / (2 * h)
        by_neg = (loss.at(pos, neg + h, K).value - loss.at(pos, neg - h, K).value) / (2 * h)
        np.testing.assert_allclose(got.d_pos, by_pos, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(got.d_neg, by_neg, rtol=1e-6, atol=1e-6)


@every_loss
def test_arrays_broadcast_and_stay_finite_at_any_score(case):
    loss, K = case.make(), class_counts(case)[-1]
    pos, neg = np.array([[-1e6], [-700.0], [0.0], [700.0], [1e6]]), np.array([-1e6, -700.0, 0.0, 700.0, 1e6])
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        got = loss.at(pos, neg, K)
    assert isinstance(got, ScalarLoss)
    for part in got:
        assert part.shape == (5, 5)
        assert np.isfinite(part).all()
    assert got.value[1, 3] == loss.at(-700.0, 700.0, K).value


@every_loss
def test_phi_bounds_the_contrastive_losses_and_is_refused_by_the_others(case):
    loss = case.make(reduction="none")
    if not loss.contrastive:
        with pytest.raises(NotImplementedError, match=f"{loss.name} has no contrastive bound"):
            loss.phi(0.0, 10)
        return
    K = case.num_classes
    generator = torch.Generator().manual_seed(0)
    z = 3 * torch.randn(500, K, generator=generator, dtype=torch.float64)
    t = (z.sum(1) - K * z[:, 0]).numpy()
    slack = loss(case.logits(z), torch.zeros(500, dtype=torch.long)).numpy() - loss.phi(t, K)
    assert (slack > -1e-12 if K == 2 else slack > 0).all()
    assert type(loss.phi(-3.0, K)) is float


@pytest.mark.parametrize(
    ("loss", "phi"),
    [
        (nc.CELoss(), lambda t, K: np.log(1 + (K - 1) * np.exp(t / (K - 1)))),
        (nc.LabelSmoothingLoss(0.1), lambda t, K: np.log(1 + (K - 1) * np.exp(t / (K - 1))) - 0.1 / K * t),
        (nc.FocalLoss(2.0), lambda t, K: (1 - 1 / xi(t, K)) ** 2 * np.log(xi(t, K))),
    ],
    ids=["ce", "ls", "focal"],
)
def test_phi_is_the_printed_one(loss, phi):
    t = np.linspace(-12, 20, 61)
    for K in (2, 4, 10):
        np.testing.assert_allclose(loss.phi(t, K), phi(t, K), rtol=1e-7)


def xi(t, K):
    return 1 + (K - 1) * np.exp(t / (K - 1))


@every_loss
def test_the_contrastive_property_holds_as_told(case):
    loss = case.make(weight=[1.0 + k for k in range(case.num_classes)])
    check = check_contrastive(loss, case.num_classes)
    assert check.holds == loss.contrastive
    assert check.attained == loss.contrastive
    if case.cls is not nc.BinaryLoss:
        assert check_contrastive(loss, 100).holds == loss.contrastive


def test_the_check_sees_a_minimiser_on_the_wrong_side():
    class Reversed(nc.CELoss):
        """Cross-entropy of the negated logits of a pair: rewards the wrong class."""

        def forward(self, logits, target):
            return super().forward(-logits, target)

        def evaluate_groups(self, z, sizes):
            value, slopes = super().evaluate_groups(-z, sizes)
            return value, -slopes

    check = check_contrastive(Reversed(), 2)
    assert check.attained
    assert check.bounded
    assert not check.minimised


def test_at_refuses_impossible_class_counts():
    with pytest.raises(ValueError, match="num_classes: expected at least 2, got 1"):
        nc.CELoss().at(0.0, 0.0, 1)
    with pytest.raises(ValueError, match="num_classes: expected 2 for the one-logit loss, got 3"):
        nc.BinaryLoss().at(0.0, 0.0, 3)


def test_a_loss_below_its_bound_is_not_contrastive():
    """Rewarding negatives that differ breaks Eq. 9 alone: with equal negatives nothing changes."""

    class Rewarding(nc.CELoss):
        def forward(self, logits, target):
            others = logits.gather(1, (target[:, None] + torch.arange(1, logits.shape[1])) % logits.shape[1])
            return super().forward(logits, target) - 10 * others.std(1)

    check = check_contrastive(Rewarding(), 5)
    assert check == (True, False, True)
    assert not check.holds
