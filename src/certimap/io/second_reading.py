"""A second evaluation of a circuit file from its own nodes, which what was read of it has to agree with.

Each format yields the nodes of its records or lines once more, by other code than its reader's, with the numbers
of variables that the file gives.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from certimap.circuits.circuit import Circuit
from certimap.circuits.nodewise import OwnNode, Point, drawn_point, free_variables, log_values, nodes_of
from certimap.errors import ParseError
from certimap.io.files import AnyPath

AGREEMENT = 1e-6  # nats, times 1 + |log|: a file's logs and weights differ by rounding
MOST_POINTS, LEAST_POINTS, WORK = 32, 2, 2**16  # points, and their number times edges: seconds for 20 MB


def compared(
    circuit: Circuit, nodes: Iterable[OwnNode], path: AnyPath, log_weights: dict[int, float] | None = None
) -> Circuit:
    """Return a circuit that agrees with the nodes of its file at seeded points; ParseError for any other.

    `circuit`: its variables have the file's numbers as names. `nodes`: children before parents. `log_weights`: of
    literals, for formulas; None for files whose sums and leaves have weights. Half of the points are drawn
    from the circuit. In the others each variable is drawn by itself, and in files with weights some variables are
    summed out, in the first all. Cost: linear in the file, some microseconds per node.
    """
    if log_weights is None and (free := free_variables(circuit)):
        raise ParseError(f"was read as a circuit of variable {free[0]!r}, for which it has no leaf", path)
    numbers = [int(name) for name in circuit.domain.names]
    points = _points(circuit, log_weights is None)
    rows: list[Point] = [dict(zip(numbers, point, strict=True)) for point in points]
    ours = log_values(nodes_of(circuit), [dict(enumerate(point)) for point in points])
    theirs = log_values(nodes, rows)
    weights = log_weights or {}
    for row, our, own in zip(rows, ours, theirs, strict=True):
        own += sum(weights.get(v if state else -v, 0.0) for v, state in row.items())
        if not (our == own or abs(our - own) <= AGREEMENT * (1.0 + abs(our))):
            seen = [f"{v}={x:g}" for v, x in row.items() if x == x]
            shown = f"{', '.join(seen[:12])}{', ...' if len(seen) > 12 else ''}" or "of no variable"
            raise ParseError(
                f"gives the assignment {shown} the log value {own:.9g}, and what was read of it {our:.9g}; this "
                "file is not understood, and nothing is guessed",
                path,
            )
    return circuit


def _points(circuit: Circuit, sums_out: bool) -> list[list[float]]:
    rng = np.random.default_rng(0)
    n = min(MOST_POINTS, max(LEAST_POINTS, WORK // max(circuit.n_edges, 1)))
    drawn = np.array([drawn_point(circuit, rng) for _ in range(n)])
    free = drawn[: n // 2]
    rng.permuted(free, axis=0, out=free)
    is_discrete = circuit.domain.n_states > 0
    free[:, is_discrete] = rng.integers(circuit.domain.n_states[is_discrete], size=(len(free), is_discrete.sum()))
    if sums_out:
        free[rng.random(free.shape) < 0.3] = math.nan
        free[0] = math.nan
    return drawn.tolist()
