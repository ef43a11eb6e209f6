"""Bayesian networks, linear-Gaussian networks and Markov random fields of pyagrum."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from certimap.core.arrays import Floats
from certimap.core.domain import Categorical, Domain
from certimap.densities.linear_gaussian import LinearGaussian, LinearGaussianNetwork
from certimap.errors import ModelError
from certimap.interop.reading import (
    Reading,
    Wishes,
    attribute,
    classes_of,
    kind_of,
    library_of,
    log_normal,
    logs,
    numbers,
    refuse,
)
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import Factor
from certimap.networks.network import MarkovNetwork


def convert(x: Any, wishes: Wishes) -> Reading:
    """Read a network of pyagrum; states are text, as its labels are."""
    if wishes.names is not None:
        raise ModelError(f"the variables of a {kind_of(x)} have names of their own; leave names out")
    if library_of(x) == "pyAgrum":
        raise ModelError(
            "a model of pyAgrum before version 2 was given, whose tables are laid out otherwise; "
            "expected pyagrum 2 or later"
        )
    kinds = set(classes_of(x))
    if "CLG" in kinds:
        return _linear_gaussian(x)
    if not kinds & {"BayesNet", "MarkovRandomField"}:
        raise refuse(x, "expected BayesNet, MarkovRandomField or CLG")
    ids = sorted(attribute(x, "nodes")())
    variables = [attribute(x, "variable")(i) for i in ids]
    names = [str(attribute(v, "name")()) for v in variables]
    domain = Domain(
        Categorical(name, tuple(attribute(v, "labels")())) for name, v in zip(names, variables, strict=True)
    )
    if "BayesNet" in kinds:
        tables = [attribute(x, "cpt")(i) for i in ids]
        read = BayesianNetwork(domain, [_factor(t, domain) for t in tables])
        return Reading(read, lambda rows: [_log_joint(x, at) for at in _instances(x, names, rows)])
    factors = [attribute(x, "factor")(scope) for scope in x.factors()]
    return Reading(
        MarkovNetwork(domain, [_factor(f, domain) for f in factors]),
        lambda rows: [logs(numbers([f.get(at) for f in factors])).sum() for at in _instances(x, names, rows)],
    )


def _instances(x: Any, names: list[str], rows: Floats) -> Iterator[Any]:
    """Yield pyagrum's instantiation at each row of state positions: one object, modified in place."""
    instance = attribute(x, "completeInstantiation")()
    for row in rows.astype(np.int64).tolist():
        for name, place in zip(names, row, strict=True):
            instance.chgVal(name, place)
        yield instance


def _log_joint(x: Any, instance: Any) -> float:
    """Return ln of the joint probability; for ln 0 pyagrum returns the lowest float."""
    log2 = float(attribute(x, "log2JointProbability")(instance))
    return math.log(2.0) * log2 if log2 > -1e300 else -math.inf


def _linear_gaussian(x: Any) -> Reading:
    """Read a network of real variables; `mu` is the intercept."""
    made: list[LinearGaussian] = []
    for node in sorted(attribute(x, "nodes")()):
        variable, parents = attribute(x, "variable")(node), sorted(attribute(x, "parents")(node))
        mean, sd = (float(attribute(variable, key)()) for key in ("mu", "sigma"))
        weights = [float(attribute(x, "coefArc")(parent, node)) for parent in parents]
        above = [str(attribute(x, "name")(parent)) for parent in parents]
        made.append(LinearGaussian(str(attribute(variable, "name")()), above, mean, weights, sd))
    return Reading(LinearGaussianNetwork(made), lambda rows: _log_densities(x, rows))


def _log_densities(x: Any, rows: Floats) -> Floats:
    """Return the sums of the logs of the variables' densities, from the means and coefficients by name."""
    columns = {str(x.name(node)): rows[:, i] for i, node in enumerate(sorted(x.nodes()))}
    total = np.zeros(len(rows))
    for name, column in columns.items():
        variable, above = x.variable(name), [x.name(parent) for parent in x.parents(name)]
        mean = variable.mu() + sum(columns[str(parent)] * x.coefArc(parent, name) for parent in above)
        total += log_normal(column, mean, float(variable.sigma()))
    return total


def _factor(tensor: Any, domain: Domain) -> Factor:
    """Read a tensor, whose names are in reverse order of its array's axes; a conditional table's child is last.

    Entries are read one by one: for a node without a plain table (a noisy OR, a logit, a maximum), `toarray`
    returns uninitialised memory.
    """
    scope = [domain.index(name) for name in reversed(attribute(tensor, "names"))]
    return Factor(scope, numbers(attribute(tensor, "tolist")()))
