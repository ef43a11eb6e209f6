"""Solvers with one formula broken on purpose: whenever their answer is wrong, its proof is rejected."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import certimap as cm
from certimap.certify import bounds
from certimap.certify.findings import Books
from certimap.certify.ledger import Ledger
from certimap.circuits.posterior import CircuitPosterior
from certimap.circuits.prober import Caps, PlanProber
from certimap.solvers.elimination import geometry
from certimap.solvers.elimination.one_pass import SetPass
from certimap.solvers.elimination.set_elimination import Climb
from certimap.trees.bucket_tree import BucketTreePosterior
from certimap.trees.regions import RegionTree
from certimap_lab.proofs import random_case, solved

N_CASES = 10


def _dominance(monkeypatch):
    """Every vector dominates every other one."""

    def first_of_each(values, ptr, k, by):
        by[:] = 0
        by[ptr[:-1][np.diff(ptr) > 0]] = -1

    monkeypatch.setattr(geometry, "skyband", first_of_each)


def _outside(monkeypatch):
    """The outside is thought a hundred times less helpful than it is."""
    before = SetPass.threshold
    monkeypatch.setattr(SetPass, "threshold", lambda self, top, *how: 100.0 * before(self, top, *how))


def _caps(monkeypatch):
    """The maxima of subcircuits come out too small."""
    before = Caps.advance

    def advance(self, work_limit):
        before(self, work_limit)
        self.table.caps[self.table.targets] -= 3.0

    monkeypatch.setattr(Caps, "advance", advance)


def _probing(monkeypatch):
    """States are bounded too low, and dropped too early."""
    before = PlanProber.probe

    def probe(self, boxes):
        answers = before(self, boxes)
        uneven = 3.0 * (np.arange(answers.each_bound.shape[1]) % 2)
        return replace(answers, each_bound=answers.each_bound - uneven)

    monkeypatch.setattr(PlanProber, "probe", probe)


def _box_bounds(monkeypatch):
    """Boxes are bounded too low."""
    before = PlanProber.probe

    def probe(self, boxes):
        answers = before(self, boxes)
        return replace(answers, log_bound=answers.log_bound - 8.0)

    monkeypatch.setattr(PlanProber, "probe", probe)


def _threshold(monkeypatch):
    """Boxes and vectors close at a threshold above what the answer allows, and their bounds are understated."""
    threshold, close = bounds.log_closing_threshold, Ledger.close
    monkeypatch.setattr(bounds, "log_closing_threshold", lambda *given: threshold(*given) + 6.0)
    monkeypatch.setattr(
        Ledger, "close", lambda self, bound, measure=None: close(self, np.asarray(bound) - 6.0, measure)
    )


def _residual(monkeypatch):
    """What is not evaluated is thought next to nothing."""
    before = bounds.log_p_check
    monkeypatch.setattr(bounds, "log_p_check", lambda *given: before(*given) - np.log(1e6))


def _oracle(monkeypatch):
    """Values are off, each by its own factor."""
    for posterior in (CircuitPosterior, BucketTreePosterior):
        before = posterior.log_prob

        def log_prob(self, points, before=before):
            return before(self, points) - 0.5 * (np.asarray(points).sum(axis=1) % 3)

        monkeypatch.setattr(posterior, "log_prob", log_prob)


def _no_climb(self, posterior, ledger):
    self.active = self.active[:0]
    return 0


WEAK = {  # what else finds good answers is switched off, or a broken proof would still state the truth
    "frontier": {"incumbent": False, "first_draws": 1},
    "set_elimination": {"n_first_draws": 1, "n_starts": 1},
}
BROKEN = {
    "dominance": (_dominance, 1, ("set_elimination",)),
    "outside bounds": (_outside, 1, ("set_elimination",)),
    "caps": (_caps, 0, ("frontier",)),
    "probing": (_probing, 0, ("frontier",)),
    "bounds of boxes": (_box_bounds, 0, ("frontier",)),
    "threshold": (_threshold, None, ("frontier", "set_elimination")),
    "residual mass": (_residual, None, ("pac",)),
    "oracle": (_oracle, None, ("auto", "exhaustive")),
}


def _worst(case):
    """Return the least probable possible assignment, to start from."""
    possible = np.where(np.isfinite(case.log_values), case.log_values, np.inf)
    names = case.variables
    sizes = [case.model.domain[name].n_states for name in names]
    states = np.unravel_index(int(np.argmin(possible)), sizes)
    return {name: case.model.domain[name].states[int(a)] for name, a in zip(names, states, strict=True)}


@pytest.mark.parametrize("name", BROKEN)
def test_a_wrong_answer_has_no_proof_that_passes(monkeypatch, name):
    break_it, parity, solvers = BROKEN[name]
    cases = [random_case(seed, hard=True) for seed in range(N_CASES) if parity is None or seed % 2 == parity]
    break_it(monkeypatch)
    monkeypatch.setattr(Climb, "round", _no_climb)
    monkeypatch.setattr(RegionTree, "is_visible", property(lambda self: False))
    monkeypatch.setattr(Books, "check_room", lambda *given: None)  # which would notice most of this
    n_wrong = 0
    for number, case in enumerate(cases):
        for solver in solvers:
            try:
                result = solved(case, solver, seed=number, warm_start=_worst(case), **WEAK.get(solver, {}))
            except cm.CertimapError:
                continue  # the ledger saw through it, or the solver does not suit the model
            if result.proof is None:
                continue
            if not case.is_true(result.proof):
                n_wrong += 1
                verdict = cm.check(case.model, result.proof)
                assert not verdict.accepted, f"{solver} on case {number}: {verdict.message}"
                assert verdict.message.startswith("rejected: ")
    assert n_wrong, "the broken formula did no harm, so that this tests nothing"
