"""How the fused kernels are called: as operators that torch's compiler sees, or directly where nothing is compiled."""

from typing import Any

import torch
from torch import Tensor


def call_operator(operator: Any, x: Tensor, *args: Any) -> Any:
    """Call an operator that `torch.library.custom_op` made, where possible as the plain function that it was made of.

    The first call of an operator imports torch._dynamo, which takes one to two seconds. Only compiled code and tensors
    that are not plain ones on a GPU need the operator. Nothing may need a derivative of it.
    """
    if torch.compiler.is_compiling():  # asked first: of what follows, older compilers know nothing
        return operator(x, *args)
    direct = type(x) is Tensor and x.is_cuda
    return getattr(operator, "_init_fn", operator)(x, *args) if direct else operator(x, *args)
