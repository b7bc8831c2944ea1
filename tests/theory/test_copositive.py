"""The maximum of a quadratic form over unit vectors v >= 0."""

from itertools import combinations

import numpy as np
import pytest

from ncollapse.theory import copositive
from ncollapse.theory.copositive import maximise_on_cone


def search(matrix, rng, starts=100):
    """A lower estimate by the power iteration with clipping, from random starts."""
    v = np.abs(rng.standard_normal((starts, len(matrix)))) * (rng.random((starts, len(matrix))) < 0.5)
    v = np.concatenate([v, np.eye(len(matrix))])
    v = v[v.any(axis=1)]
    for _ in range(500):
        step = np.maximum(v @ matrix, 0)
        size = np.linalg.norm(step, axis=1, keepdims=True)
        v = np.where(size > 0, step / np.where(size > 0, size, 1), v)
    return float(np.max(np.einsum("ij,jk,ik->i", v, matrix, v)))


def random_matrix(rng, k):
    factor = rng.standard_normal((k, int(rng.integers(1, k + 1))))
    return factor @ factor.T


@pytest.mark.parametrize("k", [2, 3, 5, 8])
def test_few_rows_are_exact(k):
    rng = np.random.default_rng(k)
    for _ in range(15):
        matrix = random_matrix(rng, k)
        value, v = maximise_on_cone(matrix)
        assert value == pytest.approx(search(matrix, rng), rel=1e-9)
        assert (v >= 0).all()
        assert np.linalg.norm(v) == pytest.approx(1)
        assert v @ matrix @ v == pytest.approx(value, rel=1e-9)


def try_every_support(matrix):
    """The largest top eigenvalue among all principal submatrices with a non-negative top eigenvector."""
    found = max(matrix.diagonal())
    for size in range(2, len(matrix) + 1):
        for support in combinations(range(len(matrix)), size):
            values, vectors = np.linalg.eigh(matrix[np.ix_(support, support)])
            top = vectors[:, -1] if vectors[:, -1].sum() >= 0 else -vectors[:, -1]
            if (top >= -1e-9).all():
                found = max(found, values[-1])
    return found


@pytest.mark.parametrize("kind", ["random", "centred", "collapsed", "uneven"])
def test_supports_that_are_left_out_have_no_larger_maximum(kind):
    """Collapsed gradients give nearly equal, negative products, for which no eigenvalue bound leaves out much."""
    rng = np.random.default_rng(5)
    for k in (4, 6, 8):
        for _ in range(4):
            factor = rng.standard_normal((k, k))
            if kind == "centred":
                factor -= factor.mean(axis=0)
            elif kind != "random":
                factor = np.eye(k) - 1 / k + (0.02 if kind == "collapsed" else 0.1) * factor
                factor *= 1 + (kind == "uneven") * rng.random((k, 1))
            matrix = factor @ factor.T
            assert maximise_on_cone(matrix)[0] == pytest.approx(try_every_support(matrix), rel=1e-12)


@pytest.mark.parametrize("kind", ["random", "centred", "uneven"])
def test_the_supports_alone_find_the_maximum(kind, monkeypatch):
    """Without the local search, which is right so often that the supports are hardly ever needed."""
    monkeypatch.setattr(copositive, "_climb_faces", lambda matrix, row: (matrix[row, row], np.eye(len(matrix))[row]))
    rng = np.random.default_rng(8)
    larger = 0
    for k in (2, 3, 5, 7):
        for _ in range(6):
            factor = rng.standard_normal((k, k))
            if kind != "random":
                factor = factor - factor.mean(axis=0) if kind == "centred" else factor + 2 * rng.random((k, 1))
            matrix = factor @ factor.T
            value, v = maximise_on_cone(matrix)
            assert value == pytest.approx(try_every_support(matrix), rel=1e-12)
            assert (v >= 0).all()
            assert v @ matrix @ v == pytest.approx(value, rel=1e-8)
            larger += value > matrix.diagonal().max() * 1.01
    assert larger > 6


@pytest.mark.parametrize("alone", [0, 1, 2, 3, 5])
def test_the_rows_of_the_largest_entries_may_be_the_wrong_start(alone):
    """Three rows with products of 0.9 reach 2.8; each of the others is opposed to all and has a larger own product."""
    matrix = np.full((3 + alone, 3 + alone), -0.01)
    matrix[:3, :3] = 0.9
    np.fill_diagonal(matrix, [1.0] * 3 + [1.1 + 0.1 * i for i in range(alone)])
    assert np.linalg.eigvalsh(matrix)[0] > 0
    value, v = maximise_on_cone(matrix)
    assert value == pytest.approx(2.8, rel=1e-12)
    assert v == pytest.approx([3**-0.5] * 3 + [0] * alone, abs=1e-9)


def test_an_addition_bounds_the_maximum_whatever_the_vector():
    rng = np.random.default_rng(6)
    exact = 0
    for k in (2, 5, 8):
        for _ in range(20):
            matrix = random_matrix(rng, k)
            v = rng.random(k) * (rng.random(k) < 0.6)
            v = v / np.linalg.norm(v) if v.any() else np.eye(k)[0]
            value = try_every_support(matrix)
            assert copositive._bound_by_addition(matrix, v) >= value * (1 - 1e-12)
            found, best = copositive._climb_faces(matrix, int(rng.integers(k)))
            assert found <= value * (1 + 1e-12)
            exact += copositive._bound_by_addition(matrix, best) <= value * (1 + 1e-12)
    assert exact > 30


def test_nearly_orthogonal_gradients_need_no_enumeration(monkeypatch):
    """Those of a network near its optimum."""
    rng = np.random.default_rng(7)
    monkeypatch.setattr(copositive, "_try_supports", None)
    for _ in range(10):
        factor = np.eye(10) + 0.03 * rng.standard_normal((10, 10))
        matrix = factor @ factor.T
        assert maximise_on_cone(matrix)[0] == pytest.approx(try_every_support(matrix), rel=1e-13)


def test_many_rows_are_bounded(monkeypatch):
    rng = np.random.default_rng(0)
    for k in (4, 9, 16):
        matrix = random_matrix(rng, k)
        exact = maximise_on_cone(matrix)[0] if k <= copositive.ENUMERATED else search(matrix, rng)
        with monkeypatch.context() as patch:
            patch.setattr(copositive, "ENUMERATED", 1)
            value, v = maximise_on_cone(matrix)
        assert value >= exact * (1 - 1e-12)
        assert value <= np.linalg.eigvalsh(matrix)[-1] * (1 + 1e-12)
        assert v @ matrix @ v <= value * (1 + 1e-12)


def test_four_rows_need_no_enumeration(monkeypatch):
    """min over N >= 0 of lambda_max(M + N) is the maximum up to 4 rows (copositive = positive semidefinite + N)."""
    rng = np.random.default_rng(1)
    monkeypatch.setattr(copositive, "ENUMERATED", 1)
    for _ in range(10):
        matrix = random_matrix(rng, 4)
        assert maximise_on_cone(matrix)[0] == pytest.approx(search(matrix, rng), rel=1e-5)


def test_the_two_simple_bounds_can_both_be_loose():
    """lambda_max(M) and lambda_max of M with its negative entries set to 0, what the certificate used before."""
    rng = np.random.default_rng(2)
    loose = 0
    for _ in range(30):
        matrix = random_matrix(rng, 4)
        simple = min(np.linalg.eigvalsh(m)[-1] for m in (matrix, np.maximum(matrix, 0)))
        loose += simple > maximise_on_cone(matrix)[0] * (1 + 1e-6)
    assert loose > 5


@pytest.mark.parametrize("found", [0.0, 0.5])
def test_many_rows_are_bounded_whatever_the_search_finds(found, monkeypatch):
    """The bound is one for itself: a search that finds nothing, or half of the maximum, does not lower it."""
    rng = np.random.default_rng(9)
    monkeypatch.setattr(copositive, "ENUMERATED", 1)
    for k in (3, 4, 6, 8):
        for _ in range(3):
            matrix = random_matrix(rng, k)
            exact = try_every_support(matrix)
            monkeypatch.setattr(copositive, "_climb", lambda m, value=found * exact: (value, np.eye(len(m))[0]))
            value, _ = maximise_on_cone(matrix)
            assert value >= exact * (1 - 1e-12)
            if k <= 4:
                assert value == pytest.approx(exact, rel=1e-4)
