"""Tables of a given structure: counts, and expectation-maximisation against enumeration of the missing cells."""

# pyright: basic

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import certimap as cm
from certimap.errors import DataError
from certimap.learn import GivenStructure, fit

STRUCTURE = {"b": ["a"], "c": ["a", "b"], "d": ["c"]}


def rows_of(network, n, rng, share=0.0, without=()):
    points = network.sample(n, rng=rng)
    gone = np.random.default_rng(rng).random(points.shape) < share
    return {
        v.name: [None if lost else v.states[s] for s, lost in zip(points[:, i], gone[:, i], strict=True)]
        for i, v in enumerate(network.domain)
        if v.name not in without
    }


def random_network(rng, sizes=(2, 3, 2, 3)):
    names, draw = "abcd", np.random.default_rng(rng)
    states = {n: [f"{n}{s}" for s in range(k)] for n, k in zip(names, sizes, strict=True)}
    shapes = {n: [len(states[p]) for p in (*STRUCTURE.get(n, ()), n)] for n in names}
    tables = {n: draw.dirichlet(np.ones(shape[-1]), shape[:-1]) for n, shape in shapes.items()}
    return cm.BayesianNetwork.from_cpts(states, STRUCTURE, tables)


def completions(network, table, weights):
    """Yield each completion of each row, with its weighted posterior, and ln p of all rows at last."""
    points = np.array(list(itertools.product(*(range(k) for k in network.domain.n_states))))
    joint, n = np.exp(network.log_prob(points)), len(next(iter(table.values())))
    total = 0.0
    for row in range(n):
        fits = np.ones(len(points), bool)
        for i, variable in enumerate(network.domain):
            label = table.get(variable.name, [None] * n)[row]
            fits &= (label is None) | (points[:, i] == (0 if label is None else variable.index(label)))
        total += weights[row] * np.log(joint[fits].sum())
        yield points[fits], weights[row] * joint[fits] / joint[fits].sum()
    yield None, total


def counts_of(network, table, weights):
    counts = [np.zeros(f.shape) for f in network.factors]
    for points, shares in completions(network, table, weights):
        if points is None:
            return counts, shares
        for count, factor in zip(counts, network.factors, strict=True):
            np.add.at(count, tuple(points[:, v] for v in factor.scope), shares)
    raise AssertionError


@pytest.mark.parametrize(
    ("prior", "alpha"), [("ml", lambda size: 0), ("dirichlet", lambda size: 3), ("bdeu", lambda size: 3 / size)]
)
def test_complete_tables_are_counted(prior, alpha):
    network = random_network(0)
    table, weights = rows_of(network, 60, 1), np.random.default_rng(2).integers(0, 4, 60)
    found = fit(network, table, prior=prior, strength=3.0, weights=weights)
    for got, count in zip(found.factors, counts_of(network, table, weights)[0], strict=True):
        expected = count + alpha(count.size)
        totals = expected.sum(axis=-1, keepdims=True)
        uniform = np.full(count.shape, 1 / count.shape[-1])
        expected = np.divide(expected, totals, out=uniform, where=totals > 0)
        np.testing.assert_allclose(got.table, expected, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([(), ("a",), ("c",), ("b", "c")]), st.sampled_from(["ml", "bdeu"]))
def test_steps_never_lose_and_end_where_expected_counts_are_the_tables(seed, hidden, prior):
    network = random_network(seed)
    table, weights = rows_of(network, 25, seed, 0.3, hidden), np.random.default_rng(seed).uniform(0.5, 2.0, 25)
    sizes = {name: network.domain[name].n_states for name in hidden}
    estimator = GivenStructure(
        network, hidden=sizes, weights=weights, prior=prior, max_steps=500, tolerance=1e-10, n_starts=1
    ).fit(table)
    assert np.all(np.diff(estimator.history_) >= -1e-9)
    counts, log_likelihood = counts_of(estimator.model_, table, weights)
    alphas = [0.0 if prior == "ml" else 1.0 / c.size for c in counts]
    logs = (a * np.log(f.table).sum() for a, f in zip(alphas, estimator.model_.factors, strict=True) if a)
    assert estimator.history_[-1] == pytest.approx(log_likelihood + sum(logs), abs=1e-4)
    for alpha, count, factor in zip(alphas, counts, estimator.model_.factors, strict=True):
        totals = (count + alpha).sum(axis=-1, keepdims=True)
        np.testing.assert_allclose(factor.table * totals, count + alpha, atol=0.05)


def test_hidden_variables_are_left_out_of_answers_and_scores_sum_them():
    network = random_network(5)
    table = rows_of(network, 300, 5, 0.1, ("c",))
    runs = [GivenStructure(STRUCTURE, hidden={"c": 2}, prior="ml", random_state=7).fit(table) for _ in range(2)]
    assert [f.table.tolist() for f in runs[0].model_.factors] == [f.table.tolist() for f in runs[1].model_.factors]
    assert runs[0].score(table) * 300 == pytest.approx(runs[0].history_[-1], abs=1e-6)
    assert set(cm.map_query(runs[0].model_, rng=0).assignment) == {"a", "b", "d"}
    single = GivenStructure(STRUCTURE, hidden={"c": 2}, prior="ml", random_state=7, n_starts=1).fit(table)
    assert single.history_[-1] <= runs[0].history_[-1]


def test_long_chains_and_hundreds_of_children_do_not_underflow():
    rng, n = np.random.default_rng(0), 400
    table = {f"x{i}": rng.integers(0, 3, 40) for i in range(n)}
    estimator = GivenStructure({f"x{i}": "h" for i in range(n)}, hidden={"h": 2}, n_starts=1, random_state=0)
    assert np.isfinite(estimator.fit(table).history_).all()
    chain = {f"h{i}": [f"h{i - 1}"] for i in range(1, 150)} | {f"x{i}": [f"h{i}"] for i in range(150)}
    estimator = GivenStructure(chain, hidden={f"h{i}": 2 for i in range(150)}, n_starts=1, max_steps=5)
    assert np.all(np.diff(estimator.fit(table).history_) > 0)


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_noisy_nodes_have_the_most_probable_causes(share):
    states = {"a": [0, 1], "b": ["x", "y", "z"], "d": [False, True]}
    node = cm.NoisyOr({"a": 0.6, "b": {"y": 0.2, "z": 0.8}}, leak=0.05)
    true = cm.BayesianNetwork.from_cpts(
        states, {"d": ["a", "b"]}, {"a": [0.5, 0.5], "b": [0.4, 0.3, 0.3], "d": node}
    )
    table = rows_of(true, 5000, 0, share)
    fitted = GivenStructure({"d": ["a", "b"]}, nodes={"d": "noisy-or"}, tolerance=1e-10, max_steps=500).fit(table)
    assert np.all(np.diff(fitted.history_) >= -1e-8)
    model, names = fitted.model_, fitted.model_.domain.names
    own = model.factors[names.index("d")]
    left = own.table[..., 0]
    np.testing.assert_allclose(left, left[:, :1] @ left[:1] / left[0, 0])  # causes are independent
    np.testing.assert_allclose(left, true.factors[2].table[..., 0], atol=0.05)
    best = fitted.score(table)
    for place, factor in itertools.product([np.s_[1, :], np.s_[:, 1], np.s_[:, 2], np.s_[:, :]], [0.98, 1.02]):
        moved = left.copy()
        moved[place] = np.minimum(moved[place] * factor, 1.0)
        others = [cm.Factor(own.scope, np.stack([moved, 1 - moved], -1)) if f is own else f for f in model.factors]
        assert cm.learn.score_samples(cm.BayesianNetwork(model.domain, others), table).mean() < best


def test_rows_that_the_start_excludes_are_named():
    start = cm.BayesianNetwork.from_cpts({"a": [0, 1], "b": [0, 1]}, {"b": ["a"]}, {"a": [1, 0], "b": np.eye(2)})
    with pytest.raises(DataError, match="row 2 is impossible under the tables to start from"):
        fit(start, {"a": [0, 1, None], "b": [0, 0, 1]})


def test_every_form_of_a_structure_is_the_same():
    network, table = random_network(3), rows_of(random_network(3), 50, 3)
    edges = [(p, c) for c, own in STRUCTURE.items() for p in own]
    numbers = {name: i for i, name in enumerate("abcd")}
    pyagrum = SimpleNamespace(
        nodes=lambda: set(numbers.values()),
        arcs=lambda: {(numbers[p], numbers[c]) for p, c in edges},
        variable=lambda i: SimpleNamespace(name=lambda: "abcd"[i]),
    )
    graph = SimpleNamespace(nodes=lambda: list("abcd"), edges=lambda: edges)
    wanted = {f.scope[-1]: f.table for f in fit(network, table, prior="ml").factors}
    for structure in (STRUCTURE, edges, pyagrum, graph):
        found = fit(structure, table | {"unused": range(50)}, prior="ml")
        assert set(found.domain.names) == set("abcd")
        for factor in found.factors:
            name = found.domain.names[factor.scope[-1]]
            expected = wanted[network.domain.index(name)]
            own = [found.domain.names[v] for v in factor.scope]
            theirs = [network.domain.names[v] for v in network.factors[network.domain.index(name)].scope]
            np.testing.assert_allclose(factor.table, np.transpose(expected, [theirs.index(n) for n in own]))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (({"a": ["b"], "b": ["a"]}, {"a": [0, 1], "b": [0, 1]}), "has the circle"),
        ((7, {"a": [0, 1]}), "the structure is 7; expected a mapping from children to parents"),
        (({"b": ["a"]}, {"b": [0, 1]}), "'a' must be a variable of the structure, and a column"),
        (({"b": ["a"]}, {"a": [0.5, 1.5], "b": [0, 1]}), "kinds= makes states of numbers"),
    ],
)
def test_what_does_not_fit_is_named(arguments, said):
    with pytest.raises(DataError, match=said):
        fit(*arguments)
    with pytest.raises(DataError, match="'h' must be a variable of the structure"):
        fit({"b": ["a"]}, {"a": [0, 1], "b": [0, 1]}, hidden={"h": 2})
    with pytest.raises(DataError, match="nodes has 'b'; expected variables of two states"):
        fit({"b": ["a"]}, {"a": [0, 1, 1], "b": [0, 1, 2]}, nodes={"b": "noisy-or"})
    for setting in ({"prior": "flat"}, {"weights": [1.0]}, {"weights": [-1.0, 1.0]}, {"strength": 0}):
        with pytest.raises(DataError, match=next(iter(setting))):
            fit({"b": ["a"]}, {"a": [0, 1], "b": [0, 1]}, **setting)  # pyright: ignore[reportArgumentType]


MIXED = {"b": ["a"], "x": ["a"], "y": ["x", "b", "a"], "z": ["y", "x"]}


def mixed_rows(n, seed):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 2, n), rng.integers(0, 3, n)
    x = 10.0 + 3.0 * a + rng.normal(0.0, 2.0, n)
    y = (1.0 + b) * x - a + rng.normal(0.0, 0.1 + a, n)
    return {"a": a, "b": b, "x": x, "y": y, "z": 1e-6 * (y - 2.0 * x) + 1e-6 * rng.normal(size=n)}


def log_density(network, table):
    """Ln p of each row by the definition."""
    names = network.discrete.domain.names
    states = np.stack([table[name] for name in names], axis=1)
    total = network.discrete.log_prob(states.astype(np.int16))
    for node in network.nodes:
        at = tuple(table[p] for p in node.parents if p in names)
        above = [table[p] for p in node.parents if p not in names]
        slopes = np.broadcast_to(node.coefficients, (*np.shape(node.intercept), len(above)))[at]
        slopes = np.broadcast_to(slopes, (len(states), len(above)))
        gaps = table[node.variable] - node.intercept[at] - sum(slopes[:, i] * v for i, v in enumerate(above))
        total = total - 0.5 * (gaps / node.sd[at]) ** 2 - np.log(node.sd[at] * np.sqrt(2.0 * np.pi))
    return total


def test_real_columns_become_linear_gaussians_of_most_probable_numbers():
    table, weights = mixed_rows(200, 0), np.random.default_rng(1).integers(0, 4, 200)
    estimator = GivenStructure(MIXED, prior="ml", weights=weights).fit(table)
    model = estimator.model_
    assert type(model).__name__ == "LinearGaussianNetwork"
    logs = log_density(model, table)
    np.testing.assert_allclose(estimator.score_samples(table), logs, atol=1e-6)
    best = float(weights @ logs)
    assert estimator.history_[-1] == pytest.approx(best, abs=1e-6)
    for k, node in enumerate(model.nodes):
        for part in ("intercept", "coefficients", "sd"):
            for place in np.ndindex(np.shape(getattr(node, part))):
                for factor in (0.999, 1.001):
                    moved = np.array(getattr(node, part))
                    moved[place] *= factor
                    nodes = list(model.nodes)
                    nodes[k] = replace(node, **{part: moved})
                    assert weights @ log_density(cm.LinearGaussianNetwork(nodes, model.discrete), table) < best
    repeated = {name: np.repeat(column, weights) for name, column in table.items()}
    for node, other in zip(model.nodes, fit(model, repeated, prior="ml").nodes, strict=True):
        np.testing.assert_allclose(node.coefficients, other.coefficients, rtol=1e-7)
        np.testing.assert_allclose(node.sd, other.sd, rtol=1e-7)


def test_priors_of_real_variables_are_rows_on_the_line_of_all_rows():
    table, strength = mixed_rows(12, 3), 5.0
    alone = [fit({"z": ["y", "x"]}, table, prior=prior).nodes[-1] for prior in ("ml", "bdeu")]
    np.testing.assert_allclose(alone[0].coefficients, alone[1].coefficients, rtol=1e-9)
    x, y = ((c - c.mean()) / c.std() for c in (table["x"], table["y"]))
    for prior, n in (("dirichlet", strength), ("bdeu", strength / 2)):
        node = fit({"y": ["x", "a"]}, table, prior=prior, strength=strength).nodes[-1]
        slope = x @ y / 12
        left = y - slope * x
        for state in (0, 1):
            rows = table["a"] == state
            design = np.stack([np.ones(rows.sum()), x[rows]], axis=1)
            gain = np.linalg.solve(design.T @ design + n * np.eye(2), design.T @ left[rows])
            total = slope + gain[1]
            np.testing.assert_allclose(node.coefficients[state], [total * table["y"].std() / table["x"].std()])
            rest = np.sum((left[rows] - design @ gain) ** 2) + n * np.sum(gain**2) + n * left @ left / 12
            assert node.sd[state] == pytest.approx(table["y"].std() * np.sqrt(rest / (rows.sum() + n)))


def test_real_variables_keep_a_least_deviation_and_unseen_configurations_the_line_of_all_rows():
    table = {"a": [0, 0, 1, 1], "b": [0, 0, 0, 1], "x": [1.5, 2.5, 4.5, 7.5]}
    node = fit({"x": ["a", "b"]}, table, prior="ml").nodes[0]
    column = np.array(table["x"])
    np.testing.assert_allclose(node.intercept, [[2.0, column.mean()], [4.5, 7.5]])
    np.testing.assert_allclose(node.sd, [[0.5, column.std()], [1e-3 * column.std()] * 2])


def test_missing_cells_beside_real_variables():
    table = {name: list(column) for name, column in mixed_rows(60, 4).items()}
    whole = fit(MIXED, {name: column[5:] for name, column in table.items()}, prior="ml")
    for name in ("z", "y"):
        table[name][:5] = [None] * 5
    estimator = GivenStructure(MIXED, prior="ml").fit(table)
    for node, other in zip(whole.nodes, estimator.model_.nodes, strict=True):
        if node.variable != "x":
            np.testing.assert_allclose(node.coefficients, other.coefficients, rtol=1e-9)
    assert estimator.score(table) * 60 == pytest.approx(estimator.history_[-1], abs=1e-6)
    table["y"][7] = None
    with pytest.raises(DataError, match="'y' and its parents need all cells, but row 7 lacks 'y'"):
        fit(MIXED, table)
    table["y"][7], table["a"][9] = 1.0, None
    with pytest.raises(DataError, match="and its parents need all cells, but row 9 lacks 'a'"):
        fit(MIXED, table)
    with pytest.raises(DataError, match="row 0 lacks 'h'"):
        fit({"x": "h"}, {"x": [0.5, 1.5]}, hidden={"h": 2})
    with pytest.raises(DataError, match="'a' has states and the real parent 'x'"):
        fit({"a": "x"}, table)
    with pytest.raises(DataError, match="nodes has 'x'; expected variables of two states"):
        fit({"x": "a"}, mixed_rows(9, 0), nodes={"x": "noisy-or"})


SLICES = {"h[1]": ["h[0]"], "x[0]": ["h[0]", "w"], "x[1]": ["w", "h[1]"], "y[1]": ["x[0]", "x[1]"], "h[0]": []}


def slices(seed):
    rng, states = np.random.default_rng(seed), {n: ["p", "q"] for n in ("h[0]", "h[1]", "x[0]", "x[1]", "w")}
    states["y[1]"] = ["p", "q", "r"]
    shared = rng.dirichlet([1.0, 1.0], (2, 2))
    sizes = {n: [*(2 for _ in SLICES.get(n, ())), len(labels)] for n, labels in states.items()}
    tables = {n: rng.dirichlet(np.ones(k), shape) for n, (*shape, k) in sizes.items()}
    tables |= {"x[0]": shared, "x[1]": shared.transpose(1, 0, 2)}
    return cm.BayesianNetwork.from_cpts(states, SLICES, tables)


def sequences(seed, lengths, share):
    """Tables of sequences, missing cells None, and all of them as rows of the unrolled network."""
    rng, tables = np.random.default_rng(seed), []
    whole: Any = cm.unroll(slices(seed), max(lengths))
    wide = {name: [] for name in whole.domain.names if name[0] != "h"}
    for point, n in zip(whole.sample(len(lengths), rng=rng), lengths, strict=True):
        label = {v: whole.domain[v].states[s] for v, s in zip(whole.domain.names, point, strict=True)}
        table = {"w": [label["w"]] * n}
        for base in "xy":
            cells = [label.get(f"{base}[{t}]") for t in range(n)]
            table[base] = [None if rng.random() < share else cell for cell in cells]
        tables.append(table)
        for name, column in wide.items():
            at = 0 if name == "w" else int(name[2:-1])
            column.append(table[name[0]][at] if at < n else None)
    return tables, wide, whole


def stepped(network, wide, weights):
    """Tables by base and by whether they begin, parents sorted: from counts of steps that a known cell needs."""
    sums, names, total = {}, network.domain.names, 0.0
    for row, weight in enumerate(weights):
        table = {name: column[row : row + 1] for name, column in wide.items()}
        counts, value = counts_of(network, table, [weight])
        total += value
        needed = {name for name, column in table.items() if column[0] is not None}
        for _ in names:
            needed |= {names[v] for f in network.factors if names[f.scope[-1]] in needed for v in f.scope}
        for count, factor in zip(counts, network.factors, strict=True):
            own = [names[v] for v in factor.scope]
            order = sorted(range(len(own) - 1), key=own.__getitem__)
            key = own[-1][0] + ("0" if own[-1] == "h[0]" else "")
            sums[key] = sums.get(key, 0.0) + (own[-1] in needed) * count.transpose([*order, len(own) - 1])
    totals = {key: c.sum(axis=-1, keepdims=True) for key, c in sums.items()}
    uniform = {key: np.full(c.shape, 1 / c.shape[-1]) for key, c in sums.items()}
    tables = {key: np.divide(c, totals[key], out=uniform[key], where=totals[key] > 0) for key, c in sums.items()}
    return tables, total


def test_one_step_over_sequences_sums_expected_counts_of_all_their_steps():
    lengths, weights = (4, 2, 1, 4, 3), np.array([1.0, 2.0, 0.5, 1.0, 3.0])
    tables, wide, whole = sequences(3, lengths, 0.3)
    ids = [n for n, k in enumerate(lengths) for _ in range(k)]
    rows = {name: [cell for table in tables for cell in table[name]] for name in "wxy"}
    mixed = np.argsort([t for k in lengths for t in range(k)], kind="stable")  # all first steps first
    frame = {"id": [f"s{ids[i]}" for i in mixed]} | {
        name: [column[i] for i in mixed] for name, column in rows.items()
    }
    settings = {"hidden": {"h": 2}, "prior": "ml", "max_steps": 1, "n_starts": 1, "weights": weights}
    expected, value = stepped(whole, wide, weights)
    for data, sequence in ((tables, True), (frame, "id")):
        estimator = GivenStructure(slices(3), sequence=sequence, **settings).fit(data)
        assert estimator.history_ == pytest.approx([value], abs=1e-9)
        model = estimator.model_
        for name, key in {"h[0]": "h0", "h[1]": "h", "x[0]": "x", "x[1]": "x", "y[1]": "y", "w": "w"}.items():
            np.testing.assert_allclose(model.factors[model.domain.index(name)].table, expected[key], atol=1e-9)
        assert model.hidden == {"h[0]", "h[1]"}
        assert len(cm.unroll(model, 6).domain) == 1 + 6 + 6 + 5


def test_whole_sequences_are_counted_and_random_starts_never_lose():
    tables, _, _ = sequences(5, (9, 30, 14), 0.0)
    x, w = (np.concatenate([np.array(t[name]) == "q" for t in tables]).astype(int) for name in "xw")
    model = fit({"x[0]": ["w"], "x[1]": ["w"]}, tables, sequence=True, prior="dirichlet", strength=2.0)
    for name in ("x[0]", "x[1]"):
        table = model.factors[model.domain.index(name)].table
        counts = [[np.sum((w == i) & (x == j)) + 2.0 for j in (0, 1)] for i in (0, 1)]
        np.testing.assert_allclose(table, np.divide(counts, np.sum(counts, axis=1, keepdims=True)))
    start = model.factors[model.domain.index("w")].table  # one count per sequence
    assert start * 7 == pytest.approx(
        [2 + 3 - sum(t["w"][0] == "q" for t in tables), 2 + sum(t["w"][0] == "q" for t in tables)]
    )
    learner = GivenStructure(SLICES, hidden={"h": 3}, sequence=True, random_state=1, n_starts=2, max_steps=30)
    assert np.all(np.diff(learner.fit(tables).history_) >= -1e-9)


@pytest.mark.parametrize(
    ("structure", "sequence", "said"),
    [
        ({"x": ["w"]}, True, "names no slices"),
        ({"x[0]": ["x[1]"]}, True, "'x.0.' needs the parent 'x.1.'"),
        ({"x[1]": ["w"], "x[0]": [], "w": ["x[0]"]}, True, "'w' needs the parent 'x.0.'"),
        ({"x[1]": ["w[0]"], "x[0]": []}, True, "'x.2.' needs the parent 'w.1.'"),
        ({"x[1]": ["x[0]"]}, "id", "sequence is 'id'; expected a full column"),
        ({"v": [], "x[1]": ["x[0]"]}, True, "column 'v' changes within a sequence"),
        ({"z[0]": [], "z[1]": []}, True, "column 'z' is real"),
    ],
)
def test_sequences_that_do_not_fit_are_named(structure, sequence, said):
    table = {"w": [0, 0, 0], "x": [0, 1, 1], "v": [0, 1, 0], "z": [0.5, 1.5, 0.25]}
    with pytest.raises(DataError, match=said):
        fit(structure, [table] if sequence is True else table, sequence=sequence)
    for data in (table, [], [{}], [table, {}]):
        with pytest.raises(DataError, match="expected a list of tables, as sequence is True"):
            fit({"x[1]": ["x[0]"]}, data, sequence=True)
