"""One thread for linear algebra on small matrices, where several threads mostly wait for each other."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext


def one_thread() -> AbstractContextManager[object]:
    """Limit BLAS and OpenMP to one thread inside a `with`; without threadpoolctl nothing is limited.

    >>> with one_thread():
    ...     pass
    """
    try:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
    except ImportError:  # the core works with torch, NumPy and SciPy alone
        return nullcontext()
    import scipy.linalg  # noqa: F401  # only libraries that are loaded are limited, and SciPy has a BLAS of its own

    return threadpool_limits(1)  # type: ignore[no-any-return]
