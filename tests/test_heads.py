import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import ncollapse as nc
from ncollapse.frames import etf_gram, frame_distance
from reference.theory import minimise


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def test_bias_is_a_threshold_everywhere():
    h = torch.randn(6, 4)
    linear = torch.nn.Linear(4, 3)
    head = nc.Head.from_linear(linear)
    torch.testing.assert_close(head.logits(h), linear(h))
    assert torch.equal(head.bias, -linear.bias)
    assert not head.weight.requires_grad
    assert (head.num_classes, head.dim) == (3, 4)
    trainable = nc.LinearHead(4, 3)
    torch.testing.assert_close(trainable(h), h @ trainable.weight.T - trainable.bias)
    torch.testing.assert_close(nc.Head.of(trainable).logits(h), trainable(h))
    assert nc.Head.from_linear(torch.nn.Linear(4, 3, bias=False)).bias is None


def test_head_of_takes_every_kind():
    linear, trainable, fixed = torch.nn.Linear(4, 3), nc.LinearHead(4, 3), nc.ETFHead(4, 3, scale=2.0, bias=True)
    assert torch.equal(nc.Head.of(linear).bias, -linear.bias)
    for source in (trainable, fixed, nc.Head(trainable.weight, trainable.bias)):
        head = nc.Head.of(source)
        assert torch.equal(head.weight, source.weight)
        assert torch.equal(head.bias, source.bias)
        assert not head.weight.requires_grad
        assert not head.bias.requires_grad
    pair = nc.Head.of((np.ones((3, 2)), None))
    assert pair.weight.dtype == torch.float64
    assert pair.bias is None
    for source in (torch.nn.Conv2d(1, 1, 1), torch.ones(3, 2), None):
        with pytest.raises(TypeError, match="head: expected a Head, LinearHead, ETFHead"):
            nc.Head.of(source)


def test_head_refuses_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"weight: expected the shape \[K, d\], got \[3\]"):
        nc.Head(torch.ones(3))
    with pytest.raises(ValueError, match=r"bias: expected the shape \[3\] to fit weight, got \[2\]"):
        nc.Head(torch.ones(3, 2), torch.ones(2))


def test_linear_head_starts_uniform_around_the_given_mean():
    head = nc.LinearHead(400, 300, bias_init=10.0)
    bound = 1 / 20
    assert head.weight.abs().max() <= bound
    assert head.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert head.bias.mean().item() == pytest.approx(10.0, abs=0.01)
    assert (head.bias - 10).abs().max() <= bound + 1e-5
    assert head.bias.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)
    assert dict(head.named_parameters()).keys() == {"weight", "bias"}


def test_linear_head_takes_values_a_class():
    for values in ([1.0, 2.0, 3.0], torch.tensor([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0])):
        assert nc.LinearHead(4, 3, bias_init=values).bias.tolist() == [1.0, 2.0, 3.0]


def test_a_number_is_a_number_whatever_its_type():
    for number in (10, np.float32(10.0), torch.tensor(10.0)):
        spread = nc.LinearHead(4, 3, bias_init=number).bias - 10.0
        assert spread.abs().max() <= 0.5
        assert spread.std() > 0


def test_a_head_takes_arrays():
    weight, bias = np.arange(6.0).reshape(2, 3), np.array([1.0, 2.0])
    for head in (nc.Head(weight, bias), nc.Head.of((weight, bias))):
        assert head.logits(torch.ones(3, dtype=torch.float64)).tolist() == [2.0, 10.0]
    assert nc.measure(np.eye(2, 3), np.arange(2), head=nc.Head(weight, bias)).bias.mean == 1.5


def test_prior_gives_the_class_frequencies_at_zero_features():
    counts, h = [60, 30, 10], torch.zeros(1, 4)
    sigmoid = nc.LinearHead(4, 3, bias_init={"prior": counts})(h).sigmoid()
    torch.testing.assert_close(sigmoid, torch.tensor([[0.6, 0.3, 0.1]]))
    for loss, squash in ((nc.BCELoss(), torch.sigmoid), (nc.CELoss(), lambda z: z.softmax(1))):
        head = nc.LinearHead(4, 3, bias_init={"prior": counts}, problem=SimpleNamespace(loss=loss))
        torch.testing.assert_close(squash(head(h)), torch.tensor([[0.6, 0.3, 0.1]]))
    balanced = nc.LinearHead(4, 10, bias_init={"prior": [5] * 10})
    torch.testing.assert_close(balanced.bias.detach(), torch.full((10,), math.log(9)))


def test_theory_sets_the_predicted_bias():
    decays = {"weight_decay": 5e-4, "feature_decay": 5e-4, "bias_decay": 0.0}
    problem = nc.Problem("bce", num_classes=10, per_class=12.8, **decays)
    head = nc.LinearHead(16, 10, bias_init="theory", problem=problem)
    mu = math.sqrt(12.8) * 5e-4
    expected = (9 * math.log(1 / mu - 1) - math.log(1 / (9 * mu) - 1)) / 10
    assert head.bias.tolist() == pytest.approx([expected] * 10, rel=1e-6)


@pytest.mark.parametrize(("dim", "features"), [(2, "free"), (3, "relu")])
def test_theory_in_few_dimensions_is_the_bias_of_the_lowest_minimum(dim, features):
    decays = {"weight_decay": 5e-3, "feature_decay": 5e-3, "bias_decay": 5e-4}
    problem = nc.Problem("bce", num_classes=6, per_class=1, features=features, **decays)
    head = nc.LinearHead(dim, 6, bias_init="theory", problem=problem)
    lw, lh, lb = decays.values()
    best = minimise("bce", [1] * 6, lw, lh, lb, relu=features == "relu", dim=dim, restarts=12)
    assert head.bias.tolist() == pytest.approx([best["bias"]] * 6, rel=1e-5)
    wide = nc.LinearHead(6, 6, bias_init="theory", problem=problem)
    assert abs(wide.bias[0].item() - best["bias"]) > 0.05, (
        "the formula for as many dimensions as classes would be wrong"
    )
    again = nc.LinearHead(dim, 6, bias_init="theory", problem=problem.replace(dim=dim))
    assert torch.equal(again.bias, head.bias)


def test_theory_in_few_dimensions_is_not_sought_for_ever():
    problem = nc.Problem("bce", num_classes=101, per_class=1, weight_decay=5e-3, feature_decay=5e-3)
    with pytest.raises(ValueError, match=r"101 classes in 5 dimensions.* for up to 100 classes"):
        nc.LinearHead(5, 101, bias_init="theory", problem=problem)
    uneven = nc.Problem("bce", class_counts=[5, 3, 1], weight_decay=5e-3, feature_decay=5e-3)
    with pytest.raises(ValueError, match="no closed form is known for bce with unequal"):
        nc.LinearHead(2, 3, bias_init="theory", problem=uneven)


def test_theory_of_another_number_of_classes_is_refused():
    problem = nc.Problem("bce", num_classes=10, per_class=12.8, weight_decay=5e-4, feature_decay=5e-4)
    for head in (nc.LinearHead, nc.ETFHead):
        with pytest.raises(ValueError, match="problem has num_classes=10, but the head num_classes=5"):
            head(16, 5, bias=True, bias_init="theory", problem=problem)


@pytest.mark.parametrize(
    ("dim", "num_classes", "message"),
    [(0, 3, "dim: expected at least 1, got 0"), (4, 1, "num_classes: expected at least 2, got 1")],
)
def test_a_head_of_no_dimension_or_one_class_is_refused(dim, num_classes, message):
    with pytest.raises(ValueError, match=message):
        nc.LinearHead(dim, num_classes)


def test_head_without_bias():
    head = nc.LinearHead(4, 3, bias=False)
    h = torch.randn(2, 4)
    assert head.bias is None
    torch.testing.assert_close(head(h), h @ head.weight.T)
    assert nc.Head.of(head).bias is None


@pytest.mark.parametrize("head", [nc.LinearHead, nc.ETFHead])
def test_sizes_are_whole_numbers(head):
    for sizes, name in ((("4", 3), "dim"), ((4.5, 3), "dim"), ((4, "3"), "num_classes"), ((4, 2.5), "num_classes")):
        with pytest.raises(TypeError, match=f"^{name}: expected a whole number, got"):
            head(*sizes)
    with pytest.raises(ValueError, match="num_classes: expected at least 2, got 1"):
        head(4, 1)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"bias": False, "bias_init": 1.0}, "needs a bias, but bias=False"),
        ({"bias_init": "zero"}, "'theory', got 'zero'"),
        ({"bias_init": None}, "'theory', got None"),
        ({"bias_init": "theory"}, "bias_init='theory' needs a problem"),
        ({"bias_init": [1.0, 2.0]}, "one number for each of 3 classes"),
        ({"bias_init": float("nan")}, "bias_init: expected a finite number, got nan"),
        ({"bias_init": torch.tensor(float("nan"))}, "bias_init: expected finite numbers, got nan"),
        ({"bias_init": [1.0, 2.0, float("inf")]}, "bias_init: expected finite numbers, got"),
        ({"bias_init": {"prior": [1, 2]}}, "bias_init: expected 3 numbers > 0 as the prior"),
        ({"bias_init": {"prior": [1, 0, 2]}}, "bias_init: expected 3 numbers > 0 as the prior"),
        ({"bias_init": {"counts": [1, 1, 2]}}, "got keys \\['counts'\\]"),
    ],
)
def test_bad_bias_init_is_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        nc.LinearHead(4, 3, **kwargs)


@pytest.mark.parametrize(("dim", "K"), [(2, 3), (3, 3), (9, 10), (64, 10), (1, 2)])
def test_etf_head_is_a_fixed_simplex_etf(dim, K):
    head = nc.ETFHead(dim, K, scale=3.0)
    assert frame_distance(head.weight, etf_gram(K)) < 1e-6
    torch.testing.assert_close(head.weight.norm(dim=1), torch.full((K,), 3.0))
    assert list(head.parameters()) == []
    h = torch.randn(5, dim)
    torch.testing.assert_close(head(h), h @ head.weight.T)


def test_etf_head_uses_all_dimensions_and_keeps_its_frame():
    head, other = nc.ETFHead(32, 4), nc.ETFHead(32, 4)
    assert (head.weight.norm(dim=0) > 0).all()
    assert not torch.equal(head.weight, other.weight)
    other.load_state_dict(head.state_dict())
    assert torch.equal(head.weight, other.weight)


def test_etf_head_trains_only_what_is_asked():
    head = nc.ETFHead(8, 4, scale=2.0, learnable_scale=True, bias=True)
    assert dict(head.named_parameters()).keys() == {"scale", "bias"}
    nc.CELoss()(head(torch.randn(5, 8)), torch.arange(5) % 4).backward()
    assert head.scale.grad != 0
    assert head.bias.grad.any()
    with pytest.raises(ValueError, match="dim: expected at least num_classes - 1 = 3"):
        nc.ETFHead(2, 4)
    with pytest.raises(ValueError, match="scale: expected a finite number > 0, got 0"):
        nc.ETFHead(4, 4, scale=0)


def test_etf_thresholds_start_where_they_are_told():
    assert nc.ETFHead(8, 4, bias=True).bias.tolist() == [0.0] * 4
    assert nc.ETFHead(8, 4, bias=True, bias_init=6.0).bias.tolist() == [6.0] * 4
    assert nc.ETFHead(8, 4, bias=True, bias_init=[1.0, 2.0, 3.0, 4.0]).bias.tolist() == [1.0, 2.0, 3.0, 4.0]
    torch.manual_seed(3)
    plain = nc.ETFHead(8, 4).frame
    torch.manual_seed(3)
    assert torch.equal(nc.ETFHead(8, 4, bias=True, bias_init=6.0).frame, plain)
    with pytest.raises(ValueError, match=r"bias_init=6\.0 needs a bias, but bias=False"):
        nc.ETFHead(8, 4, bias_init=6.0)


def test_decay_sums_the_three_terms_over_the_batch():
    head, h = nc.LinearHead(4, 3, bias_init=2.0).double(), torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    expected = 0.0
    for strength, part in ((0.1, head.weight), (0.02, h), (0.3, head.bias)):
        expected += strength / 2 * sum(value**2 for value in part.flatten().tolist())
    got = nc.decay(head, h, weight_decay=0.1, feature_decay=0.02, bias_decay=0.3)
    assert got.item() == pytest.approx(expected, rel=1e-12)
    got.backward()
    torch.testing.assert_close(h.grad, 0.02 * h.detach())
    torch.testing.assert_close(head.weight.grad, 0.1 * head.weight.detach())
    torch.testing.assert_close(head.bias.grad, 0.3 * head.bias.detach())


@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_decays_are_not_negative(value):
    for name in ("weight_decay", "feature_decay", "bias_decay"):
        with pytest.raises(ValueError, match=f"{name}: expected a finite number >= 0"):
            nc.decay(nc.LinearHead(4, 3), torch.ones(2, 4), **{name: value})


def test_features_in_the_place_of_the_head_are_named():
    with pytest.raises(TypeError, match=r"^head: expected a Head, .* got Tensor$"):
        nc.decay(torch.ones(4, 3), nc.LinearHead(3, 2), weight_decay=1.0, feature_decay=1.0)


def test_decay_of_other_heads_and_in_half_precision():
    linear = torch.nn.Linear(4, 3)
    expected = nc.decay(nc.Head.from_linear(linear), None, weight_decay=0.1, bias_decay=0.2)
    torch.testing.assert_close(nc.decay(linear, weight_decay=0.1, bias_decay=0.2).detach(), expected)
    fixed = nc.ETFHead(8, 4, scale=3.0)
    assert nc.decay(fixed, None, weight_decay=2.0, bias_decay=1.0).item() == pytest.approx(36.0, rel=1e-5)
    big = torch.full((64, 4), 300.0, dtype=torch.float16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = nc.decay(linear, big, feature_decay=2.0)
    assert value.item() == 64 * 4 * 90000
    assert nc.decay(linear).item() == 0.0
    with pytest.raises(ValueError, match=r"features are needed for feature_decay=0\.1"):
        nc.decay(linear, feature_decay=0.1)


def test_repr_names_the_sizes():
    assert repr(nc.LinearHead(4, 3)) == "LinearHead(dim=4, num_classes=3, bias=True)"
    assert repr(nc.ETFHead(4, 3)) == "ETFHead(dim=4, num_classes=3, learnable_scale=False)"


@pytest.mark.parametrize("start", [{"prior": [1, 2, 3]}, "theory"])
def test_the_name_of_a_loss_is_no_problem(start):
    with pytest.raises(TypeError, match="problem: expected a Problem, got str"):
        nc.LinearHead(4, 3, bias_init=start, problem="ce")
