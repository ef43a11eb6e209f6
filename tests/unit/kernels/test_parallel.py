"""Blocks on threads: what is worked out, and that an interrupt at any instruction leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from certimap.core.control import Control, controlled_by, current_control
from certimap.kernels.parallel import for_blocks


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize(("n_rows", "block"), [(0, 3), (1, 3), (10, 3), (12, 3), (1000, 1)])
def test_each_row_is_done_once(workers, n_rows, block):
    seen = np.zeros(n_rows, np.int64)

    def task(start, stop):
        assert stop - start <= block
        seen[start:stop] += 1

    for_blocks(task, n_rows, block, workers)
    assert np.all(seen == 1)


def test_an_error_in_a_task_is_raised_once_the_others_are_done():
    at_work, lock = [0], threading.Lock()

    def task(start, stop):
        with lock:
            at_work[0] += 1
        try:
            if start == 40:
                raise ZeroDivisionError("block 40")
        finally:
            with lock:
                at_work[0] -= 1

    for _ in range(50):
        with pytest.raises(ZeroDivisionError, match="block 40"):
            for_blocks(task, 100, 1, 4)
        assert at_work == [0]


def test_tasks_may_share_blocks_out_themselves():
    seen = np.zeros((20, 20), np.int64)

    def row(start, stop):
        for_blocks(lambda a, b: seen[start, a:b].__iadd__(1), 20, 2, 3)

    for_blocks(row, 20, 1, 3)
    assert np.all(seen == 1)


def test_helpers_see_the_control_of_the_caller():
    seen = []
    for control in (Control(), Control()):  # the second time the helpers are there
        with controlled_by(control):
            for_blocks(lambda start, stop: (time.sleep(0.001), seen.append(current_control())), 20, 1, 4)
        assert [found is control for found in seen] == [True] * 20
        seen.clear()


INTERRUPTED = """
import sys
from certimap.kernels import parallel

# Raise KeyboardInterrupt before the k-th instruction of Python code that the calling thread runs in for_blocks,
# for each k until a call comes through; with threads that are there already, and with new ones.
def called(k, new):
    if new:
        parallel._pools.clear() if hasattr(parallel, "_pools") else parallel._helpers.clear()
    left, at_work, is_over, late = [k], [], [], []

    def task(start, stop):
        if is_over:
            late.append(start)
        at_work.append(start)
        at_work.remove(start)

    def step(frame, event, argument):
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_code is not task.__code__:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
        return step

    is_cut = False
    sys.settrace(step)
    try:
        parallel.for_blocks(task, 4, 1, 3)
    except KeyboardInterrupt:
        is_cut = True
    finally:
        sys.settrace(None)
    is_over.append(True)
    assert not at_work, at_work
    return is_cut, late

n = 0
for _ in range(ROUNDS):
    for new in (True, False):
        k = 1
        while True:
            is_cut, late = called(k, new)
            n, k = n + 1, k + 1
            if not is_cut:
                break
        seen = [0] * 50
        parallel.for_blocks(lambda a, b: seen.__setitem__(a, seen[a] + 1), 50, 1, 3)
        assert seen == [1] * 50, seen
        assert not late, late
print(n)
"""


def test_an_interrupt_at_any_instruction_leaves_no_block_at_work_and_no_thread_that_exit_waits_for():
    """A thread that was started, but not written down before the interrupt, kept the process from its end."""
    code = INTERRUPTED.replace("ROUNDS", "8")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 2000
