"""What may be built is estimated before memory is taken."""

from __future__ import annotations

import numpy as np
import pytest

import certimap as cm
from certimap.core.control import BYTES_PER_ENTRY, Control, Limits


def clique(n: int) -> cm.MarkovNetwork:
    """One table over n binary variables, given as pairs so that only elimination makes it."""
    pair = np.array([[1.0, 2.0], [2.0, 1.0]])
    pairs = [(i, j) for i in range(n) for j in range(i)]
    return cm.MarkovNetwork(cm.Domain.of_sizes([2] * n), [cm.Factor(p, pair) for p in pairs])


def test_limits_follow_from_memory_and_edges():
    limits = Limits(control=Control(max_memory=16_000))
    assert limits.entries_allowed == limits.table_allowed == 16_000 // BYTES_PER_ENTRY
    assert Limits(max_edges=7, control=Control(max_memory=16_000)).table_allowed == 7
    assert Limits(max_edges=7).edges_allowed == 7
    assert Limits().entries_allowed > 1_000_000


def test_a_network_whose_tables_exceed_the_memory_is_refused_by_a_named_type_or_answered_otherwise():
    network = clique(40)  # 2^40 entries
    with pytest.raises(cm.TooLarge, match=r"of memory[^;]*; observe more variables"):
        cm.condition(network, solver="set_elimination")
    with pytest.raises(cm.TooLarge, match="raise max_edges, observe more variables"):
        cm.condition(network, solver="set_elimination", max_edges=1000)
    with pytest.raises(cm.TooLarge, match=r"of memory[^;]*; raise max_memory, observe more variables"):
        cm.map_query(network, ["0"], solver="set_elimination")
    with pytest.raises(cm.TooLarge, match="max_memory=1 MiB"):
        cm.map_query(clique(16), solver="set_elimination", max_memory=2**20)


def test_more_memory_lets_a_larger_table_be_built():
    posterior = cm.condition(clique(16), solver="set_elimination")
    assert posterior.facts.log_evidence is not None
