"""What a posterior offers is decided by its class, and by what its objects add."""

from __future__ import annotations

import numpy as np
import pytest

from certimap.core.domain import Domain
from certimap.core.posterior import Draws, Facts, Masses, Posterior, TwoSided

DOMAIN = Domain.of_sizes([2, 3])


class Scoring:
    """Has its domain and facts on the object, as a dataclass would."""

    def __init__(self):
        self.domain = DOMAIN
        self.facts = Facts.of(DOMAIN)

    def log_prob(self, points):
        return np.zeros(len(points))


class Drawing(Scoring):
    def sample(self, n, rng, boxes=None):
        return np.zeros((n, 2), np.int16)


class Late(Scoring):
    """Gets its sampler when it is made."""

    def __init__(self, sample):
        super().__init__()
        self.sample = sample


class Blocked(Drawing):
    sample = None


class Dear(Drawing):
    """Has facts that take long, which asking what it offers must not work out."""

    def __init__(self):
        self.domain = DOMAIN

    @property
    def facts(self):
        raise AssertionError("facts were asked for")


@pytest.mark.parametrize(
    ("made", "draws"),
    [
        (lambda: Scoring(), False),
        (lambda: Drawing(), True),
        (lambda: Late(lambda n, rng, boxes=None: None), True),
        (lambda: Late(None), False),
        (lambda: Blocked(), False),
        (lambda: Dear(), True),
    ],
)
def test_what_a_posterior_offers(made, draws):
    for _ in range(2):  # the second time from what is known of its class
        posterior = made()
        assert isinstance(posterior, Posterior)
        assert isinstance(posterior, Draws) == draws
        assert not isinstance(posterior, Masses)
        assert not isinstance(posterior, TwoSided)


def test_an_object_without_what_its_class_leaves_to_it_offers_nothing():
    posterior = Scoring()
    assert isinstance(posterior, Posterior)
    del posterior.facts
    assert not isinstance(posterior, Posterior)


def test_classes_that_derive_from_a_capability_stay_classes():
    class Mine(Draws):
        domain = DOMAIN
        facts = Facts.of(DOMAIN)

        def log_prob(self, points):
            return np.zeros(len(points))

        def sample(self, n, rng, boxes=None):
            return np.zeros((n, 2), np.int16)

    assert isinstance(Mine(), Mine)
    assert isinstance(Mine(), Draws)
    assert not isinstance(Drawing(), Mine)
