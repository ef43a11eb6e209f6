"""Solvers of networks with one formula broken on purpose: when their answer is wrong, its proof is rejected."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import certimap as cm
from certimap.certify.findings import Books
from certimap.checker import Proof
from certimap.checker.network import boxes_beside
from certimap.core.control import Control
from certimap.core.query import make_query
from certimap.networks.relaxation.split_tree import SplitTree
from certimap.proofs import reduced_network
from certimap.proofs.relaxations import covered
from certimap.proofs.script import Script
from certimap.solvers.networks import hbfs
from certimap.solvers.networks.and_or import AndOrSpace
from certimap.testing.models import all_points, random_network
from certimap_lab.proofs import Case, random_case, solved


def _rounding(monkeypatch):
    """Logs are rounded down, and to whole nats."""
    before = hbfs.to_integers

    def to_integers(problem):
        tables = tuple(t._replace(log_values=np.floor(t.log_values)) for t in problem.tables)
        return before(replace(problem, tables=tables))

    monkeypatch.setattr(hbfs, "to_integers", to_integers)


def _hbfs(monkeypatch):
    """The search's bound is understated, and its answers are read off wrongly."""
    before, point = hbfs.in_nats, hbfs.HybridState.point
    monkeypatch.setattr(hbfs, "in_nats", lambda value, unit: before(value, unit) - 50.0)
    monkeypatch.setattr(hbfs.HybridState, "point", lambda self, states: point(self, states) * 0)


def _relaxation(monkeypatch):
    """Relaxations bound too low."""
    before = SplitTree.bound
    monkeypatch.setattr(SplitTree, "bound", lambda self, *given, **named: before(self, *given, **named) - 50.0)


def _and_or(monkeypatch):
    """Subproblems promise too little, so that whatever comes first is never overtaken."""
    before = AndOrSpace.branches

    def branches(self, variable, states):
        found = before(self, variable, states)
        return replace(found, bounds=found.bounds - 50.0)

    monkeypatch.setattr(AndOrSpace, "branches", branches)


BROKEN = {
    "and/or": (_and_or, "aobb", {"i_bound": 1, "iterations": 0}),
    "rounding": (_rounding, "hbfs", {"quick_entries": 0}),
    "hbfs": (_hbfs, "hbfs", {"quick_entries": 0, "max_entries": 0}),
    "relaxation": (_relaxation, "wmb", {"i_bound": 1, "iterations": 0}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_wrong_answer_has_no_proof_that_passes(monkeypatch, name):
    break_it, solver, options = BROKEN[name]
    if solver == "hbfs":  # which maximises alone
        cases = [everything(seed) for seed in range(8)]
    else:
        cases = [random_case(seed, hard=True) for seed in range(1, 16, 2)]
    break_it(monkeypatch)
    monkeypatch.setattr(Books, "check_room", lambda *given: None)
    n_wrong = 0
    for number, case in enumerate(cases):
        try:
            result = solved(case, solver, seed=number, **options)
        except cm.CertimapError:
            continue  # the ledger saw through it
        if result.proof is None or case.is_true(result.proof):
            continue
        n_wrong += 1
        verdict = cm.check(case.model, result.proof)
        assert verdict.message.startswith("rejected: "), f"case {number}: {verdict.message}"
    assert n_wrong, "the broken formula did no harm, so that this tests nothing"


def everything(seed):
    """Return a query for all variables of a random network."""
    rng = np.random.default_rng(seed)
    domain = cm.Domain.of_sizes(int(k) for k in rng.integers(2, 4, 8))
    model = random_network(rng, domain, max_parents=3, zeros=0.0)
    posterior = cm.condition(model, solver="pac")
    return Case(model, list(model.domain.names), {}, posterior.log_prob(all_points(posterior.domain)))


@pytest.mark.parametrize("seed", [1, 5, 9])
def test_a_broken_relaxation_proves_nothing_false(monkeypatch, seed):
    """What writes the proof bounds too low; the checker bounds by itself."""
    case = random_case(seed, hard=True)
    result = solved(case, "auto", seed=seed)
    order = np.argsort(case.log_values)
    sizes = [case.model.domain[name].n_states for name in case.variables]
    states = np.unravel_index(int(order[-2]), sizes)
    second = {n: case.model.domain[n].states[int(a)] for n, a in zip(case.variables, states, strict=True)}
    before, probe, close = SplitTree.bound, SplitTree.probe, Script.close

    def low_probe(self, *given, **named):
        bounds, each = probe(self, *given, **named)
        return bounds - 5.0, each - 5.0

    monkeypatch.setattr(SplitTree, "bound", lambda self, *given, **named: before(self, *given, **named) - 5.0)
    monkeypatch.setattr(SplitTree, "probe", low_probe)
    checked = reduced_network(case.model, make_query(case.model.domain, case.variables, case.evidence))
    threshold = float(case.log_values[order[-2]]) + result.log_evidence
    boxes = boxes_beside(checked, [states])
    assert covered(checked, boxes, Script(threshold, Control(), 10**8))[1] > threshold  # by the checker's bounds
    monkeypatch.setattr(Script, "close", lambda self, network: close(replace(self, threshold=1e9), network))
    arrays, _ = covered(checked, boxes, Script(threshold, Control(), 10**8))
    meta = {**result.proof.meta, "method": "steps", "answer": second}
    meta["claim"] = {**meta["claim"], "log_joint": None}
    given = {"log_weights": result.proof.arrays["log_weights"], "order": np.zeros(0, np.int32)}
    proof = Proof(meta, {**given, **arrays})
    assert not case.is_true(proof)
    assert "does not hold: its bound is" in cm.check(case.model, proof).message
