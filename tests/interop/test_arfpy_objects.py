"""Adversarial random forests of arfpy, against their own tables of parameters by scipy."""

import numpy as np
import pytest

import certimap as cm
from certimap.errors import ModelError

pytest.importorskip("arfpy")

import pandas as pd
from arfpy import arf
from scipy import stats
from scipy.special import logsumexp


def frame(n=300, kinds=("x", "y", "c")):
    rng = np.random.default_rng(0)
    c = rng.choice(["a", "b", "c"], n, p=[0.5, 0.3, 0.2])
    columns = {
        "x": rng.normal(size=n) + 3.0 * (c == "a"),
        "y": rng.exponential(size=n),
        "c": pd.Categorical(c),
        "d": pd.Categorical(rng.choice([3, 7], n)),
    }
    return pd.DataFrame({k: columns[k] for k in kinds})


def forest(table, forde=True, **settings):
    np.random.seed(0)
    fitted = arf.arf(table, num_trees=4, verbose=False, random_state=0, **settings)
    if forde:
        fitted.forde()
    return fitted


def by_tables(fitted, row):
    """ln of the density of a row: over all leaves their share times the product of their distributions."""
    shares = fitted.bnds[["tree", "nodeid", "cvg"]].drop_duplicates()
    terms = []
    for tree, node, share in shares.itertuples(index=False):
        total = np.log(share / fitted.num_trees)
        for name, value in row.items():
            if name in fitted.levels:
                t = fitted.class_probs
                at = t[(t.tree == tree) & (t.nodeid == node) & (t.variable == name)]
                p = at[at.value == list(fitted.levels[name]).index(value)].prob
                total += np.log(p.iloc[0]) if len(p) else -np.inf
            else:
                t = fitted.params
                _, _, _, mean, sd, low, high = t[
                    (t.tree == tree) & (t.nodeid == node) & (t.variable == name)
                ].iloc[0]
                total += stats.truncnorm((low - mean) / sd, (high - mean) / sd, mean, sd).logpdf(value)
        terms.append(total)
    return logsumexp(terms)


@pytest.mark.parametrize("kinds", [("x", "y", "c"), ("x", "y"), ("c", "d"), ("d", "y", "x", "c")])
def test_densities_are_those_of_the_tables(kinds):
    table = frame(kinds=kinds)
    fitted = forest(table)
    some = table.iloc[:4]
    expected = [by_tables(fitted, row) for row in some.to_dict("records")]
    assert cm.log_likelihood(fitted, some) == pytest.approx(expected, abs=1e-9)


def test_missing_cells_are_filled_by_a_certified_mode():
    fitted = forest(frame())
    model = cm.from_object(fitted, names=["length", "wait", "kind"])
    result = cm.map_query(model, ["length", "wait"], {"kind": "a"}, epsilon=0.05, rng=0, time_limit=600)
    assert result.assignment["length"] == pytest.approx(3.0, abs=1.5)
    assert result.log_upper_bound >= result.log_prob
    grid = np.stack(np.meshgrid(np.linspace(-2, 6, 40), np.linspace(0.0, 4, 40)), axis=-1).reshape(-1, 2)
    posterior = cm.condition(model, ["length", "wait"], {"kind": "a"})
    assert posterior.log_prob(grid).max() <= result.log_upper_bound


def test_what_is_refused():
    with pytest.raises(ModelError, match=r"call its forde\(\) first"):
        cm.from_object(forest(frame(kinds=("x", "y")), forde=False))
    counts = frame(kinds=("x", "y")).assign(n=np.random.default_rng(1).poisson(1, 300))
    with pytest.raises(ModelError, match="column 'n' has the one value"):
        cm.from_object(forest(counts))
