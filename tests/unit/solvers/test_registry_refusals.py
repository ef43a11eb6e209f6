"""Solvers that work on one kind of posterior refuse the others in a sentence."""

from __future__ import annotations

import numpy as np
import pytest

from certimap import FunctionPosterior, SolverError
from certimap.ask.api import map_query


@pytest.mark.parametrize("solver", ["bucket_elimination", "wmb", "set_elimination", "frontier", "max_product"])
def test_a_sampler_and_an_oracle_are_not_enough(solver: str) -> None:
    bare = FunctionPosterior(
        [2, 2], lambda n, rng: rng.integers(0, 2, (n, 2)), lambda points: np.full(len(points), np.log(0.25))
    )
    with pytest.raises(SolverError, match="use solver="):
        map_query(bare, solver=solver)
