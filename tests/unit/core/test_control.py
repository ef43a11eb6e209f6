"""Run control: deadlines, memory, and what they say."""

from __future__ import annotations

import math

import pytest

from certimap import ModelError, TooLarge
from certimap.core.control import Control, TimeUp, default_max_memory, physical_memory, shown_bytes


def test_a_run_without_limits_never_stops():
    control = Control()
    assert control.seconds_left == math.inf
    assert not control.should_stop
    control.check("idling")


def test_time_up_names_the_work():
    control = Control.starting_now(0.0)
    assert control.seconds_left == 0.0
    with pytest.raises(TimeUp, match="while ordering variables"):
        control.check("ordering variables")


def test_an_interruption_counts_as_time_up():
    control = Control(interrupted=True)
    assert control.should_stop
    with pytest.raises(TimeUp):
        control.check("anything")


def test_memory_is_refused_before_it_is_taken():
    control = Control(max_memory=1000)
    control.reserve(1000, "a table")
    with pytest.raises(TooLarge, match=r"a table would take 1\.95 KiB, and max_memory allows 1000 bytes"):
        control.reserve(2000, "a table")
    assert issubclass(TooLarge, ModelError)


def test_the_default_leaves_room_on_the_machine():
    assert 0 < default_max_memory() < physical_memory()
    with pytest.raises(TooLarge, match="the machine leaves"):
        Control().reserve(2.0**70, "a table")


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(5, "5 bytes"), (2048, "2 KiB"), (3 * 2**30, "3 GiB"), (2.0**80, "2^80 bytes"), (math.inf, "2^1024 bytes")],
)
def test_bytes_are_written_for_people(n_bytes: float, text: str):
    assert shown_bytes(n_bytes) == text
