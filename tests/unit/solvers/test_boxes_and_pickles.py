"""Searches start from a box, so that a query can be shared out, and go on from a pickle."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import certimap as cm
from certimap.certify.ledger import Ledger, issue
from certimap.core.box import Boxes
from certimap.core.control import Control
from certimap.core.result import CertificateKind
from certimap.errors import SolverError
from certimap.solvers import registry
from certimap.testing import TablePosterior

SIZES = [2, 3, 2, 2, 3]


def network(seed):
    rng = np.random.default_rng(seed)
    names = [f"x{i}" for i in range(len(SIZES))]
    parents = {name: names[max(0, i - 2) : i] for i, name in enumerate(names)}
    sizes = dict(zip(names, SIZES, strict=True))
    tables = {n: rng.dirichlet(np.ones(sizes[n]), [sizes[p] for p in parents[n]]) for n in names}
    return cm.BayesianNetwork.from_cpts({n: list(range(k)) for n, k in sizes.items()}, parents, tables)


def posterior_for(solver, seed=0):
    if solver in ("set_elimination", "hbfs"):
        model = network(seed)
        names = model.domain.names if solver == "hbfs" else model.domain.names[1:]
        return cm.condition(model, names, solver=solver)
    rng = np.random.default_rng(seed)
    return TablePosterior([3, 2, 2, 3], rng.gamma(0.5, size=36) + 1e-6, looseness=1.0)


def halves(domain, variable=1):
    boxes = []
    for chosen in (slice(0, 1), slice(1, None)):
        mask = np.ones((1, domain.total_states), np.bool_)
        own = mask[:, domain.offsets[variable] : domain.offsets[variable + 1]]
        own[:] = False
        own[:, chosen] = True
        boxes.append(Boxes(domain, mask))
    return boxes


def steps(solver, posterior, ledger, state, n=1000):
    for _ in range(n):
        if state.done or (ledger.early_stop and ledger.satisfied):
            break
        state = solver.step(state, ledger)
    return state


def ledger_for(solver, posterior, box=None, **settings):
    return Ledger(posterior, early_stop=solver.judging().early_stop, boxes=box, **settings)


@pytest.mark.parametrize("name", ["frontier", "set_elimination", "hbfs", "exhaustive"])
@pytest.mark.parametrize("seed", range(4))
def test_a_query_shared_out_over_boxes_is_answered_as_a_whole(name, seed):
    posterior, solver = posterior_for(name, seed), registry.make(name)
    parts = []
    for box in halves(posterior.domain):
        ledger = ledger_for(solver, posterior, box, epsilon=0.0, delta=0.0)
        steps(solver, posterior, ledger, solver.init(posterior, Control(), np.random.default_rng(seed), box))
        parts.append(ledger)
    merged = Ledger.merge(parts)
    points = np.stack(
        np.unravel_index(np.arange(np.prod(posterior.domain.n_states)), posterior.domain.n_states), 1
    )
    assert merged.best_log_prob == pytest.approx(float(np.max(posterior.log_prob(points))), abs=1e-9)
    assert issue(merged).kind is CertificateKind.EXACT


@pytest.mark.parametrize("name", ["pac", "smooth_pac", "budget"])
def test_samplers_draw_inside_their_box(name):
    posterior = posterior_for(name)
    options = {"n_draws": 300} if name == "budget" else {}
    solver = registry.make(name, **options)
    parts = []
    for box in halves(posterior.domain):
        ledger = ledger_for(solver, posterior, box, epsilon=0.1, delta=0.05, max_draws=20_000)
        steps(solver, posterior, ledger, solver.init(posterior, Control(), np.random.default_rng(1), box))
        parts.append(ledger)
        if name != "smooth_pac":  # whose sweeps look around
            assert box.holds(ledger.atoms.points(slice(None))).all()
    merged = Ledger.merge(parts)
    assert merged.best_log_prob == pytest.approx(float(np.log(posterior.probs.max())))
    if name != "budget":
        assert issue(merged).kind is not CertificateKind.NONE


@pytest.mark.parametrize(
    "name", ["max_product", "wmb", "bucket_elimination", "aobb", "aobf", "aaobf", "ijgp", "guess"]
)
def test_what_knows_the_whole_space_only_says_so(name):
    domain = TablePosterior([2, 2], [0.4, 0.3, 0.2, 0.1]).domain
    with pytest.raises(SolverError, match="whole space only"):
        registry.make(name).init(None, Control(), np.random.default_rng(0), Boxes.full(domain))


def test_draws_in_a_box_need_masses():
    posterior = cm.FunctionPosterior(
        TablePosterior([2, 2], [0.4, 0.3, 0.2, 0.1]).domain,
        sample=lambda n, rng: np.zeros((n, 2), np.int16),
        log_prob=lambda points: np.full(len(points), np.log(0.4)),
    )
    with pytest.raises(SolverError, match="masses of boxes"):
        registry.make("pac").init(posterior, Control(), np.random.default_rng(0), Boxes.full(posterior.domain))


@pytest.mark.parametrize("name", ["frontier", "pac", "smooth_pac", "set_elimination", "hbfs"])
@pytest.mark.parametrize("n_before", [1, 2, 3])
def test_a_run_goes_on_from_a_pickle_as_if_nothing_had_happened(name, n_before):
    posterior, solver = posterior_for(name, 7), registry.make(name)

    def outcome(n_first):
        ledger = ledger_for(solver, posterior, epsilon=0.0, delta=0.01, max_draws=50_000)
        state = solver.init(posterior, Control(), np.random.default_rng(3))
        state = steps(solver, posterior, ledger, state, n_first)
        state, ledger = pickle.loads(pickle.dumps((state, ledger)))
        steps(solver, posterior, ledger, state)
        values = [value for value, _ in ledger.best]
        return values, ledger.n_draws, ledger.n_evaluations, ledger.log_upper_bound, issue(ledger)

    assert outcome(n_before) == outcome(1000)


@pytest.mark.slow
def test_a_circuit_s_search_goes_on_from_a_pickle():
    rng = np.random.default_rng(5)
    builder = cm.CircuitBuilder(cm.Domain.of_sizes([2] * 8))
    parts = [
        builder.product([builder.categorical(i, np.log(rng.dirichlet([1.0, 1.0]))) for i in range(8)])
        for _ in range(12)
    ]
    builder.sum(parts, np.log(rng.dirichlet(np.ones(12))))
    posterior = cm.condition(builder.build(), solver="frontier")
    solver = registry.make("frontier")
    found = []
    for n in (1, 2, 1000):
        ledger = Ledger(posterior, epsilon=0.0, delta=0.0)
        state = steps(solver, posterior, ledger, solver.init(posterior, Control(), np.random.default_rng(3)), n)
        state, ledger = pickle.loads(pickle.dumps((state, ledger)))
        steps(solver, posterior, ledger, state)
        found.append((ledger.best_log_prob, ledger.n_evaluations, issue(ledger)))
    assert found[0] == found[1] == found[2]
