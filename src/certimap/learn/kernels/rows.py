"""Kernels of learners over rows: components by G-tests, k-means, and passes over trees of latent variables.

Matrix products stay with BLAS.
"""

from __future__ import annotations

import numpy as np

from certimap.core.arrays import Floats, Floats32, Ints, Ints32, Words
from certimap.kernels.jit import jit, jit_part


@jit()
def g_statistic(
    pair_counts: Floats32, first_column: Ints, n_states: Ints, a: int, b: int, n_rows: int, x_log_x: Floats
) -> tuple[float, int]:
    """Return the G statistic of two variables and its degrees of freedom.

    `pair_counts` holds joint counts of states 1, 2, ... of every variable (columns from `first_column`);
    the counts of state 0 follow by subtraction. `x_log_x[c]` is c ln c. States that do not occur in these
    rows cost no degrees of freedom.
    """
    k_a, k_b = n_states[a], n_states[b]
    start_a, start_b = first_column[a], first_column[b]
    total = x_log_x[n_rows]
    rest_a = n_rows
    used_a = 0
    for s in range(k_a - 1):
        count = int(pair_counts[start_a + s, start_a + s])
        rest_a -= count
        total -= x_log_x[count]
        used_a += count > 0
    total -= x_log_x[rest_a]
    used_a += rest_a > 0
    rest_b = n_rows
    corner = rest_a
    used_b = 0
    for t in range(k_b - 1):
        column = start_b + t
        count = int(pair_counts[column, column])
        rest_b -= count
        total -= x_log_x[count]
        used_b += count > 0
        left = count
        for s in range(k_a - 1):
            joint = int(pair_counts[start_a + s, column])
            left -= joint
            total += x_log_x[joint]
        total += x_log_x[left]
        corner -= left
    total -= x_log_x[rest_b]
    used_b += rest_b > 0
    for s in range(k_a - 1):
        left = int(pair_counts[start_a + s, start_a + s])
        for t in range(k_b - 1):
            left -= int(pair_counts[start_a + s, start_b + t])
        total += x_log_x[left]
    total += x_log_x[corner]
    return 2.0 * total, (used_a - 1) * (used_b - 1)


@jit()
def independent_components(
    pair_counts: Floats32,
    first_column: Ints,
    n_states: Ints,
    n_rows: int,
    x_log_x: Floats,
    critical: Floats,
    component: Ints,
) -> int:
    """Label the components of the graph of dependent pairs; return how many there are.

    A pair is dependent when its G statistic exceeds `critical[min(dof, len - 1)]`. `component`, shape
    (n_variables,), is the output: components are numbered by their first variable. Only pairs that can
    still join two components are tested.
    """
    n_variables = len(n_states)
    queue = np.empty(n_variables, np.int64)
    component[:] = -1
    n_components = 0
    for seed in range(n_variables):
        if component[seed] >= 0:
            continue
        component[seed] = n_components
        queue[0] = seed
        head, tail = 0, 1
        while head < tail:
            a = queue[head]
            head += 1
            for b in range(seed + 1, n_variables):
                if component[b] >= 0:
                    continue
                g, dof = g_statistic(pair_counts, first_column, n_states, a, b, n_rows, x_log_x)
                if dof > 0 and g > critical[min(dof, len(critical) - 1)]:
                    component[b] = n_components
                    queue[tail] = b
                    tail += 1
        n_components += 1
    return n_components


@jit()
def _uniform(state: Words) -> float:
    """Advance a splitmix64 stream held in `state[0]` and return a number in [0, 1)."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return float(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@jit(fastmath={"reassoc", "contract", "nsz"})
def _squared_distance(x: Floats32, y: Floats32) -> np.float32:
    total = np.float32(0.0)
    for j in range(len(x)):
        difference = x[j] - y[j]
        total += difference * difference
    return total


@jit_part
def _copy_row(source: Floats32, i: int, target: Floats32, k: int) -> None:
    """Copy row i into row k; assigning a row compiles three times as long as this loop."""
    for j in range(source.shape[1]):
        target[k, j] = source[i, j]


@jit()
def _spread_centres(features: Floats32, stream: Words, nearest: Floats32, centres: Floats32) -> int:
    """Choose starting centres by k-means++ (Arthur and Vassilvitskii 2007); return how many distinct ones."""
    n = len(features)
    _copy_row(features, min(n - 1, int(_uniform(stream) * n)), centres, 0)
    for i in range(n):
        nearest[i] = _squared_distance(features[i], centres[0])
    for c in range(1, len(centres)):
        total = 0.0
        for i in range(n):
            total += nearest[i]
        if total <= 0.0:
            return c
        goal = _uniform(stream) * total
        chosen = n - 1
        for i in range(n):
            goal -= nearest[i]
            if goal < 0.0 and nearest[i] > 0.0:
                chosen = i
                break
        while nearest[chosen] <= 0.0:
            chosen -= 1
        _copy_row(features, chosen, centres, c)
        for i in range(n):
            nearest[i] = min(nearest[i], _squared_distance(features[i], centres[c]))
    return len(centres)


@jit()
def k_means(features: Floats32, n_clusters: int, key: np.uint64, max_steps: int, labels: Ints) -> int:
    """Cluster rows by k-means++ and Lloyd's algorithm; write `labels` and return the number of clusters.

    Stops when at most one row in a thousand changes its cluster. Clusters that run empty stay empty, so
    labels may skip numbers.
    """
    n, width = features.shape
    stream = np.empty(1, np.uint64)
    stream[0] = key
    nearest = np.empty(n, np.float32)
    centres = np.empty((n_clusters, width), np.float32)
    sums = np.empty((n_clusters, width), np.float32)
    counts = np.empty(n_clusters, np.int64)
    used = _spread_centres(features, stream, nearest, centres)
    for i in range(n):
        labels[i] = -1
    for _ in range(max_steps):
        for c in range(n_clusters):
            counts[c] = 0
            for j in range(width):
                sums[c, j] = 0.0
        changed = 0
        for i in range(n):
            best, best_distance = 0, _squared_distance(features[i], centres[0])
            for c in range(1, used):
                distance = _squared_distance(features[i], centres[c])
                if distance < best_distance:
                    best, best_distance = c, distance
            changed += labels[i] != best
            labels[i] = best
            counts[best] += 1
            for j in range(width):
                sums[best, j] += features[i, j]
        if changed * 1000 <= n:
            break
        for c in range(used):
            if counts[c] > 0:
                for j in range(width):
                    centres[c, j] = sums[c, j] / counts[c]
    return used


@jit()
def number_patterns(
    ids: Ints32, rows: Ints, scratch: Ints32, number: Ints32, first: Ints32, n_patterns: Ints
) -> None:
    """Number the patterns of some rows in order of appearance, for each variable.

    `ids` (n, n_rows) holds the patterns of all rows. Outputs: `number` (n, len(rows)), the patterns of `rows`;
    `first[i, u]`, the index of the first row with pattern u of variable i; `n_patterns[i]`, their number.
    `scratch` holds -1 for each id, before and after.
    """
    for i in range(ids.shape[0]):
        used = 0
        for b in range(rows.shape[0]):
            pattern = ids[i, rows[b]]
            if scratch[pattern] < 0:
                scratch[pattern] = used
                first[i, used] = b
                used += 1
            number[i, b] = scratch[pattern]
        n_patterns[i] = used
        for b in range(rows.shape[0]):
            scratch[ids[i, rows[b]]] = -1


@jit()
def absorb_message(
    belief: Floats32, message: Floats32, index: Ints32, log_scale: Floats, message_scale: Floats
) -> None:
    """Multiply row `index[r]` of `message` into row r of `belief`, and scale each row to maximum 1.

    `log_scale` grows by the logs of these scales and by the message's own `message_scale`.
    """
    n_rows, n_states = belief.shape
    for r in range(n_rows):
        below = index[r]
        largest = np.float32(0.0)
        for z in range(n_states):
            belief[r, z] *= message[below, z]
            largest = max(largest, belief[r, z])
        if largest > np.float32(0.0):
            scale = np.float32(1.0) / largest
            for z in range(n_states):
                belief[r, z] *= scale
            log_scale[r] += np.log(np.float64(largest)) + message_scale[below]
        else:
            for z in range(n_states):
                belief[r, z] = np.float32(1.0)
            log_scale[r] = -np.inf


@jit()
def add_rows(rows: Floats32, index: Ints32, out: Floats32) -> None:
    """Add row r of `rows` to row `index[r]` of `out`."""
    n_rows, n_states = rows.shape
    for r in range(n_rows):
        at = index[r]
        for z in range(n_states):
            out[at, z] += rows[r, z]


@jit()
def divide_out(weights: Floats32, message: Floats32) -> None:
    """Divide by messages in place; x / 0 becomes 0."""
    n_rows, n_states = weights.shape
    for r in range(n_rows):
        for z in range(n_states):
            m = message[r, z]
            weights[r, z] = weights[r, z] / m if m > np.float32(1e-30) else np.float32(0.0)
