"""One BLAS thread while learning: products are small, and sums must not depend on the machine."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any


def single_threaded_blas() -> AbstractContextManager[Any]:
    """Limit BLAS to one thread inside the context, if threadpoolctl (part of scikit-learn) is installed."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return nullcontext()
    return threadpool_limits(1, user_api="blas")
