"""Positions of nodes by their keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from certimap.circuits.nodewise import NodePlaces


@given(st.lists(st.integers(-2, 12) | st.text(max_size=2), unique=True))
def test_places_are_those_of_a_dictionary(keys):
    places, expected = NodePlaces(), {}
    for key in keys:
        places.add(key)
        expected[key] = len(expected)
        for other in [*range(-2, 13), *keys]:
            assert (other in places) == (other in expected)
            if other in expected:
                assert places[other] == expected[other]
    with pytest.raises(KeyError):
        places["nowhere"]
