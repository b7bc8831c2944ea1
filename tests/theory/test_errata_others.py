"""Numeric witnesses for the errata of the other papers (rows 15 to 32 and 34 to 36 of the table in docs/theory.md)."""

import json
import math
from importlib.resources import files

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, minimize_scalar

import ncollapse as nc

FOUR = {"num_classes": 4, "per_class": 2, "weight_decay": 1e-2, "feature_decay": 1e-2}
IMBALANCED = {
    "class_counts": [20, 10, 4],
    "weight_decay": 5e-3,
    "feature_decay": 5e-3,
    "bias": False,
    "features": "relu",
}


def test_15_the_scalar_problem_of_lemma_8():
    p = nc.predict("ce", **FOUR)
    k, mu = 4, p.mu
    phi = nc.CELoss().phi

    def least(c):
        options = {"xatol": 1e-12}
        return minimize_scalar(lambda t: phi(t, k) + c * abs(t), bounds=(-90, 0), method="bounded", options=options)

    assert least(k * mu).fun == pytest.approx(0.6419, abs=1e-4)
    assert least((k - 1) * mu).fun == pytest.approx(0.5210, abs=1e-4)
    assert least(mu).fun == pytest.approx(p.objective, abs=1e-12)
    assert p.objective == pytest.approx(0.2221903537, abs=1e-10)
    assert p.gap == pytest.approx(4.2152438945, abs=1e-9)
    assert nc.solve(p.problem, restarts=1).objective == pytest.approx(p.objective, abs=1e-9)


def test_16_the_constant_in_theta():
    k, gamma, t = 10, 2.0, -8.0
    phi, step = nc.FocalLoss(gamma=gamma).phi, 1e-3
    second = (phi(t - step, k) - 2 * phi(t, k) + phi(t + step, k)) / step**2
    xi = 1 + (k - 1) * math.exp(t / (k - 1))

    def formula(constant):
        theta = -math.log(xi) + gamma * math.log(xi) / (xi - 1) + constant
        return gamma * (xi - 1) ** (gamma + 1) / xi ** (gamma + 2) * theta / (k - 1) ** 2

    assert second == pytest.approx(0.0045852, abs=1e-7)
    assert formula(2 + 1 / gamma) == pytest.approx(second, abs=1e-7)
    assert formula(gamma + (gamma + 1) / gamma) == pytest.approx(0.0071483, abs=1e-7)


def test_17_focal_loss_has_a_spurious_local_minimum():
    k, gamma, mu = 100, 2.0, 0.011
    p = nc.predict("focal", num_classes=k, per_class=1, weight_decay=mu, feature_decay=mu, gamma=gamma)
    origin = (1 - 1 / k) ** gamma * math.log(k)
    assert p.objective < origin - 1e-3
    # At W = H = 0 the Hessian is 2 <G, dW dH> + lW |dW|^2 + lH |dH|^2, positive when |G|_2 < sqrt(lW lH).
    logits = torch.zeros(k, k, dtype=torch.float64, requires_grad=True)
    nc.FocalLoss(gamma=gamma)(logits, torch.arange(k)).backward()
    assert float(torch.linalg.matrix_norm(logits.grad, 2)) < mu


def test_18_the_frame_and_the_energies():
    p = nc.predict("ce", **{**FOUR, "feature_decay": 3e-2})
    h, _, w, _ = p.configuration(4)
    frame = np.eye(4) - 1 / 4
    square = float(w[0] @ w[0])
    assert np.allclose(w @ w.T, square * 4 / 3 * frame, atol=1e-12)
    assert not np.allclose(w @ w.T, square * 3 / 4 * frame, atol=1e-2)
    energy = 2 * float(h.square().sum())  # n = 2 copies
    assert energy == pytest.approx(1 / 3 * p.weight_energy)  # lW / lH
    assert torch.allclose(w.T @ w, 3 * 2 * h.T @ h, atol=1e-12)  # W^T W = lH / lW H H^T


def test_19_the_features_of_lemma_9():
    p = nc.predict("ce", **FOUR)
    assert p.feature_energy == pytest.approx(2.23547, abs=1e-5)
    assert p.gap * 3 / 4 == pytest.approx(3.16143, abs=1e-5)  # printed: without n under the root


def test_20_a_critical_point_whose_bias_is_not_constant():
    lw, lh, lb = 1e-2, 2e-2, 0.05

    def place(x):
        u, v, first, second = x
        zero = torch.zeros_like(u)
        w, h = torch.stack((u, -u, zero, zero)), torch.stack((v, -v, zero, zero))
        return w, h, torch.stack((first, first, second, second))

    def value(x, full=False):
        w, h, b = x if full else place(x)
        loss = nc.CELoss()(torch.outer(h, w) - b, torch.arange(4))
        return loss + lw / 2 * (w @ w) + 2 * lh / 2 * (h @ h) + lb / 2 * (b @ b)

    def descend(x):
        x = torch.tensor(x, requires_grad=True)
        f = value(x)
        return float(f.detach()), torch.autograd.grad(f, x)[0].numpy()

    found = minimize(descend, np.array([2.0, 2.0, 0.1, -0.1]), jac=True, method="BFGS", options={"gtol": 1e-12})
    point = [part.detach().requires_grad_() for part in place(torch.tensor(found.x))]
    gradients = torch.autograd.grad(value(point, full=True), point)
    assert max(float(part.abs().max()) for part in gradients) < 1e-7  # critical among all points, not only these
    assert np.allclose(np.abs(point[2].detach().numpy()), 0.658249, atol=1e-5)
    assert point[2][0] * point[2][2] < 0


def test_21_the_sum_is_missing_in_b_1():
    z = torch.tensor([[0.0, 0.0, -20.0, -20.0]], dtype=torch.float64)
    loss = float(nc.CELoss()(z, torch.tensor([0])))
    assert loss < math.log(1 + 3 * math.exp((0.0 - 0.0) / 3))  # as printed, for j = 1
    assert loss >= nc.CELoss().phi(float(z.sum() - 4 * z[0, 0]), 4)


def test_22_the_ratio_of_feature_norms():
    p = nc.predict("ce", **IMBALANCED)
    n, m, h = (20, 10, 4), p.class_gaps, np.square(p.class_norms)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert h[i] / h[j] == pytest.approx(math.sqrt(n[j] / n[i]) * m[i] / m[j], rel=1e-9)
    solution = nc.solve(p.problem, restarts=2)
    norms = np.square(solution.features.norm(dim=1).numpy())
    pairs = {
        (i, j): (norms[i] / norms[j], math.sqrt(n[j] / n[i] * m[i] / m[j]))
        for i in range(3)
        for j in range(3)
        if i != j
    }
    hit = [
        pair for pair, (true, wrong) in pairs.items() if abs(true - 0.562124) < 1e-4 and abs(wrong - 0.501388) < 1e-4
    ]
    assert len(hit) == 1


def test_23_the_gradient_in_h_does_not_vanish():
    p = nc.predict("ce", **IMBALANCED)
    counts = np.array([20.0, 10.0, 4.0])
    solution = nc.solve(p.problem, restarts=2)
    w, features = solution.weight, solution.features.clone().requires_grad_()
    losses = nc.CELoss(reduction="none")(features @ w.T, torch.arange(3))
    weights = torch.tensor(counts)
    f = (weights @ losses) / counts.sum() + 5e-3 / 2 * (weights @ features.square().sum(dim=1))
    (gradient,) = torch.autograd.grad(f, features)
    assert float(gradient.max()) > 0.015
    assert float(gradient.min()) > -1e-7


def test_24_collapsed_classes_have_another_constant():
    p = nc.predict("ce", **{**IMBALANCED, "class_counts": [200, 100, 1], "weight_decay": 2e-2, "feature_decay": 2e-2})
    n, k = np.array([200.0, 100.0, 1.0]), 3
    assert p.class_gaps[2] == 0.0
    constants = np.sqrt(n) / (1 + np.exp(np.array(p.class_gaps)) / (k - 1))
    active = [c for c, gap in zip(constants, p.class_gaps) if gap > 0]
    assert active[0] == pytest.approx(active[1], rel=1e-9)
    assert constants[2] < 0.9 * active[0]


def test_25_the_global_mean_divides_by_the_samples():
    rng = np.random.default_rng(0)
    counts = (5, 2, 1)
    h = rng.standard_normal((8, 3))
    printed = sum(h[i] for i in range(8)) / len(counts)
    assert np.allclose(h.mean(axis=0), printed * 3 / 8)
    assert not np.allclose(h.mean(axis=0), printed)


def test_26_the_sum_below_25_is_over_samples():
    h = {0: np.zeros((2, 3)), 1: np.ones((2, 3))}
    for k in (0, 1):
        assert np.sum(h[k] ** 2) >= np.sum(h[k].sum(axis=0) ** 2) / 2
    assert np.sum(h[0] ** 2) < np.sum((h[0][0] + h[1][0]) ** 2) / 2  # as printed, summed over the classes


def test_27_the_tail_of_15():
    tau, k, d = 0.04, 4, 2

    def value(x):
        w, h = x[: k * d].reshape(k, d), x[k * d :].reshape(d, k)
        r = w @ h - np.eye(k)
        f = 0.5 * np.sum(r**2) + tau / 2 * (np.sum(w**2) + np.sum(h**2))
        return f, np.concatenate([(r @ h.T + tau * w).ravel(), (w.T @ r + tau * h).ravel()])

    rng = np.random.default_rng(0)
    best = min(minimize(value, rng.standard_normal(2 * k * d), jac=True, method="L-BFGS-B").fun for _ in range(5))
    head = d * (0.5 * tau**2 + tau * (1 - tau))
    assert best == pytest.approx(1.0784, abs=1e-6)
    assert head + (k - d) * 0.5 == pytest.approx(best, abs=1e-6)
    assert head + (k - d) == pytest.approx(2.0784)


def test_28_the_threshold_in_10_carries_n():
    problem = nc.Problem("mse", **FOUR, bias=False)
    solution = nc.solve(problem, restarts=1)
    z = (solution.weight @ solution.features.T).repeat_interleave(2, dim=1)
    top = float(torch.linalg.matrix_norm(z, 2))
    assert top == pytest.approx(math.sqrt(2) - 8 * 1e-2, abs=1e-6)
    assert abs(top - (math.sqrt(2) - 1e-2)) > 0.05


def test_29_the_factors_of_lemma_b_4():
    p = nc.predict("mse", **{**FOUR, "feature_decay": 4e-2})
    assert p.phase == "centred"
    assert p.weight_energy == pytest.approx(7.52528, abs=1e-5)
    printed = 4 * (math.sqrt(2) - 8 * math.sqrt(4e-4)) * 3  # (lH / lW) instead of its root
    assert printed == pytest.approx(15.05056, abs=1e-5)


def test_30_the_hessian_in_24():
    rng = np.random.default_rng(0)
    w, h, dw, dh, y = (rng.standard_normal(shape) for shape in ((3, 2), (2, 4), (3, 2), (2, 4), (3, 4)))
    lw, lh, t = 0.1, 0.2, 1e-4

    def f(s):
        ww, hh = w + s * dw, h + s * dh
        return 0.5 * np.sum((ww @ hh - y) ** 2) + lw / 2 * np.sum(ww**2) + lh / 2 * np.sum(hh**2)

    second = (f(t) - 2 * f(0) + f(-t)) / t**2
    right = np.sum((dw @ h + w @ dh) ** 2) + 2 * np.sum((w @ h - y) * (dw @ dh))
    right += lw * np.sum(dw**2) + lh * np.sum(dh**2)
    assert second == pytest.approx(right, rel=1e-5)  # not 2 * second
    alpha = rng.standard_normal(2)
    assert (alpha @ h @ h.T @ alpha).shape == ()  # alpha^T H^T H alpha has no meaning: H^T H is N x N
    with pytest.raises(ValueError, match="mismatch"):
        alpha @ h.T @ h @ alpha


def test_31_only_the_positive_bias_of_lemma_b_3():
    k, c = 4, 0.3

    def smallest(sign):
        return np.linalg.svd(np.eye(k) - sign * c / math.sqrt(k) * np.ones((k, k)), compute_uv=False)[-1]

    assert smallest(+1) == pytest.approx(1 - math.sqrt(k) * c)
    assert smallest(-1) == pytest.approx(1.0)


def test_32_the_targets_in_30():
    k, s, theta, alpha, goal = 5, 1.7, 0.6, 2.0, 3.0
    root = math.sqrt(k * k - 2 * k)
    z = np.array([s * math.cos(theta), s * (root * math.sin(theta) - math.cos(theta)) / (k - 1)] + [0.0] * (k - 2))
    z[2:] = -s * (math.sqrt(k / (k - 2)) * math.sin(theta) + math.cos(theta)) / (k - 1)
    eq_31 = nc.landscape("mse", k, norms=[s], angles=[theta], alpha=alpha, M=goal).value.item()
    head = alpha / 2 * (z[0] - goal) ** 2
    assert head + 0.5 * np.sum(z[1:] ** 2) == pytest.approx(eq_31)
    assert head + 0.5 * np.sum((z[1:] - 1) ** 2) != pytest.approx(eq_31, rel=0.05)


def test_34_equation_35_is_not_the_limit_of_32():
    s, theta = 2.0, 0.7
    sin, cos = math.sin(theta), math.cos(theta)
    printed = math.exp(sin) * (sin - cos) / (math.exp(sin) + math.exp(cos))
    gradients = [nc.landscape("ce", k, norms=[s], angles=[theta]).d_norm.item() for k in (10**3, 10**6, 10**9)]
    assert abs(gradients[2] - gradients[1]) < abs(gradients[1] - gradients[0])
    assert all(abs(g - printed) > 0.3 for g in gradients)
    assert gradients[2] == pytest.approx(-cos, abs=1e-6)  # the K - 2 other logits, of value 0, dominate
    # (33) and (34), for the squared error, are the limits.
    field = nc.landscape("mse", 10**9, norms=[s], angles=[theta], alpha=3.0, M=4.0)
    assert field.d_norm.item() == pytest.approx(s + 2 * s * cos**2 - 12 * cos, rel=1e-6)
    assert field.d_angle.item() == pytest.approx(12 * s * sin - 2 * s * s * sin * cos, rel=1e-6)


def test_35_two_gains_and_a_rounding():
    folder = files("ncollapse.papers") / "published"
    early = json.loads((folder / "bce-vs-ce-early.json").read_text())["entries"]["table-2"]["cells"]
    final = json.loads((folder / "bce-vs-ce.json").read_text())["entries"]["table-1"]["cells"]

    def find(cells, row, column):
        (cell,) = [c for c in cells if c["row"] == row and c["column"] == column]
        return float(cell["mean"])

    for column, wrong, right in (("SGD, DA1, A", 0.21, 0.31), ("SGD, DA1+DA2, A_Uni", 7.85, 7.86)):
        bce, ce, gain = (find(early, f"CIFAR100, D121, {name}", column) for name in ("BCE", "CE", "Delta"))
        assert gain == wrong
        assert bce - ce == pytest.approx(right, abs=1e-9)
    assert find(early, "CIFAR10, D121, CE", "SGD, DA1, A_Uni") == 78.67
    assert find(final, "CIFAR10, D121, CE", "SGD, DA1, A_Uni") == 78.8


def test_36_raising_alpha_does_not_align_the_descent_with_smaller_angles():
    s, theta = np.meshgrid(np.linspace(0.1, 6, 60), np.linspace(0.01, 1.5, 60))

    def gradient(alpha, M):  # (34), as printed
        along = s + (alpha - 1) * s * np.cos(theta) ** 2 - alpha * M * np.cos(theta)
        across = alpha * M * s * np.sin(theta) - (alpha - 1) * s**2 * np.sin(theta) * np.cos(theta)
        return along, across

    shares = {}
    for alpha, M in ((1.0, 1.0), (1.0, 5.0), (5.0, 1.0)):
        along, across = gradient(alpha, M)
        raises = s * np.cos(theta) > alpha * M / (alpha - 1) if alpha > 1 else np.zeros(s.shape, bool)
        assert ((across < 0) == raises).all()
        exact = nc.landscape("mse", 10, norms=s[0], angles=theta[:, 0], alpha=alpha, M=M)
        for weight in (1.0, 1 / s):  # theta as a coordinate, and as an arc
            shares.setdefault((alpha, M), []).append(np.mean(across * weight / np.hypot(along, across * weight)))
        arc = exact.d_angle / s
        shares[alpha, M].append(np.mean(arc / np.hypot(exact.d_norm, arc)))  # at K = 10
    assert all(raised > plain + 0.2 for raised, plain in zip(shares[1.0, 5.0], shares[1.0, 1.0], strict=True))
    assert all(raised < plain - 0.1 for raised, plain in zip(shares[5.0, 1.0], shares[1.0, 1.0], strict=True))
    s, theta = 2.0, math.pi / 2  # where the paper's next sentence is right: (34) is (s, alpha M s)
    field = nc.landscape("mse", 10**9, norms=[s], angles=[theta], alpha=5.0, M=2.0)
    assert (field.d_norm.item(), field.d_angle.item()) == pytest.approx((s, 10 * s), rel=1e-6)
