"""What every loss must do, whatever its formula."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ncollapse as nc
from ncollapse.losses.forms import unreduced
from reference import losses as twin
from reference.loss_cases import CASES, Case, make_batch

every_loss = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
index_and_soft = pytest.mark.parametrize("soft", [False, True], ids=["index", "soft"])
REDUCTIONS = ("none", "sum", "mean")


def twin_values(case: Case, z, rows):
    return [case.value(a, b) for a, b in zip(z.double().tolist(), rows.double().tolist())]


def twin_gradients(case: Case, z, rows):
    return torch.tensor(
        [case.gradient(a, b) for a, b in zip(z.double().tolist(), rows.double().tolist())], dtype=torch.float64
    )


def test_negative_and_complex_soft_targets_are_refused():
    with pytest.raises(ValueError, match="soft target must not be negative, got -1"):
        nc.CELoss()(torch.randn(2, 3), torch.tensor([[2.0, -1.0, 0.0], [1.0, 0.0, 0.0]]))
    with pytest.raises(TypeError, match=r"target: expected real numbers in the shape \[B, K\], got torch.complex64"):
        nc.CELoss()(torch.randn(2, 3), torch.ones(2, 3, dtype=torch.complex64))


@every_loss
@index_and_soft
def test_value_and_gradient_equal_the_twin(case, soft):
    z, target, rows = make_batch(case, soft=soft)
    z.requires_grad_()
    values = case.make(reduction="none")(case.logits(z), target)
    (gradient,) = torch.autograd.grad(values.sum(), z)
    torch.testing.assert_close(values.tolist(), twin_values(case, z.detach(), rows), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(gradient, twin_gradients(case, z.detach(), rows), rtol=1e-11, atol=1e-13)


@every_loss
@index_and_soft
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_reductions_and_class_weights(case, soft, reduction, weighted):
    z, target, rows = make_batch(case, soft=soft)
    weight = [0.5 * k for k in range(case.num_classes)] if weighted else None  # a weight may be 0
    expected = twin.reduce(twin_values(case, z, rows), rows.tolist(), weight or [1.0] * case.num_classes, reduction)
    got = case.make(weight=weight, reduction=reduction)(case.logits(z), target)
    torch.testing.assert_close(got.tolist(), expected, rtol=1e-12, atol=1e-13)
    tensor = None if weight is None else torch.tensor(weight, dtype=z.dtype)
    by_function = case.function(case.logits(z), target, **case.params, weight=tensor, reduction=reduction)
    assert torch.equal(by_function, got)


@every_loss
@index_and_soft
def test_gradcheck(case, soft):
    z, target, _ = make_batch(case, 3, soft=soft)
    weight = torch.linspace(0.5, 2.0, case.num_classes, dtype=torch.float64)
    loss = case.make(weight=weight).double()
    z.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss(case.logits(x), target), (z,))
    assert torch.autograd.gradgradcheck(lambda x: loss(case.logits(x), target), (z,))


@every_loss
@pytest.mark.parametrize("size", [0.0, 12.0, 20.0, 30.0, 89.0, 100.0, 1e3, 1e4])
def test_float32_is_exact_at_large_logits(case, size):
    """Right and wrong samples with the target logit far from the rest, and with another logit far away."""
    K = case.num_classes
    z = torch.zeros(4, K)
    z[0, 0], z[1, 0] = size, -size
    z[2, :], z[2, 0] = -size, size / 2
    z[3, K - 1] = size
    target = torch.zeros(4, dtype=torch.long)
    rows = torch.nn.functional.one_hot(target, K).double()
    for given_target in (target, rows.float()):
        x = z.clone().requires_grad_()
        values = case.make(reduction="none")(case.logits(x), given_target)
        (gradient,) = torch.autograd.grad(values.sum(), x)
        expected = torch.tensor(twin_values(case, z, rows), dtype=torch.float64)
        torch.testing.assert_close(values.detach().double(), expected, rtol=3e-5, atol=1e-36)
        torch.testing.assert_close(gradient.double(), twin_gradients(case, z, rows), rtol=3e-5, atol=1e-36)


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(case, dtype):
    z, target, _ = make_batch(case, dtype=torch.float32, scale=20.0)
    narrow = case.logits(z).to(dtype)
    loss = case.make()
    got = loss(narrow, target)
    assert got.dtype == torch.float32
    assert torch.equal(got, loss(narrow.float(), target))
    with torch.autocast("cpu", dtype=dtype):
        leaf = narrow.clone().requires_grad_()
        under = loss(leaf, target)
    assert torch.equal(under, got)
    under.backward()
    wide = narrow.float().requires_grad_()
    loss(wide, target).backward()
    assert leaf.grad.dtype == dtype
    assert torch.equal(leaf.grad, wide.grad.to(dtype))


@every_loss
def test_autocast_of_float32_logits_changes_nothing(case):
    z, target, rows = make_batch(case, dtype=torch.float32)
    loss = case.make(weight=[1.0 + k for k in range(case.num_classes)])
    for aim in (target, rows):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            under = loss(case.logits(z), aim)
        assert torch.equal(under, loss(case.logits(z), aim))


@every_loss
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_any_integer_dtype_is_an_index(case, dtype):
    z, target, _ = make_batch(case)
    loss = case.make(weight=[1.0 + k for k in range(case.num_classes)])
    assert torch.equal(loss(case.logits(z), target.to(dtype)), loss(case.logits(z), target))


@every_loss
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_renaming_the_classes_changes_nothing(case, seed):
    z, target, _ = make_batch(case, seed=seed)
    if case.cls is nc.BinaryLoss:
        renamed, names = z.flip(1), torch.tensor([1, 0])
    else:
        names = torch.randperm(case.num_classes, generator=torch.Generator().manual_seed(seed))
        renamed = torch.empty_like(z)
        renamed[:, names] = z
    loss = case.make(reduction="none")
    torch.testing.assert_close(
        loss(case.logits(renamed), names[target]), loss(case.logits(z), target), rtol=1e-12, atol=1e-13
    )


@every_loss
@settings(max_examples=15, deadline=None)
@given(shift=st.floats(-50, 50).filter(lambda s: abs(s) > 0.1), seed=st.integers(0, 10_000))
def test_contrastive_losses_and_no_others_ignore_a_shift_of_all_logits(case, shift, seed):
    z, target, _ = make_batch(case, seed=seed)
    loss = case.make(reduction="none")
    moved, stayed = loss(case.logits(z + shift), target), loss(case.logits(z), target)
    assert torch.allclose(moved, stayed, rtol=1e-9, atol=1e-10) == loss.contrastive


@every_loss
def test_convexity_is_told_truly(case):
    """On random segments a convex loss never lies above its chord; the others do somewhere."""
    generator = torch.Generator().manual_seed(1)
    a, b = (6.0 * torch.randn(4000, case.num_classes, generator=generator, dtype=torch.float64) for _ in range(2))
    target = torch.zeros(4000, dtype=torch.long)
    loss = case.make(reduction="none")
    chord = (loss(case.logits(a), target) + loss(case.logits(b), target)) / 2
    below = loss(case.logits((a + b) / 2), target) <= chord + 1e-9
    assert bool(below.all()) == loss.convex


@every_loss
def test_no_value_of_a_tensor_is_read_outside_the_cpu(case):
    """On the meta device reading a value is an error, as waiting for one would be a stall on a GPU."""
    z = torch.zeros(4, case.num_classes, device="meta", requires_grad=True)
    weight = torch.ones(case.num_classes, device="meta")
    for target in (torch.zeros(4, dtype=torch.long, device="meta"), torch.zeros(4, case.num_classes, device="meta")):
        value = case.function(case.logits(z), target, **case.params, weight=weight)
        value.backward()
        assert value.shape == ()
        assert z.grad.shape == z.shape


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.id in {"ce", "bce", "focal-0.3", "ls", "mse", "binary"}], ids=lambda case: case.id
)
def test_compiles_to_one_graph(case):
    z, target, rows = make_batch(case, dtype=torch.float32)
    loss = case.make()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=False)
    for aim in (target, rows):
        torch.testing.assert_close(compiled(case.logits(z), aim), loss(case.logits(z), aim))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_loss
def test_can_be_captured_in_a_cuda_graph(case):
    z, target, _ = make_batch(case, dtype=torch.float32)
    x, y = case.logits(z).cuda().requires_grad_(), target.cuda()
    loss = case.make(weight=[1.0 + k for k in range(case.num_classes)]).cuda()
    expected = torch.autograd.grad(loss(x, y), x)[0]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = torch.autograd.grad(loss(x, y), x)[0]
    graph.replay()
    assert torch.equal(captured, expected)


@every_loss
def test_survives_copying_and_pickling(case):
    z, target, _ = make_batch(case)
    loss = case.make(weight=[1.0 + k for k in range(case.num_classes)], reduction="sum")
    for other in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert other.params() == loss.params()
        assert torch.equal(other(case.logits(z), target), loss(case.logits(z), target))
    assert loss.double().weight.dtype == torch.float64
    assert isinstance(loss, nc.Loss)
    assert type(loss).__name__ in repr(loss)


@every_loss
@pytest.mark.parametrize("weighted", [False, True])
def test_the_theory_takes_a_plain_copy(case, weighted):
    loss = case.make(weight=[1.0 + k for k in range(case.num_classes)] if weighted else None, reduction="sum")
    before = str(loss.state_dict()), loss.params()
    plain = unreduced(loss)
    z, target, rows = make_batch(case)
    assert plain is not loss
    assert (plain.reduction, plain.weight) == ("none", None)
    assert (loss.reduction, loss.weight is None) == ("sum", not weighted)
    assert (str(loss.state_dict()), loss.params()) == before
    assert plain.params() == loss.params()
    assert plain(case.logits(z), target).tolist() == pytest.approx(twin_values(case, z, rows))


def test_a_copy_shares_no_tensor_with_a_loss_that_has_some():
    class Scaled(nc.CELoss):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(()))

    loss = Scaled()
    assert unreduced(loss).scale.dtype == torch.float64
    assert loss.scale.dtype == torch.float32


@every_loss
def test_bad_input_is_named(case):
    K, loss = case.num_classes, case.make()
    z, target, rows = make_batch(case)
    x = case.logits(z)
    with pytest.raises(ValueError, match=rf"target: expected values in \[0, {K - 1}\], got values from -1 to"):
        loss(x, target.index_fill(0, torch.tensor([0]), -1))
    with pytest.raises(ValueError, match=f"got values from . to {K}"):
        loss(x, target.index_fill(0, torch.tensor([2]), K))
    with pytest.raises(ValueError, match=r"target: expected shape \[7\]"):
        loss(x, target[:-1])
    with pytest.raises(ValueError, match="target: expected shape"):
        loss(x, rows.repeat(1, 2))
    with pytest.raises(TypeError, match="target: expected a tensor, got list"):
        loss(x, target.tolist())
    with pytest.raises(TypeError, match=r"logits: expected a floating-point tensor, got torch\.int64"):
        loss(x.long(), target)
    with pytest.raises(TypeError, match="logits: expected a floating-point tensor, got list"):
        loss(x.tolist(), target)
    with pytest.raises(ValueError, match="logits: expected"):
        loss(z.unsqueeze(0), target)
    with pytest.raises(ValueError, match="reduction: expected 'mean', 'sum' or 'none', got 'average'"):
        case.make(reduction="average")
    with pytest.raises(ValueError, match="reduction: expected"):
        case.function(x, target, **case.params, reduction="average")
    with pytest.raises(ValueError, match=f"weight: expected one entry for each of {K} classes"):
        case.make(weight=[1.0] * (K + 1))(x, target)
    for weight in ([-1.0] * K, [0.0] * K, [float("nan")] * K, [[1.0] * K]):
        with pytest.raises(ValueError, match="weight: expected"):
            case.make(weight=weight)
    if case.cls is not nc.BinaryLoss:
        with pytest.raises(
            TypeError, match=r"target: expected integer class indices in the shape \[B\], got torch.float64"
        ):
            loss(x, target.double())
        with pytest.raises(ValueError, match="at least 2 classes"):
            loss(z[:, :1], target)


@every_loss
@index_and_soft
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("size", [1.0, 100.0, 1e4])
def test_value_and_gradient_are_those_of_autograd_to_the_bit(case, soft, reduction, weighted, size):
    z, target, _ = make_batch(case, 30, soft=soft)
    z = (size * z).float()
    weight = torch.linspace(0.5, 2.0, case.num_classes) if weighted else None
    loss = case.make(weight=weight, reduction=reduction)
    leaf = case.logits(z).detach().requires_grad_()
    expected = loss(leaf, target)
    (gradient,) = torch.autograd.grad(expected.sum(), leaf)
    got = loss.value_and_gradient(leaf, target)
    assert not got[0].requires_grad
    assert not got[1].requires_grad
    assert torch.equal(got[0], expected)
    assert torch.equal(got[1], gradient)


@every_loss
def test_value_and_gradient_refuse_what_the_loss_refuses(case):
    z, target, _ = make_batch(case, soft=False)
    with pytest.raises(ValueError, match="target: expected values in"):
        case.make().value_and_gradient(case.logits(z), target + case.num_classes)
