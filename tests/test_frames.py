import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ncollapse.frames import (
    etf_gram,
    frame_distance,
    general_orthogonal_frame,
    general_orthogonal_gram,
    gram_distance,
    low_rank_etf,
    nearest_low_rank_gram,
    orthogonal_frame,
    orthogonal_gram,
    simplex_etf,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("seed", [None, 3], ids=["axes", "rotated"])
@pytest.mark.parametrize(
    ("K", "dim"), [(2, 1), (2, 4), (3, 2), (4, 3), (5, 9), (10, 9), (10, 10), (101, 100), (100, 256)]
)
def test_simplex_etf_has_equal_norms_and_angles(K, dim, seed):
    frame = simplex_etf(K, dim, generator=None if seed is None else generator(seed))
    assert frame.shape == (K, dim)
    for i, j in itertools.islice(itertools.combinations_with_replacement(range(K), 2), 400):
        expected = 1.0 if i == j else -1.0 / (K - 1)
        assert torch.dot(frame[i], frame[j]).item() == pytest.approx(expected, abs=1e-13)
    assert frame.sum(0).abs().max() < 1e-12
    assert frame_distance(frame, etf_gram(K)) < 1e-13


def test_simplex_etf_defaults_to_the_smallest_space_and_turns_with_the_generator():
    assert simplex_etf(6).shape == (6, 5)
    assert torch.equal(simplex_etf(4, 8, generator=generator(1)), simplex_etf(4, 8, generator=generator(1)))
    assert not torch.allclose(simplex_etf(4, 8, generator=generator(1)), simplex_etf(4, 8, generator=generator(2)))
    assert simplex_etf(4, dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize("K", [4, 5, 7, 10])
def test_low_rank_etf_is_a_scaled_projection_without_mean(K):
    for dim in range(1, K - 1):
        frame = low_rank_etf(K, dim, generator=generator())
        gram = frame @ frame.T * (K - 1) / K
        torch.testing.assert_close(gram @ gram, gram)
        assert gram.trace().item() == pytest.approx(dim)
        assert gram.sum(1).abs().max() < 1e-12
        # No rank-d matrix is nearer to the ETF's Gram matrix than the truncated spectrum (Eckart-Young).
        ideal = torch.eye(K, dtype=torch.float64) - 1 / K
        assert torch.linalg.norm(gram - ideal).item() == pytest.approx(math.sqrt(K - 1 - dim))
        norms = frame.norm(dim=1)
        if dim % 2 == 0 or K % 2 == 0:
            torch.testing.assert_close(norms, norms.mean().expand(K))
        assert frame_distance(frame, nearest_low_rank_gram(frame, dim)) < 1e-12
    assert torch.equal(low_rank_etf(K, K + 1), simplex_etf(K, K + 1))


def test_orthogonal_frames():
    frame = orthogonal_frame(4, 7, generator=generator())
    torch.testing.assert_close(frame @ frame.T, torch.eye(4, dtype=torch.float64))
    assert frame_distance(frame, orthogonal_gram(4)) < 1e-14
    centred = frame - frame.mean(0)
    assert frame_distance(centred, etf_gram(4)) < 1e-14
    lengths = [3.0, 1.0, 0.0]
    general = general_orthogonal_frame(lengths, 5, generator=generator())
    torch.testing.assert_close(general @ general.T, torch.diag(torch.tensor([9.0, 1.0, 0.0], dtype=torch.float64)))
    assert frame_distance(general, general_orthogonal_gram(lengths)) < 1e-14
    assert general_orthogonal_frame(torch.tensor(lengths)).shape == (3, 3)


@pytest.mark.parametrize("K", [2, 3, 10])
def test_ideal_grams_have_norm_one(K):
    lengths = torch.arange(1.0, K + 1)
    for gram in (etf_gram(K), orthogonal_gram(K), general_orthogonal_gram(lengths)):
        assert torch.linalg.norm(gram).item() == pytest.approx(1.0, abs=1e-14)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), scale=st.floats(1e-6, 1e6), K=st.integers(2, 8), dim=st.integers(1, 12))
def test_distance_ignores_scale_and_rotation(seed, scale, K, dim):
    vectors = torch.randn(K, dim, generator=generator(seed), dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(dim, dim, generator=generator(seed + 1), dtype=torch.float64)).Q
    plain, turned = (frame_distance(v, etf_gram(K)) for v in (vectors, scale * vectors @ rotation))
    torch.testing.assert_close(plain, turned, rtol=1e-9, atol=1e-12)


def test_nearest_low_rank_gram_is_nearer_than_any_other_projection():
    for seed in range(5):
        vectors = torch.randn(6, 3, generator=generator(seed), dtype=torch.float64)
        best = frame_distance(vectors, nearest_low_rank_gram(vectors, 3)).item()
        for trial in range(200):
            raw = torch.randn(6, 3, generator=generator(1000 + trial), dtype=torch.float64)
            basis = torch.linalg.qr(raw - raw.mean(0)).Q
            assert best <= frame_distance(vectors, basis @ basis.T / math.sqrt(3)).item()
    torch.testing.assert_close(nearest_low_rank_gram(vectors, 5), etf_gram(6))


def test_distance_of_a_known_pair_and_of_nothing():
    ortho = frame_distance(orthogonal_frame(4).float(), etf_gram(4))
    # <I/2, (I - J/4)/sqrt 3> = 3/(2 sqrt 3), so the squared distance is 2 - sqrt 3.
    assert ortho.item() == pytest.approx(math.sqrt(2 - math.sqrt(3)), rel=1e-12)
    assert torch.isnan(frame_distance(torch.zeros(3, 4), etf_gram(3)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: simplex_etf(1), "num_classes: expected at least 2, got 1"),
        (lambda: low_rank_etf(1, 1), "num_classes: expected at least 2, got 1"),
        (lambda: orthogonal_frame(1), "num_classes: expected at least 2, got 1"),
        (lambda: etf_gram(1), "num_classes: expected at least 2, got 1"),
        (lambda: orthogonal_gram(1), "num_classes: expected at least 2, got 1"),
        (lambda: simplex_etf(5, 3), r"dim: expected at least num_classes - 1 = 4 .* got 3; low_rank_etf"),
        (lambda: low_rank_etf(5, 0), "dim: expected at least 1, got 0"),
        (lambda: orthogonal_frame(5, 4), "dim: expected at least the number of classes 5"),
        (lambda: general_orthogonal_frame([1.0, -1.0]), "lengths: expected finite numbers >= 0"),
        (lambda: general_orthogonal_frame([1.0]), "lengths: expected one number"),
        (lambda: frame_distance(torch.ones(3), etf_gram(3)), r"vectors: expected the shape \[K, d\]"),
        (lambda: frame_distance(torch.ones(3, 2), etf_gram(4)), r"gram: expected the shape \[3, 3\]"),
        (lambda: nearest_low_rank_gram(torch.ones(3, 2), 3), "rank: expected a value between 1 and K - 1 = 2, got 3"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_distance_of_a_product_that_is_not_symmetric():
    product = torch.tensor([[2.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    expected = math.sqrt(sum((a / math.sqrt(6) - b) ** 2 for a, b in zip([2, 0, 1, 1], [0.5, -0.5, -0.5, 0.5])))
    assert gram_distance(product, etf_gram(2)).item() == pytest.approx(expected, rel=1e-14)
    assert gram_distance(torch.zeros(2, 2), etf_gram(2)).isnan()
