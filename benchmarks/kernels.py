"""What a captured training step spends its time on, by kind of kernel, and the least time that its norms could take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ncollapse.models import create

REPEATS = 5
PASSES = 8
"""Times that a norm in training must read or write its map: forward read, read, write; backward read two maps for the
sums, read both again and write one. The layers of a dense block share passes and need fewer."""
KINDS = (
    ("layer norms and GELU", ("_add_norm", "_gelu", "_add_blocks", "_add_positions")),
    ("norm", ("_statistics", "_apply_forward", "_sum_backward", "_apply_backward")),
    ("norm", ("_apply_norms", "_track_known", "_add_gradients", "_copy_gradient")),  # in dense blocks
    ("attention", ("_attend",)),
    ("last layer", ("_forward", "_backward_features", "_backward_head")),
    ("stem", ("_copy_windows",)),
    ("optimiser and casts", ("multi_tensor", "_update")),
    ("weight gradients", ("wgrad",)),
    ("input gradients", ("dgrad",)),
    ("convolutions", ("fprop", "convolve", "convfwd", "init_device_workspace")),
    ("matrix products", ("gemm", "nvjet", "cutlass", "splitk")),
    ("compiled", ("triton_",)),
    ("memory", ("memcpy", "memset")),
)


def classify(kernel: str) -> str:
    """The kind of a kernel by its name.

    >>> classify("_add_gradients"), classify("sm90_xmma_wgrad_indexed_implicit_gemm"), classify("reduce_kernel")
    ('norm', 'weight gradients', 'other')
    """
    name = kernel.lower()
    for kind, words in KINDS:
        if any(name.startswith(word) if word.startswith("_") else word in name for word in words):
            return kind
    return "other"


def profile_step(work: Callable[[], None]) -> dict[str, Any]:
    """Microseconds of a step by kind of kernel, and how many kernels it launches."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        for _ in range(REPEATS):
            work()
        torch.cuda.synchronize()
    spent: Counter[str] = Counter()
    launches = 0
    for event in profile.events() or ():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            spent[classify(event.name)] += event.device_time_total
            launches += 1
    kinds = {kind: round(total / REPEATS, 1) for kind, total in spent.most_common()}
    return {"kernels_us": kinds, "launches": launches / REPEATS}


def count_norm_bytes(name: str, batch: int) -> int:
    """The least traffic of all norms of a network in one bfloat16 step."""
    values = 0

    def count(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        nonlocal values
        values += inputs[0].numel()

    network = create(name, 10).to("meta")
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_hook(count)
    network.forward_features(torch.empty(batch, 3, 32, 32, device="meta"))
    return 2 * PASSES * values


def measure_bandwidth(device: torch.device) -> float:
    """Bytes a second that the GPU copies, read and written."""
    source = torch.empty(2**29, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    target.copy_(source)
    begin.record()  # type: ignore[no-untyped-call]
    for _ in range(10):
        target.copy_(source)
    end.record()  # type: ignore[no-untyped-call]
    end.synchronize()
    return 20 * source.nbytes / (begin.elapsed_time(end) / 1e3)
