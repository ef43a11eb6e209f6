"""Every solver that takes densities keeps what a solver must, on real and mixed queries; wrong ones are caught."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from certimap.ask.api import map_query
from certimap.errors import SolverError
from certimap.solvers.box_search.frontier import Frontier
from certimap.solvers.registry import make, names, refusal
from certimap.testing import DensityCases
from certimap_lab.conformance.solver_cases import highest_found, random_density, random_normals

SEARCHES = ("auto", "frontier", "doo", "soo")
OTHERS = ("budget", "independent", "max_product", "argmax_product", "hybrid_bp", "beam", "hill_climb", "hoo")
CASES = [name for name in dir(DensityCases) if name.startswith("test_")]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("solver", SEARCHES + OTHERS)
def test_solvers_of_densities(solver: str, case: str) -> None:
    class Suite(DensityCases):
        certifies = solver in SEARCHES
        max_nodes = 3000 if solver in OTHERS else 200_000

        def make_solver(self):
            return solver

    getattr(Suite(), case)()


def test_all_others_refuse_densities_in_a_sentence() -> None:
    rng = np.random.default_rng(0)
    for posterior in (random_density(rng, 2), random_density(rng, 1, 2), random_normals(rng, 2)):
        for name in names():
            if name in SEARCHES + OTHERS or name in ("itself", "cells"):
                continue
            sentence = refusal(make(name), posterior)
            if sentence is None:  # it takes densities, and says nothing false of them
                found = map_query(
                    posterior, solver=name, rng=0, max_samples=200, max_nodes=200, time_limit=5.0, progress=False
                )
                assert found.log_prob <= highest_found(posterior, rng) + 1e-6
                continue
            assert "solver" in sentence
            with pytest.raises(SolverError):
                map_query(posterior, solver=name, rng=0)


@dataclass(frozen=True)
class Boastful(Frontier):
    """Reports bounds that are a tenth of a nat too low."""

    name: ClassVar[str] = "boastful"

    def step(self, state, ledger):
        state = super().step(state, ledger)
        ledger.frontier(None, ledger.log_frontier_bound - 0.5 if math.isfinite(ledger.log_frontier_bound) else 0.0)
        return state


def test_a_bound_that_is_too_low_is_caught() -> None:
    class Suite(DensityCases):
        def make_solver(self):
            return Boastful(first_draws=0, incumbent=False)

    with pytest.raises(AssertionError, match=r"false|below"):
        Suite().test_answers_bounds_and_certificates_are_true()
