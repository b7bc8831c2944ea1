"""A pretended GPU: tensors that say they are on cuda:0, compute on the CPU, and count what a GPU would be waited for.

An operation on tensors of both devices is an error, as it is on a GPU, and so is `numpy()` of a pretended tensor.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

CUDA = torch.device("cuda", 0)
READS = {"item", "__float__", "__int__", "__bool__", "__index__", "tolist"}
SIZES = {"nonzero", "bincount", "masked_select", "unique_dim", "_unique2"}  # the host waits for the size of the result


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU."""

    inner: torch.Tensor
    device = property(lambda self: CUDA)  # type: ignore[assignment]
    counts: ClassVar[Counter[str]] = Counter()

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> OnGpu:
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device="meta", strides=inner.stride(), storage_offset=0
        )
        made.inner = inner
        return made

    def __repr__(self) -> str:
        return f"OnGpu({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = function.overloadpacket.__name__
        if name == "_to_copy" and str(kwargs.get("device")) == "cpu":
            cls.counts["copies to the host"] += 1
            return function(args[0].inner, **kwargs)
        given: dict[int, OnGpu] = {}

        def unwrap(value: Any) -> Any:
            if isinstance(value, OnGpu):
                given[id(value.inner)] = value
                return value.inner
            if isinstance(value, torch.Tensor) and value.ndim:
                raise RuntimeError(f"{function}: expected all tensors on cuda:0, got one on the CPU")
            return value

        args, kwargs = tree_map(unwrap, args), tree_map(unwrap, kwargs)
        kwargs.pop("device", None)
        masked = name in ("index", "index_put_") and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in args[1]
        )
        if name in SIZES or masked:
            cls.counts["sizes read"] += 1
        cls.counts["launches"] += 1

        def wrap(value: Any) -> Any:
            return given.get(id(value), OnGpu(value)) if isinstance(value, torch.Tensor) else value

        return tree_map(wrap, function(*args, **kwargs))


class PretendGpu(TorchFunctionMode):
    """Inside it, tensors can be moved to and made on cuda:0; `counts` says what was copied and waited for.

    >>> with PretendGpu() as gpu:
    ...     x = torch.ones(3, device="cuda:0")
    ...     float((x + gpu.move(torch.ones(3))).sum())
    6.0
    >>> gpu.counts["numbers read"]
    1
    """

    def __enter__(self) -> PretendGpu:
        OnGpu.counts = self.counts = Counter()
        super().__enter__()
        return self

    def move(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the pretended GPU, not counted."""
        return OnGpu(tensor.detach().clone())

    @property
    def waits(self) -> int:
        """How often the host waits for the GPU."""
        return sum(self.counts[name] for name in ("numbers read", "sizes read", "copies to the host"))

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name, first = getattr(function, "__name__", ""), args[0] if args else None
        if isinstance(first, OnGpu) and name in READS:
            self.counts["numbers read"] += 1
            return function(first.inner, *args[1:], **kwargs)
        if isinstance(first, OnGpu) and name == "numpy":
            raise TypeError("can't convert a tensor on cuda:0 to numpy")
        if name == "pin_memory" and isinstance(first, torch.Tensor):
            pinned = first.clone()
            pinned.pinned = True
            return pinned
        if name == "to" and isinstance(first, torch.Tensor) and _wants_gpu(args[1:], kwargs):
            rest = [value for value in args[1:] if not _is_gpu(value)]
            rest = [value.dtype if isinstance(value, torch.Tensor) else value for value in rest]
            kwargs.pop("device", None)
            if isinstance(first, OnGpu):
                return function(first, *rest, **kwargs) if rest or kwargs else first
            self.counts["copies to the GPU"] += 1
            if not (kwargs.pop("non_blocking", False) and getattr(first, "pinned", False)):
                self.counts["copies to the GPU that the host waits for"] += 1
            return OnGpu(function(first, *rest, **kwargs).clone())
        if name == "as_tensor" and isinstance(first, OnGpu):
            return first.to(kwargs.get("dtype") or first.dtype)
        if name == "one_hot" and isinstance(first, OnGpu):  # it makes a tensor of its own, not beside the first
            self.counts["launches"] += 1
            return OnGpu(function(first.inner, *args[1:], **kwargs))
        if name == "where" and isinstance(first, OnGpu) and len(args) == 3:  # numbers become tensors beside the others
            like = next(value for value in args[1:] if isinstance(value, torch.Tensor))
            made = [v if isinstance(v, torch.Tensor) else OnGpu(torch.tensor(v, dtype=like.dtype)) for v in args[1:]]
            return function(first, *made)
        if name in ("matmul", "__matmul__") and all(isinstance(value, OnGpu) for value in args):
            return OnGpu(args[0].inner @ args[1].inner)  # torch squeezes a product in place, which a wrapper cannot see
        if _is_gpu(kwargs.get("device")):
            return OnGpu(function(*args, **{**kwargs, "device": "cpu"}))
        return function(*args, **kwargs)


def _is_gpu(value: Any) -> bool:
    return (isinstance(value, torch.device) and value.type == "cuda") or (isinstance(value, str) and "cuda" in value)


def _wants_gpu(args: Any, kwargs: dict[str, Any]) -> bool:
    return any(isinstance(value, OnGpu) or _is_gpu(value) for value in (*args, kwargs.get("device")))
