"""The assignments that automata accept, depth first, in order."""

from __future__ import annotations

from certimap.core.arrays import Flags, Ints, Ints16, Ints32
from certimap.kernels.jit import jit


@jit()
def list_answers(
    label_ptr: Ints, labels: Ints16, reader_ptr: Ints, readers: Ints, tables: Ints32, at: Ints, states: Ints32,
    points: Ints16, most_steps: int,
) -> int:  # fmt: skip
    """Write the first answers to `points`, shape (batch, n); return how many there are, or batch + 1 for more.

    After `most_steps` labels it gives up, and returns batch + 1 too.

    Variable i may take `labels[label_ptr[i] : label_ptr[i + 1]]`, and `readers[reader_ptr[i] : reader_ptr[i + 1]]`
    read it: rows of an automaton, the start of its table in `tables`, and the table's width. `at`: int64, shape
    (n,), equal to `label_ptr` without its end. `states`: zeros, shape (n + 1, automata).
    """
    n, n_automata = points.shape[1], states.shape[1]
    i, count, n_steps = 0, 0, 0
    while i >= 0:
        if at[i] == label_ptr[i + 1]:
            at[i] = label_ptr[i]
            i -= 1
            if i >= 0:
                at[i] += 1
            continue
        n_steps += 1
        if n_steps > most_steps:
            return len(points) + 1
        label = labels[at[i]]
        is_alive = True
        for a in range(n_automata):
            states[i + 1, a] = states[i, a]
        for r in range(reader_ptr[i], reader_ptr[i + 1]):
            a = readers[r, 0]
            after = tables[readers[r, 1] + states[i, a] * readers[r, 2] + label]
            if after < 0:
                is_alive = False
                break
            states[i + 1, a] = after
        if not is_alive:
            at[i] += 1
            continue
        if i < n - 1:
            i += 1
            continue
        if count == len(points):
            return count + 1
        for j in range(n):
            points[count, j] = labels[at[j]]
        count += 1
        at[i] += 1
    return count


@jit()
def accepted(step_ptr: Ints, steps: Ints, tables: Ints32, points: Ints16, out: Flags) -> None:
    """Set whether all automata accept each point, shape (batch,).

    Automaton a takes `steps[step_ptr[a] : step_ptr[a + 1]]`: rows of a variable, its table's start in `tables`,
    and the table's width.
    """
    for b in range(len(points)):
        out[b] = True
        for a in range(len(step_ptr) - 1):
            state = 0
            for k in range(step_ptr[a], step_ptr[a + 1]):
                state = tables[steps[k, 1] + state * steps[k, 2] + points[b, steps[k, 0]]]
                if state < 0:
                    out[b] = False
                    break
