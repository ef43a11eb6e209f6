"""Sums of products of tables, block by block: no product is ever held whole, and threads share the blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from certimap.core.axes import spread
from certimap.core.logs import log_sum
from certimap.kernels.parallel import for_blocks

Floats = NDArray[np.float64]
BLOCK = 2**17  # entries of a product that one thread holds at once: they stay in its cache
BLOCKS = 8  # such blocks, in memory, that all threads take with what they multiply


def summed(
    parts: Sequence[tuple[tuple[int, ...], Floats]],
    kept: Sequence[int],
    dropped: Sequence[int],
    sizes: Mapping[int, int],
    workers: int = 1,
    *,
    in_logs: bool = False,
) -> Floats:
    """Return a product of functions, given with their scopes, summed over the variables `dropped`.

    The result is a new array with an axis per variable of `kept`; it does not depend on `workers`. Small parts are
    multiplied first. With `in_logs` parts and result are natural logs. Cost: one pass over the product per part.
    """
    outer, left = list[int](), math.prod(sizes[v] for v in (*kept, *dropped))
    for v in (*kept, *dropped):
        if left > BLOCK:
            outer.append(v)
            left //= sizes[v]
    inner = [v for v in kept if v not in outer]
    within = [v for v in dropped if v not in outer]
    views = [spread(values, scope, (*outer, *within, *inner)) for scope, values in sorted(parts, key=_size)]
    shape, block = [sizes[v] for v in outer], [sizes[v] for v in (*within, *inner)]
    axes, add = tuple(range(len(within))), log_sum if in_logs else np.sum
    out = np.empty((math.prod(shape), *block[len(within) :]))

    def task(start: int, stop: int) -> None:
        for k in range(start, stop):
            at = np.unravel_index(k, shape) if shape else ()
            total: Floats = np.zeros(()) if in_logs else np.ones(())
            for view in views:
                piece = view[tuple(int(i) if n > 1 else 0 for i, n in zip(at, view.shape, strict=False))]
                total = total + piece if in_logs else total * piece
            out[k] = add(np.broadcast_to(total, block), axes)

    for_blocks(task, len(out), 1, workers)
    whole = out.reshape([sizes[v] for v in (*outer, *inner)])
    beyond = tuple(i for i, v in enumerate(outer) if v in dropped)
    return np.ascontiguousarray(add(whole, beyond)) if beyond else whole


def _size(part: tuple[tuple[int, ...], Floats]) -> int:
    return part[1].size
