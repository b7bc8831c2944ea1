"""Start a GPU beside the imports of a command that will train on it.

A process that uses a GPU for the first time waits for its driver, for a context, and for the libraries of convolutions
and matrix products to be loaded. Importing torch and the rest takes about as long. Threads do the first here while the
command does the second. Nothing relies on them: what they have not started is started by its first use, and what is
wrong with a GPU is raised there.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ncollapse.arguments import find_value

if TYPE_CHECKING:
    import torch

DRIVER = "libcuda.so.1"
WITHOUT_TRAINING = ("-h", "--help", "--dry-run")
_threads: list[threading.Thread] = []


def choose_gpu(args: list[str]) -> int | None:
    """The number of the GPU that `ncollapse train ARGS` will use if there is one; None if it will use none.

    >>> choose_gpu(["digits", "--device", "cpu"])
    """
    if not args or args[0].startswith("-") or any(arg in WITHOUT_TRAINING for arg in args):
        return None
    if sys.platform != "linux" or os.environ.get("WORLD_SIZE", "1") != "1" or not _has_cuda():
        return None
    kind, _, number = (find_value(args, "--device") or "cuda").partition(":")
    if kind != "cuda" or not (number or "0").isdecimal():
        return None
    return int(number or 0)


def open_gpu(number: int) -> None:
    """Begin to initialise the driver and the context of a GPU."""
    _start(lambda: open_context(number), "driver")


def load_libraries(number: int) -> None:
    """Begin to load torch's libraries for the GPU that is being opened; torch has been imported."""
    opening = list(_threads)

    def work() -> None:
        import torch

        for thread in opening:
            thread.join()
        if torch.cuda.is_available() and number < torch.cuda.device_count():
            torch.cuda.set_device(number)
            use_libraries(torch.device("cuda", number))
            torch.cuda.current_stream(number).synchronize()

    _start(work, "libraries")


def wait_for_gpu() -> None:
    """Wait until all that was begun is done; return at once if nothing was."""
    while _threads:
        _threads[0].join()
        del _threads[0]


def open_context(number: int) -> bool:
    """Initialise the driver, and make the context of a GPU that all of this process shares; whether that succeeded.

    This is what the first use of a GPU does. Done in this way it lets other threads run Python meanwhile.
    """
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # as torch does
    driver = ctypes.CDLL(DRIVER)
    device, context = ctypes.c_int(), ctypes.c_void_p()
    return bool(
        driver.cuInit(0) == 0
        and driver.cuDeviceGet(ctypes.byref(device), number) == 0
        and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    )


def use_libraries(device: torch.device) -> None:
    """Do a small convolution forwards and backwards and two small products, as training will do large ones."""
    import torch

    with torch.no_grad():
        x = torch.ones(8, 16, 8, 8, dtype=torch.bfloat16, device=device).contiguous(memory_format=torch.channels_last)
        kernel = torch.ones(16, 16, 3, 3, dtype=x.dtype, device=device).contiguous(memory_format=torch.channels_last)
        y = torch.nn.functional.conv2d(x, kernel, padding=1)
        options = [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
        torch.ops.aten.convolution_backward(y, x, kernel, None, *options)
        matrix = torch.ones(16, 16, dtype=x.dtype, device=device)
        torch.nn.functional.linear(matrix @ matrix, matrix, matrix[0])


def _has_cuda() -> bool:
    """Whether the installed torch can use a GPU, without importing it."""
    found = find_spec("torch")
    return (
        found is not None and found.origin is not None and (Path(found.origin).parent / "lib/libtorch_cuda.so").exists()
    )


def _start(work: Callable[[], object], name: str) -> None:
    """Start a thread that the process waits for at its end: no library may be loaded into a process that is ending."""

    def try_work() -> None:
        with suppress(Exception):  # what is wrong with the GPU is said where it is used
            work()

    thread = threading.Thread(target=try_work, name=f"gpu-{name}", daemon=False)
    _threads.append(thread)
    thread.start()
