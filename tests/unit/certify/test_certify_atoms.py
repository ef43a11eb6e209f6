"""The set of atoms against a dictionary."""

from __future__ import annotations

import numpy as np
import pytest
from hashing_twin import distinct_ids, exact_running_sums

from certimap.certify.evaluated import AtomStore
from certimap.core.domain import Domain, Real
from certimap.kernels.hashing import running_sums

DOMAINS = {
    "bits": Domain.of_sizes([2] * 11),
    "one bit": Domain.of_sizes([2]),
    "bytes": Domain.of_sizes([3, 1, 256, 2]),
    "words": Domain.of_sizes([300, 2, 5]),
    "real": Domain([Real("x"), Real("y", 0.0, 3.0)]),
}


def draw(domain: Domain, n: int, rng: np.random.Generator) -> np.ndarray:
    if domain.is_discrete:
        return rng.integers(0, domain.n_states, (n, len(domain))).astype(np.int16)
    return rng.integers(0, 4, (n, len(domain))) / 2.0


@pytest.mark.parametrize("name", DOMAINS)
def test_ids_and_points_agree_with_a_dictionary(name):
    domain = DOMAINS[name]
    rng = np.random.default_rng(1)
    store, known = AtomStore(domain), {}
    for n in (1, 0, 7, 500, 3000, 40):
        points = draw(domain, n, rng)
        assert store.insert(points).tolist() == distinct_ids(points, known)
        assert store.n == len(known)
    stored = store.points(slice(None))
    assert stored.dtype == domain.point_dtype
    assert [row.tobytes() for row in np.ascontiguousarray(stored)] == list(known)


def test_truncation_forgets_and_numbers_again():
    domain = DOMAINS["bytes"]
    rng = np.random.default_rng(2)
    store = AtomStore(domain)
    store.insert(draw(domain, 300, rng))
    kept = store.points(slice(0, 100)).copy()
    store.truncate(100)
    assert store.insert(kept).tolist() == list(range(100))
    known: dict[bytes, int] = {}
    distinct_ids(kept, known)
    more = draw(domain, 300, rng)
    assert store.insert(more).tolist() == distinct_ids(more, known)


def test_minus_zero_is_zero():
    store = AtomStore(DOMAINS["real"])
    assert store.insert(np.array([[0.0, 1.0], [-0.0, 1.0]])).tolist() == [0, 0]


def test_running_sums_are_exact_to_the_last_place():
    rng = np.random.default_rng(3)
    log_probs = np.log(rng.random(2000) ** 8 / 500)
    sums, lost = np.empty(2000), np.empty(2000)
    running_sums(log_probs, 0.125, 0.0, sums, lost)
    assert (sums + lost) == pytest.approx(exact_running_sums(log_probs, 0.125), rel=1e-15)
