"""What certified gaps are turned into geometry with, against brute force: least costs of an error, least curvatures.

The cost of logits z beside a prototype z0 is the Bregman divergence L(z) - L(z0) - L'(z0) (z - z0).
"""

import numpy as np
import pytest
import torch
from scipy.optimize import brentq, minimize

from ncollapse.losses import make_loss

K = 4
CASES = {
    "ce": ("ce", {}),
    "ls": ("ls", {"alpha": 0.1}),
    "bce": ("bce", {}),
    "bce smoothed": ("bce", {"label_smoothing": 0.2}),
    "mse": ("mse", {}),
    "mse scaled": ("mse", {"alpha": 3.0, "M": 4.0}),
    "mse mean": ("mse", {"kappa": 1.5, "beta": 2.0, "class_reduction": "mean"}),
}
SEPARABLE = [name for name in CASES if not name.startswith(("ce", "ls"))]


class Case:
    """A prototype for each class, whose own logit is usually the largest."""

    def __init__(self, name, seed=0):
        kind, params = CASES[name]
        self.plain = make_loss(kind, reduction="none", **params)
        self.form = make_loss(kind, **params).convex_form(np.eye(K))
        rng = np.random.default_rng(seed)
        self.prototypes = rng.normal(size=(K, K)) + 2.0 * np.eye(K)
        self.slopes = self.evaluate(self.prototypes)[1]

    def evaluate(self, z):
        leaf = torch.tensor(z, requires_grad=True)
        value = self.plain(leaf, torch.arange(K))
        value.sum().backward()
        return value.detach().numpy(), leaf.grad.numpy()

    def cost(self, row, z):
        """The divergence of logits z [K] of class `row`, and its gradient."""
        table = self.prototypes.copy()
        table[row] = z
        (value, slope), base = self.evaluate(table), self.evaluate(self.prototypes)[0]
        return value[row] - base[row] - self.slopes[row] @ (z - self.prototypes[row]), slope[row] - self.slopes[row]

    def least(self, row, lift):
        """The least cost over z = lift(x), a linear map given as a matrix and a shift."""
        matrix, shift = lift
        start = np.linalg.lstsq(matrix, self.prototypes[row] - shift, rcond=None)[0]

        def work(x):
            value, slope = self.cost(row, matrix @ x + shift)
            return value, matrix.T @ slope

        return minimize(work, start, jac=True, method="BFGS", options={"gtol": 1e-10}).fun


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", CASES)
def test_the_least_cost_of_a_confusion(name, seed):
    """Over all logits at which some other class has as large a one as the own; 0 where the prototype is such."""
    case = Case(name, seed)
    found = case.form.confusion_cost(case.slopes)
    for row in range(K):
        costs = []
        for other in set(range(K)) - {row}:
            matrix = np.delete(np.eye(K), other, axis=1)
            matrix[other, list(np.delete(np.arange(K), other)).index(row)] = 1.0  # z_other = z_row
            wrong = case.prototypes[row, other] >= case.prototypes[row, row]
            costs.append(0.0 if wrong else case.least(row, (matrix, np.zeros(K))))
        assert found[row] == pytest.approx(min(costs), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("threshold", [-0.7, 0.4, 1.1])
@pytest.mark.parametrize("name", SEPARABLE)
def test_the_least_cost_of_a_score_on_the_wrong_side(name, threshold):
    case = Case(name, 3)
    found = case.form.threshold_cost(case.slopes, threshold)
    for row in range(K):
        costs = []
        for place in range(K):
            shift, z = threshold * np.eye(K)[place], case.prototypes[row, place]
            wrong = z <= threshold if place == row else z >= threshold
            costs.append(0.0 if wrong else case.least(row, (np.delete(np.eye(K), place, axis=1), shift)))
        assert found[row] == pytest.approx(min(costs), rel=1e-6, abs=1e-9)


def test_differences_of_logits_know_no_threshold():
    for name in set(CASES) - set(SEPARABLE):
        case = Case(name)
        assert case.form.threshold_cost(case.slopes, 0.3) is None


@pytest.mark.parametrize("budget", [1e-4, 0.02, 0.5])
@pytest.mark.parametrize("name", CASES)
def test_the_least_curvature_within_a_budget(name, budget):
    """It is reached by moving one logit as far as the budget allows; for CE it is a bound on centred directions."""
    case = Case(name, 4)
    least, ends = case.form.least_curvature(case.slopes, budget), []
    for row in range(K):
        for place in range(K):
            for side in (-1.0, 1.0):

                def spare(step, row=row, place=place, side=side):
                    return case.cost(row, case.prototypes[row] + side * step * np.eye(K)[place])[0] - budget

                if spare(60.0) > 0:
                    ends.append((row, case.prototypes[row] + side * brentq(spare, 0.0, 60.0) * np.eye(K)[place]))
    if name in SEPARABLE:
        curvatures = [np.linalg.eigvalsh(bend(case, row, z)).min() for row, z in ends]
        assert least == pytest.approx(min(curvatures), rel=1e-5)
    else:
        chances = [np.exp(z - np.logaddexp.reduce(z)).min() for _, z in ends]
        assert least == pytest.approx(min(chances), rel=1e-5)
        centred = [np.linalg.eigvalsh(bend(case, row, z) + np.full((K, K), 1.0))[0] for row, z in ends]
        assert min(centred) >= least


def bend(case, row, z):
    """The Hessian at the logits of one class."""
    table = np.broadcast_to(z, (K, K)).copy()
    return torch.autograd.functional.hessian(
        lambda x: case.plain(x[None].expand(K, K), torch.arange(K))[row], torch.from_numpy(table[row])
    ).numpy()


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("name", CASES)
def test_prototypes_follow_from_slopes_for_any_number_of_groups(name, rows):
    """Some classes may have no group and others several; losses of differences know a logit up to a common shift."""
    kind, params = CASES[name]
    rng = np.random.default_rng(rows)
    labels, z = rng.integers(K, size=rows), rng.normal(size=(rows, K))
    leaf = torch.tensor(z, requires_grad=True)
    value = make_loss(kind, reduction="none", **params)(leaf, torch.from_numpy(labels))
    value.sum().backward()
    slopes = leaf.grad.numpy()
    form = make_loss(kind, **params).convex_form(np.eye(K)[labels])
    found = form.invert(slopes)
    shift = np.zeros(rows) if name in SEPARABLE else (found - z)[:, 0]
    assert found - shift[:, None] == pytest.approx(z, abs=1e-9)
    young = value.detach().numpy() + form.conjugate(slopes) - (slopes * z).sum(axis=1)
    assert young == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("name", SEPARABLE)
def test_levels_are_roots_and_change_as_their_derivative_says(name):
    """beta = ((K - 1) v'(t) - (-u'(t))) / K at a common logit t, from the loss's own slopes."""
    kind, params = CASES[name]
    loss = make_loss(kind, **params)
    form, plain = loss.separable_form(K), make_loss(kind, reduction="none", **params)
    for t in (-0.8, 0.0, 0.3):
        leaf = torch.full((1, K), t, dtype=torch.float64, requires_grad=True)
        plain(leaf, torch.tensor([0])).sum().backward()
        p, q = -leaf.grad[0, 0].item(), leaf.grad[0, 1].item()
        beta = ((K - 1) * q - p) / K
        assert form.level(beta, K) == pytest.approx(t, abs=1e-9)
        assert form.total(t) == pytest.approx(p + q, rel=1e-12)
        step = 1e-6
        slope = (form.level(beta + step, K) - form.level(beta - step, K)) / (2 * step)
        assert form.d_level(beta, K) == pytest.approx(slope, rel=1e-6)
        assert (form.positive(p), form.negative(q)) == pytest.approx((t, t), abs=1e-9)
