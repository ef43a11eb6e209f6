"""Preparing a network looks at the clock: a deadline ends it between two small pieces of work."""

from __future__ import annotations

import numpy as np
import pytest

from certimap import Domain, Factor, MarkovNetwork
from certimap.control import Control, TimeUp
from certimap.networks.elimination import min_fill, plan_elimination
from certimap.networks.reduction import reduce_network


def grid_scopes(side: int) -> list[tuple[int, int]]:
    across = [(side * i + j, side * i + j + 1) for i in range(side) for j in range(side - 1)]
    return across + [(v, v + side) for v in range(side * (side - 1))]


def test_an_order_is_given_up_at_the_deadline():
    sizes = dict.fromkeys(range(70 * 70), 2)
    with pytest.raises(TimeUp, match="looking for an elimination order"):
        plan_elimination(grid_scopes(70), sizes, range(0, 4900, 2), control=Control.starting_now(0.01))


def test_an_order_does_not_depend_on_a_deadline_that_leaves_time():
    sizes = dict.fromkeys(range(100), 2)
    assert min_fill(grid_scopes(10), sizes) == min_fill(
        grid_scopes(10), sizes, control=Control.starting_now(1000.0)
    )


def test_absorbing_evidence_is_given_up_at_the_deadline():
    domain = Domain.of_sizes([2] * 200)
    equal = np.eye(2)  # zeros everywhere, so that every table is looked at
    network = MarkovNetwork(domain, [Factor((i, i + 1), equal) for i in range(199)])
    assert len(reduce_network(network).sizes) == 200
    with pytest.raises(TimeUp, match="absorbing the evidence"):
        reduce_network(network, control=Control.starting_now(0.0))
