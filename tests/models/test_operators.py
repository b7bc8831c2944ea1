"""How the fused kernels are called."""

import pytest
import torch

from ncollapse.models.operators import call_operator


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU, and is not a plain one."""

    is_cuda = True


class Operator:
    """What `torch.library.custom_op` makes: an object with the function it was made of."""

    def __init__(self):
        self._init_fn = lambda *args: ("function", *args)

    def __call__(self, *args):
        return ("operator", *args)


def test_the_compiler_and_tensors_of_other_kinds_get_the_operator(monkeypatch):
    x = torch.zeros(2)
    assert call_operator(Operator(), x, 3, None) == ("operator", x, 3, None)
    other = x.as_subclass(OnGpu)
    assert call_operator(Operator(), other)[0] == "operator"
    if torch.cuda.is_available():
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert call_operator(Operator(), x.cuda())[0] == "operator"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_plain_tensors_on_a_gpu_get_the_function():
    x = torch.zeros(2, device="cuda")
    assert call_operator(Operator(), x, 3) == ("function", x, 3)
    assert call_operator(lambda *args: args, x, 3) == (x, 3)


def test_operators_of_torch_have_the_function_they_were_made_of():
    from ncollapse.models.norm_ops import norm_apply, norm_backward, norm_statistics
    from ncollapse.models.stem import unfold_windows

    for operator in (norm_apply, norm_backward, norm_statistics, unfold_windows):
        assert operator._init_fn.__globals__["__name__"].startswith("ncollapse.models.")
