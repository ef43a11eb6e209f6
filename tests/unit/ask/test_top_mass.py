"""`top_mass`: the smallest set of assignments with a probability, against enumeration."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import certimap as cm
from certimap.cli.main import main
from certimap.core.control import Control, TimeUp
from certimap.solvers import covering
from certimap.solvers.request import Request
from certimap.testing.models import random_circuit, random_domain, random_network

SOLVERS = ("exhaustive", "set_elimination", "frontier", "pac", "beam")


def listed(model, names, evidence):
    """Return the probabilities of all assignments, largest first."""
    posterior = cm.condition(model, names, evidence, solver="exhaustive")
    points = np.indices(posterior.domain.n_states).reshape(len(posterior.domain), -1).T.astype(np.int16)
    return np.sort(np.exp(posterior.log_prob(points)))[::-1]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(SOLVERS), st.sampled_from((0.3, 0.8, 0.95, 1.0)), st.booleans())
def test_the_set_is_the_smallest(seed, solver, mass, is_short):
    rng = np.random.default_rng(seed)
    domain = random_domain(rng, max_variables=6, max_states=3)
    model = (random_network if solver == "set_elimination" else random_circuit)(rng, domain)
    name, most = domain.names[0], 3 if is_short else None
    evidence = {name: {"likelihood": [1.0 + i for i in range(domain[name].n_states)]}} if seed % 2 else None
    found = cm.map_query(model, None, evidence, top_mass=mass, solver=solver, top_k=most, rng=seed)
    probs = listed(model, list(found.assignment), evidence)
    needed = int(np.argmax(np.cumsum(probs) >= mass - 1e-9)) + 1
    told = found.top_mass
    assert told.fewest <= needed
    assert told.n == len(found.top)
    assert most is None or told.n <= most
    assert told.held == pytest.approx(sum(math.exp(v) for _, v in found.top))
    assert told.is_reached == (told.held >= mass - 1e-9)
    if found.certificate.kind == "exact" and told.is_reached:
        assert told.n == told.fewest == needed
        assert [v for _, v in found.top] == pytest.approx(np.log(probs[:needed]))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from(("auto", *SOLVERS[:4], "aobb")),
    st.sampled_from((0.05, 0.3, 0.8)),
    st.sampled_from((None, 3, 40)),
)
def test_the_set_is_the_smallest_of_those_under_constraints(seed, solver, mass, most):
    """Probabilities are those without constraints: all answers together may hold less than the mass."""
    rng = np.random.default_rng(seed)
    domain = random_domain(rng, max_variables=6, max_states=3)
    of_network = solver in ("auto", "set_elimination", "aobb")
    model = (random_network if of_network and seed % 3 else random_circuit)(rng, domain)
    rules = [
        cm.AtMost(1, domain.names, 0) if seed % 2 else cm.Never({domain.names[0]: 0}),
        cm.Linear({v.name: {v.states[-1]: 1.0} for v in domain}, at_most=int(rng.integers(1, 4))),
    ]
    evidence = {domain.names[0]: {"likelihood": [1.0 + i for i in range(domain[domain.names[0]].n_states)]}}
    posterior = cm.condition(model, None, evidence, solver="exhaustive")
    states = np.indices(domain.n_states).reshape(len(domain), -1).T.astype(np.int16)
    rows = [domain.decode(row) for row in states]
    first, held = domain.names[0], [sum(row[v.name] == v.states[-1] for v in domain) for row in rows]
    zeros = [sum(row[n] == 0 for n in domain.names) for row in rows]
    allowed = np.array([h <= rules[1].at_most for h in held])
    allowed &= np.array([z <= 1 for z in zeros] if seed % 2 else [row[first] != 0 for row in rows])
    probs = np.sort(np.exp(posterior.log_prob(states[allowed])))[::-1]
    probs = probs[probs > 0.0]
    asking = {"constraints": rules, "top_mass": mass, "top_k": most, "solver": solver, "rng": seed}
    if not len(probs):
        with pytest.raises(cm.QueryError, match="satisf"):
            cm.map_query(model, None, evidence, **asking)
        return
    found = cm.map_query(model, None, evidence, **asking)
    told, sums = found.top_mass, np.cumsum(probs)
    needed = int(np.argmax(sums >= mass - 1e-9)) + 1 if sums[-1] >= mass - 1e-9 else None
    assert told.n == len(found.top) <= len(probs)
    assert told.requested == mass
    assert told.held == pytest.approx(sum(math.exp(v) for _, v in found.top))
    assert told.is_reached == (told.held >= mass - 1e-9)
    assert needed is None if told.fewest is None else needed is None or told.fewest <= needed
    if found.certificate.kind == "exact":
        n = min(most or covering.MOST, len(probs)) if needed is None else needed
        if told.is_reached or (needed is None and solver != "pac"):  # which may certify a shorter list only
            assert [v for _, v in found.top] == pytest.approx(np.log(probs[:n]))
        if told.is_reached:
            assert told.fewest == needed
        if needed is None and told.n == len(probs) < (most or covering.MOST):
            assert told.fewest is None
            assert "all that satisfy the constraints hold less" in repr(found)


def test_ties_at_the_end_are_one_as_good_as_the_other():
    fair = cm.BayesianNetwork.from_cpts(
        {f"c{i}": ["h", "t"] for i in range(8)}, {}, {f"c{i}": [0.5, 0.5] for i in range(8)}
    )
    for solver in ("exhaustive", "set_elimination", "frontier"):
        told = cm.map_query(fair, top_mass=0.75, solver=solver).top_mass
        assert (told.n, told.fewest, told.is_reached) == (192, 192, True)


def test_a_cap_is_kept_and_a_search_ends_once_it_cannot_suffice(monkeypatch):
    sizes = []
    run = covering.driver.run

    def seen(posterior, request, **how):
        sizes.append(request.top_k)
        return run(posterior, request, **how)

    monkeypatch.setattr(covering.driver, "run", seen)
    flat = cm.BayesianNetwork.from_cpts(
        {f"c{i}": ["h", "t"] for i in range(40)}, {}, {f"c{i}": [0.51, 0.49] for i in range(40)}
    )
    found = cm.map_query(flat, top_mass=0.95)
    assert sizes == [16]
    assert not found.top_mass.is_reached
    assert found.certified
    assert len(found.top) == 16
    assert found.top_mass.fewest > 1024
    assert f"16 assignments hold {found.top_mass.held:.6g} of the 0.95 asked for" in repr(found)


def test_the_failure_probability_is_of_all_lists_together():
    domain = cm.Domain.of_sizes([4] * 6)
    points = np.indices([4] * 6).reshape(6, -1).T
    probs = np.full(len(points), 0.2 / (len(points) - 4))
    probs[:4] = 0.2
    posterior = cm.FunctionPosterior(
        domain, lambda n, rng: points[rng.choice(len(points), n, p=probs)],
        lambda rows: np.log(probs[np.ravel_multi_index(rows.T, [4] * 6)]),
    )  # fmt: skip
    request = Request.of(solver="pac", top_mass=0.6, top_k=64, delta=0.06, max_samples=500)
    found = covering.run(posterior, request, control=Control(), seed=1, progress=False)
    alone = covering.driver.run(posterior, Request.of(solver="pac", top_k=16, delta=0.02, max_samples=500), seed=1)
    assert found.top_mass.is_reached
    assert found.certificate.requested_delta == 0.06
    assert found.certificate.delta == pytest.approx(min(1.0, 3.0 * alone.certificate.delta))


def test_proofs_rows_shell_and_records(examples, capsys, tmp_path):
    asia = cm.read(examples / "asia.bif")
    proved = cm.map_query(asia, None, {"dysp": "yes"}, top_mass=0.9, solver="set_elimination", proof=True)
    assert len(proved.top) == 6
    assert cm.check(asia, proved.proof).accepted
    assert proved.to_dict()["top_mass"]["fewest"] == 6
    circuit = random_circuit(np.random.default_rng(2), random_domain(np.random.default_rng(2), max_variables=6))
    proved = cm.map_query(circuit, top_mass=0.5, solver="frontier", proof=True)
    assert proved.top_mass.is_reached
    assert cm.check(circuit, proved.proof).accepted
    pd = pytest.importorskip("pandas")
    rows = cm.map_query(asia, ["lung", "bronc"], pd.DataFrame({"dysp": ["yes", "no"]}), top_mass=0.9)
    assert [row.top_mass.is_reached for row in rows] == [True, True]
    out = tmp_path / "answer.json"
    command = ["solve", str(examples / "asia.bif"), "-q", "lung,bronc", "-e", "dysp=yes", "--top-mass", "0.9"]
    assert main([*command, "--output", str(out)]) == 0
    assert "no fewer do" in capsys.readouterr().out
    told = json.loads(out.read_text())
    assert told["top_mass"]["held"] >= 0.9
    assert told["asked"]["settings"]["top_mass"] == 0.9
    assert main(["replay", str(out), str(examples / "asia.bif")]) == 0


def test_what_has_no_such_set_is_refused():
    with pytest.raises(cm.QueryError, match="top_mass adds up probabilities, and a real variable has a density"):
        cm.map_query(cm.GaussianMixture([1.0], [[0.0, 0.0]], [np.eye(2)]), "0", top_mass=0.5)
    coin = cm.BayesianNetwork.from_cpts({"c": ["h", "t"]}, {}, {"c": [0.5, 0.5]})
    for value in (0.0, 1.5, math.nan, "most"):
        with pytest.raises(cm.SolverError, match=r"top_mass is .*; expected a probability above 0 and at most 1"):
            cm.map_query(coin, top_mass=value)
    unknown = cm.FunctionPosterior(
        [2], lambda n, rng: np.zeros((n, 1)), lambda rows: np.zeros(len(rows)), normalised=False
    )
    with pytest.raises(cm.QueryError, match=r"top_mass needs p\(e\)"):
        cm.map_query(unknown, top_mass=0.5)


def test_a_heuristic_that_found_no_possible_assignment_shows_its_answer():
    """Each of two inputs is as likely to be 0 as 1, and not both of them are."""
    odd = np.zeros((2, 2, 2))
    odd[[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0]] = 1.0
    tables = {"a": [0.5, 0.5], "b": [0.5, 0.5], "c": odd}
    model = cm.BayesianNetwork.from_cpts({name: [0, 1] for name in "abc"}, {"c": ["a", "b"]}, tables)
    found = cm.map_query(model, ["a", "b"], {"c": 1}, top_mass=0.9, solver="hybrid_bp", epsilon=0)
    assert found.top == [(found.assignment, -math.inf)]
    assert (found.top_mass.n, found.top_mass.is_reached) == (1, False)


def test_a_hurry_in_which_p_of_e_is_not_summed_is_too_large(monkeypatch):
    pairs = itertools.combinations(range(30), 2)
    wide = cm.MarkovNetwork(
        cm.Domain.of_sizes([2] * 30), [cm.Factor(pair, [[1.0, 2.0], [3.0, 1.0]]) for pair in pairs]
    )

    def late(*given, **how):
        raise TimeUp("conditioning")

    monkeypatch.setattr("certimap.ask.session.Session.posterior", late)
    with pytest.raises(cm.errors.TooLarge, match=r"conditioning, and no assignment .*top_mass needs p\(e\)"):
        cm.map_query(wide, ["0"], top_mass=0.9, time_limit=60)
