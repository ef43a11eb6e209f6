"""One BLAS thread while learning: many small products, and the same sums whatever the machine."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any


def single_threaded_blas() -> AbstractContextManager[Any]:
    """Limit BLAS to one thread inside the context, where threadpoolctl (it comes with scikit-learn) is there."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return nullcontext()
    return threadpool_limits(1, user_api="blas")
