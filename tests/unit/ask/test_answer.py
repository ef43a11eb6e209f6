"""One deadline over conditioning and search: what cannot end in time gives way to what can."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

import certimap as cm
from certimap.ask.session import Session
from certimap.core.control import Control, TimeUp, WorkClock
from certimap.solvers.request import Request


def toy() -> cm.FunctionPosterior:
    return cm.FunctionPosterior(
        [2, 2], lambda n, rng: rng.integers(0, 2, (n, 2)), lambda points: np.full(len(points), -np.log(4))
    )


def patient(control: Control):
    while True:
        control.check("waiting for nothing")


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by a hundredth of a second whenever it is looked at, and by what is added to it."""
    now = [0.0]

    def look():
        now[0] += 0.01
        return now[0]

    monkeypatch.setattr(time, "perf_counter", look)
    return now


def no_fallback(control: Control):
    raise cm.TooLarge("nothing is quick")


def answer(condition, quick, **settings):
    """Answer one query of a model that is conditioned by the functions given."""

    class Conditioned(Session):
        def posterior(self, query, control):
            return condition(control)

        def quick_posterior(self, query, control):
            return quick(control)

    return Conditioned(toy(), Request.of(**settings)).answer(lambda: (None, None), 1)


def test_conditioning_that_cannot_end_leaves_time_for_a_quick_answer(clock):
    result = answer(patient, lambda control: toy(), time_limit=0.5, epsilon=0.0)
    assert clock[0] < 1.5
    assert result.note == "the time was up while waiting for nothing"
    assert result.status in (cm.Status.CERTIFIED, cm.Status.TIME_LIMIT)
    assert "note" in result.to_dict()


def test_no_answer_at_all_says_what_took_too_long():
    with pytest.raises(cm.TooLarge, match=r"waiting for nothing.*nothing is quick.*raise time_limit"):
        answer(patient, no_fallback, time_limit=0.1)


def test_memory_that_runs_out_is_a_typed_error():
    def greedy(control: Control):
        raise MemoryError

    with pytest.raises(cm.TooLarge, match="memory ran out in conditioning"):
        answer(greedy, no_fallback)
    result = answer(greedy, lambda control: toy())
    assert result.note == "memory ran out in conditioning"


def test_what_is_conditioned_in_time_has_no_note():
    result = answer(lambda control: toy(), no_fallback, time_limit=1e6)
    assert result.note is None
    assert "note" not in result.to_dict()


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="sends a signal to the main thread")
def test_an_interrupt_in_conditioning_brings_a_quick_answer():
    def interrupted(control: Control):
        os.kill(os.getpid(), signal.SIGINT)
        patient(control)

    result = answer(interrupted, lambda control: toy(), solver="pac", max_samples=1000)
    assert result.note == "the user interrupted conditioning"
    assert result.status in (cm.Status.INTERRUPTED, cm.Status.CERTIFIED)


def test_an_interrupt_that_only_a_poll_sees_is_called_one():
    """One that came in a finalizer, where Python drops what is raised."""

    def noted(control: Control):
        control.interrupted = True
        patient(control)

    result = answer(noted, lambda control: toy(), solver="pac", max_samples=1000)
    assert result.note == "the user interrupted conditioning"
    assert result.status in (cm.Status.INTERRUPTED, cm.Status.CERTIFIED)


def test_the_pace_of_a_large_piece_foresees_the_next(clock):
    pace = WorkClock(Control.starting_now(1.0), "working", 1e-9)
    with pace.piece(1e6):
        clock[0] += 0.1
    with pytest.raises(TimeUp, match="working"), pace.piece(1e8):
        pytest.fail("a piece of ten seconds was begun")
    with WorkClock(Control(), "working", 1.0).piece(1e9):
        pass


def wide_grid(side: int) -> cm.MarkovNetwork:
    rng = np.random.default_rng(5)
    pairs = [(side * i + j, side * i + j + 1) for i in range(side) for j in range(side - 1)]
    pairs += [(v, v + side) for v in range(side * (side - 1))]
    factors = [cm.Factor(pair, np.exp(rng.normal(0.0, 2.0, (2, 2)))) for pair in pairs]
    return cm.MarkovNetwork(cm.Domain.of_sizes([2] * side**2), factors)


def test_a_network_too_wide_to_eliminate_answers_within_its_limit():
    network = wide_grid(22)
    cm.map_query(wide_grid(5), rng=1)
    result = cm.map_query(network, time_limit=2.0, rng=1)
    point = network.domain.encode(result.assignment)
    assert result.log_joint == pytest.approx(float(network.log_joint(point)[0]), abs=1e-6)
    assert result.log_joint_upper_bound >= result.log_joint
    assert result.status is not cm.Status.HEURISTIC


def test_a_tree_that_cannot_be_ready_in_time_is_not_begun():
    network = wide_grid(16)  # 2^23 entries in one table, seconds of work
    result = cm.map_query(network, time_limit=1.0, rng=1, solver="set_elimination")
    assert result.note is not None
    assert "the time was up while" in result.note  # building the tree; conditioning, on a busy machine
    assert result.log_joint == pytest.approx(
        float(network.log_joint(network.domain.encode(result.assignment))[0]), abs=1e-6
    )


class Reluctant:
    """Scores points, and finds when it is to draw some that what it needs cannot be made in time."""

    def __init__(self):
        self.domain, self.facts = toy().domain, toy().facts

    def log_prob(self, points):
        return np.full(len(points), -np.log(4))

    def sample(self, n, rng, boxes=None):
        raise TimeUp("making what draws need")


def test_what_turns_out_too_slow_when_first_needed_gives_way_to_what_is_quick():
    result = answer(lambda control: Reluctant(), lambda control: toy(), solver="pac", max_samples=1000)
    assert result.note == "the time was up while making what draws need"
    assert result.log_prob == pytest.approx(-np.log(4))
    with pytest.raises(cm.TooLarge, match="making what draws need"):
        answer(lambda control: Reluctant(), no_fallback, solver="pac", max_samples=1000)
