"""Proofs of random small models by every solver: accepted as written, never accepted for a falsehood."""

from __future__ import annotations

import numpy as np
import pytest

from certimap_lab.proofs import each_solved, failures, random_case


@pytest.mark.parametrize("seed", [*range(22), 282, 680])
def test_proofs_hold_and_altered_ones_do_not(seed):
    case, rng = random_case(seed), np.random.default_rng(seed)
    for _, result in each_solved(case, seed, rng):
        assert (result.proof is None) == (not result.certified), result.no_proof
        if result.proof is not None:
            assert failures(case, result.proof, rng) == []
