"""`next_test` against enumeration: by tables, by trees, and between two sides."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import certimap as cm
from certimap.ask import next_test as module
from certimap.cli.main import main
from certimap.conversions.from_networks import visible_tree
from certimap.core.control import TimeUp
from certimap.errors import TooLarge
from certimap.testing.models import all_points, random_circuit, random_domain, random_network


def expected(model, query, test, evidence):
    """Return information and change by listing every assignment of all variables."""
    posterior = cm.condition(model, None, evidence, solver="exhaustive")
    domain = posterior.domain
    p = np.exp(posterior.log_prob(all_points(domain))).reshape(domain.n_states)
    kept = [domain.index(name) for name in (*query, test)]
    p = np.moveaxis(p, kept, range(len(kept))).reshape([*(domain.n_states[kept]), -1]).sum(axis=-1)
    p = p.reshape(-1, p.shape[-1]) / p.sum()
    product = p.sum(axis=1, keepdims=True) * p.sum(axis=0)
    seen = p > 0.0
    best = p.sum(axis=1)
    changed = p.max(axis=0) > p[int(np.argmax(best))] * (1.0 + 1e-8)
    is_tied = np.partition(best, -2)[-2] > best.max() * (1.0 - 1e-6) if len(best) > 1 else False
    close = np.any(
        (p.max(axis=0) > p[int(np.argmax(best))]) & (p.max(axis=0) < p[int(np.argmax(best))] * (1.0 + 1e-6))
    )
    return float(np.sum(p[seen] * np.log(p[seen] / product[seen]))), float(p[:, changed].sum()), is_tied or close


def asked(seed, is_network):
    """Return a random model with at least three variables, a query of some and soft evidence."""
    rng = np.random.default_rng(seed)
    while len(domain := random_domain(rng, max_variables=6, max_states=3)) < 3:
        pass
    model = (random_network if is_network else random_circuit)(rng, domain)
    query = list(domain.names[: int(rng.integers(1, len(domain) - 1))])
    last = domain[domain.names[-1]]
    return (
        model,
        query,
        {last.name: {"likelihood": rng.uniform(0.1, 1.0, last.n_states).tolist()}} if seed % 2 else {},
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 100_000), st.booleans(), st.sampled_from((math.log(2**16), math.log(3.5))))
def test_gains_are_as_listed_or_two_sides_of_it(seed, is_network, limit):
    model, query, evidence = asked(seed, is_network)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LISTED", limit)
        found = cm.next_test(model, query, None, evidence)
    assert set(found) == set(cm.condition(model, None, evidence).domain.names) - set(query)
    assert [g.information for g in found.values()] == sorted((g.information for g in found.values()), reverse=True)
    for name, gain in found.items():
        information, change, is_close = expected(model, query, name, evidence)
        assert gain.information - 1e-9 <= information <= gain.information_at_most + 1e-9
        if not is_close:
            assert gain.change - 1e-9 <= change <= gain.change_at_most + 1e-9
            assert gain.change == gain.change_at_most  # single answers are exact on either path
        if is_network or limit > 2.0:
            assert gain.information == gain.information_at_most


def test_the_entropy_of_a_tree_is_that_of_its_states():
    for seed in range(150):
        rng = np.random.default_rng(seed)
        model = random_network(rng, random_domain(rng, max_variables=9, max_states=3), max_parents=3)
        names = list(rng.permutation(model.domain.names)[: 1 + len(model.domain) * 3 // 4])
        tree = visible_tree(model, cm.make_query(model.domain, names), cm.Limits())
        p = np.exp(tree.log_prob(all_points(tree.domain)))
        assert tree.region_tree.is_visible
        assert tree.region_tree.entropy() == pytest.approx(
            -np.sum(p * np.log(np.where(p > 0.0, p, 1.0))), abs=1e-12
        )


def chain(n):
    """Return a noisy chain of n binary variables and one test at its end."""
    names = [f"x{i}" for i in range(n)] + ["test"]
    stay = [[0.9, 0.1], [0.2, 0.8]]
    parents = {b: [a] for a, b in itertools.pairwise(names)}
    return cm.BayesianNetwork.from_cpts(
        {v: ["no", "yes"] for v in names}, parents, {v: stay if v in parents else [0.7, 0.3] for v in names}
    )


def test_a_query_of_2_to_the_60_states_takes_a_tree():
    model = chain(60)
    gain = cm.next_test(model, [f"x{i}" for i in range(60)], "test")["test"]
    alone = cm.next_test(model, "x59", "test")["test"]  # which screens the others off
    assert gain.information == gain.information_at_most == pytest.approx(alone.information, abs=1e-11)
    p = cm.marginals(model, "test")["test"]["yes"]
    best = cm.map_query(model, [f"x{i}" for i in range(60)], epsilon=0).assignment
    with_yes = cm.map_query(model, [f"x{i}" for i in range(60)], {"test": "yes"}, epsilon=0).assignment
    assert gain.change == gain.change_at_most == pytest.approx(p if with_yes != best else 0.0)


def test_what_fits_no_table_lies_between_a_part_and_the_candidates_entropy(monkeypatch):
    model, query = chain(4), ["x0", "x1", "x2", "x3"]
    exact = cm.next_test(model, query, "test")["test"]
    table = module._Expected.table

    def narrow(self, *names):
        if len(names) > 2:
            raise TooLarge("too wide")
        return table(self, *names)

    monkeypatch.setattr(module._Expected, "table", narrow)
    gain = cm.next_test(model, query, "test")["test"]
    p = cm.marginals(model, "test")["test"]["yes"]
    assert gain.information == pytest.approx(exact.information)  # that about x3
    assert gain.information_at_most == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p))
    assert (gain.change, gain.change_at_most) == (0.0, 1.0)

    def late(self, *names):
        raise TimeUp("summing")

    monkeypatch.setattr(module._Expected, "table", late)
    late = cm.next_test(model, query, "test", time_limit=0.0)["test"]
    assert (late.information, late.information_at_most) == (0.0, math.log(2))


def test_costs_order_and_wrong_ones_are_refused(examples):
    asia, given = cm.read(examples / "asia.bif"), {"dysp": "yes"}
    assert list(cm.next_test(asia, "lung", ["smoke", "xray"], given)) == ["xray", "smoke"]
    assert list(cm.next_test(asia, "lung", ["smoke", "xray"], given, costs={"smoke": 1, "xray": 90})) == [
        "smoke",
        "xray",
    ]
    for candidates, costs, words in (
        (["nope"], None, "'nope' is no variable of the model"),
        (["dysp"], None, "candidate 'dysp' is observed already"),
        (["lung"], None, "candidate 'lung' is queried already"),
        ("xray", {"xray": 1, "xrey": 2}, "'xrey' is no variable"),
        ("xray", {}, "the cost of 'xray' is None; expected a positive number for each candidate"),
        ("xray", {"xray": math.nan}, "the cost of 'xray' is nan; expected"),
        ("xray", {"xray": -1.0}, "the cost of 'xray' is -1.0; expected"),
    ):
        with pytest.raises(cm.QueryError, match=words):
            cm.next_test(asia, "lung", candidates, given, costs=costs)
    normals = cm.GaussianMixture([1.0], [[0.0, 0.0]], [np.eye(2)])
    with pytest.raises(cm.QueryError, match="variable '0' is real; expected categorical variables"):
        cm.next_test(normals, "0")


def test_the_shell_prints_what_the_function_returns(examples, capsys):
    command = ["next", str(examples / "asia.bif"), "-q", "lung", "-e", "dysp=yes", "--candidates", "xray,smoke"]
    assert main([*command, "--cost", "xray=20,smoke=1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["variable", "smoke", "xray"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    gains = cm.next_test(cm.read(examples / "asia.bif"), "lung", ["xray", "smoke"], {"dysp": "yes"})
    assert list(found) == list(gains)
    assert found["xray"]["information"] == gains["xray"].information
    assert main(["next", str(examples / "asia.bif")]) == 2
    assert "the query names no variable" in capsys.readouterr().err
    pytest.importorskip("pandas")
    assert gains.to_frame().loc["xray", "change"] == gains["xray"].change
