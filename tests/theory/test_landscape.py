"""The loss over norm and angle, against autograd on real features in front of a real frame."""

import math

import numpy as np
import pytest
import torch

import ncollapse as nc
from ncollapse.frames import simplex_etf
from ncollapse.losses import make_loss
from ncollapse.theory import bias_gradient, score_gradient

LOSSES = [
    ("ce", {}),
    ("ce", {"label_smoothing": 0.2}),
    ("bce", {}),
    ("bce", {"label_smoothing": 0.2}),
    ("focal", {"gamma": 3.0}),
    ("focal", {"gamma": 0.5}),
    ("ls", {"alpha": 0.1}),
    ("mse", {}),
    ("mse", {"alpha": 3.0, "M": 4.0}),
    ("mse", {"kappa": 2.0, "beta": 5.0}),
]


@pytest.mark.parametrize(("name", "params"), LOSSES)
@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_values_and_derivatives_against_autograd(name, params, num_classes):
    scale, bias = 1.7, 0.3
    norms, angles = np.array([0.2, 1.0, 6.0]), np.array([0.0, 0.4, 1.5, 3.0, math.pi])
    field = nc.landscape(name, num_classes, norms=norms, angles=angles, scale=scale, bias=bias, **params)
    w = _unit_frame(num_classes)
    loss = make_loss(name, **params)
    other = w[1] if num_classes > 2 else torch.tensor([0.0, 1.0], dtype=torch.float64)
    across = other - (other @ w[0]) * w[0]
    across = across / across.norm()
    for i, theta in enumerate(angles):
        for j, s in enumerate(norms):
            polar = torch.tensor([s, theta], dtype=torch.float64, requires_grad=True)
            h = polar[0] * (polar[1].cos() * w[0] + polar[1].sin() * across)
            value = loss((scale * w @ h - bias)[None], torch.tensor([0]))
            d_norm, d_angle = torch.autograd.grad(value, polar)[0].tolist()
            assert field.value[i, j] == pytest.approx(float(value.detach()), rel=1e-11, abs=1e-13)
            assert field.d_norm[i, j] == pytest.approx(d_norm, rel=1e-9, abs=1e-11)
            assert field.d_angle[i, j] == pytest.approx(d_angle, rel=1e-9, abs=1e-11)


def test_logits_follow_the_printed_proposition():
    # mse-landscape Eq. 28: the feature in terms of the two rows of the frame.
    k, s, theta = 7, 2.3, 0.8
    w = _unit_frame(k)
    root = math.sqrt(k * k - 2 * k)
    h = s * (math.sin(theta) / root + math.cos(theta)) * w[0] + s * (k - 1) * math.sin(theta) / root * w[1]
    value = float(make_loss("ce")((w @ h)[None], torch.tensor([0])))
    assert nc.landscape("ce", k, norms=[s], angles=[theta]).value.item() == pytest.approx(value, rel=1e-12)


def test_rescaling_turns_the_gradient_towards_the_angle():
    # mse-landscape Sec. 3.3: at theta = pi/2 a larger M makes the angular part of the gradient dominate.
    at = {"norms": [1.0], "angles": [math.pi / 2]}
    shares = []
    for goal in (1.0, 5.0, 20.0):
        field = nc.landscape("mse", 100, alpha=1.0, M=goal, **at)
        shares.append(abs(field.d_angle.item()) / math.hypot(field.d_angle.item(), field.d_norm.item()))
    assert shares[0] < shares[1] < shares[2]
    assert shares[2] > 0.99


@pytest.mark.parametrize("loss", ["ce", "bce"])
def test_score_and_bias_gradients_against_autograd(loss):
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(20, 4, generator=generator, dtype=torch.float64)
    w = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    b = torch.randn(5, generator=generator, dtype=torch.float64, requires_grad=True)
    y = torch.arange(20) % 5
    logits = (h @ w.T - b.detach()).requires_grad_()
    (scores,) = torch.autograd.grad(make_loss(loss, reduction="sum")(logits, y), logits)
    assert np.allclose(score_gradient(loss, logits.detach(), y), scores, atol=1e-14)
    objective = make_loss(loss)(h @ w.T - b, y) + 0.3 / 2 * b.square().sum()
    (slope,) = torch.autograd.grad(objective, b)
    assert np.allclose(bias_gradient(loss, logits.detach(), y, b.detach(), bias_decay=0.3), slope, atol=1e-14)


def test_equal_probabilities_get_equal_pulls_under_ce_only():
    # bce-vs-ce, below Eq. 18: two samples with scores z and z + 3 have the same softmax.
    z = np.array([[2.0, 0.0, -1.0], [5.0, 3.0, 2.0]])
    ce, bce = score_gradient("ce", z, [0, 0]), score_gradient("bce", z, [0, 0])
    assert np.allclose(ce[0], ce[1], atol=1e-15)
    assert abs(bce[1, 0]) < abs(bce[0, 0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_classes": 1}, "num_classes is 1"),
        ({"norms": [-1.0]}, "norms has the value -1"),
        ({"norms": []}, "norms: expected"),
        ({"angles": [math.nan]}, "angles: expected"),
        ({"num_classes": "x"}, "num_classes is 'x'"),
        ({"num_classes": None}, "num_classes is None"),
        ({"scale": 0.0}, "scale is 0.0"),
        ({"scale": None}, "scale: expected a number, got None"),
        ({"bias": math.nan}, "bias: expected a finite number"),
        ({"bias": "x"}, "bias: expected a number, got 'x'"),
        ({"loss": "hinge"}, "hinge"),
        ({"loss": nc.BinaryLoss()}, "one logit a class"),
        ({"loss": nc.CELoss(weight=torch.ones(4))}, "no class weights"),
    ],
)
def test_bad_input_is_explained(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        nc.landscape(**{"loss": "ce", "num_classes": 4, **arguments})


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([-1], "expected integers 0..K-1, got -1"),
        ([1.5], "expected integers"),
        ([3], "expected integers 0..2, got 3"),
        ([0, 1], "2 labels for 1 rows"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels, message):
    for gradient in (score_gradient, lambda *a: bias_gradient(*a, bias=[0.0] * 3)):
        with pytest.raises(ValueError, match=message):
            gradient("bce", [[0.0, 0.0, 0.0]], labels)
    with pytest.raises(ValueError, match="no class weights"):
        score_gradient(nc.CELoss(weight=torch.ones(3)), [[0.0, 0.0, 0.0]], [1])


def _unit_frame(num_classes):
    frame = simplex_etf(num_classes, num_classes, dtype=torch.float64)
    return frame / frame.norm(dim=1, keepdim=True)
