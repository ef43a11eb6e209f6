"""Proofs of random small models by every solver: accepted as written, never accepted for a falsehood."""

from __future__ import annotations

import numpy as np
import pytest

from certimap_lab.proofs import ON_CIRCUITS, ON_NETWORKS, failures, random_case, solved


@pytest.mark.parametrize("seed", [*range(22), 282, 680])
def test_proofs_hold_and_altered_ones_do_not(seed):
    case, rng = random_case(seed), np.random.default_rng(seed)
    for solver in ON_NETWORKS if seed % 2 else ON_CIRCUITS:
        epsilon, delta = float(rng.choice([0.0, 0.05, 0.3])), 0.05 if solver == "pac" else 0.0
        result = solved(case, solver, epsilon=epsilon, delta=delta, seed=seed)
        assert (result.proof is None) == (not result.certified), result.no_proof
        if result.proof is not None:
            assert failures(case, result.proof, rng) == []
