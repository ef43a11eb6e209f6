"""Bayesian networks, linear-Gaussian networks and Markov random fields of pyagrum."""

from __future__ import annotations

from typing import Any

from certimap.core.domain import Categorical, Domain
from certimap.densities.linear_gaussian import LinearGaussian, LinearGaussianNetwork
from certimap.errors import ModelError
from certimap.interop.reading import Wishes, attribute, classes_of, kind_of, library_of, numbers, refuse
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import Factor
from certimap.networks.markov import MarkovNetwork


def convert(x: Any, wishes: Wishes) -> BayesianNetwork | LinearGaussianNetwork | MarkovNetwork:
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
        return BayesianNetwork(domain, [_factor(attribute(x, "cpt")(i), domain) for i in ids])
    return MarkovNetwork(domain, [_factor(attribute(x, "factor")(scope), domain) for scope in x.factors()])


def _linear_gaussian(x: Any) -> LinearGaussianNetwork:
    """Read a network of real variables; `mu` is what a variable's mean has beside its parents' shares."""
    made: list[LinearGaussian] = []
    for node in sorted(attribute(x, "nodes")()):
        variable, parents = attribute(x, "variable")(node), sorted(attribute(x, "parents")(node))
        mean, sd = (float(attribute(variable, key)()) for key in ("mu", "sigma"))
        weights = [float(attribute(x, "coefArc")(parent, node)) for parent in parents]
        above = [str(attribute(x, "name")(parent)) for parent in parents]
        made.append(LinearGaussian(str(attribute(variable, "name")()), above, mean, weights, sd))
    return LinearGaussianNetwork(made)


def _factor(tensor: Any, domain: Domain) -> Factor:
    """Read a tensor, whose names run against the axes of its array; in a conditional table its child is last."""
    scope = [domain.index(name) for name in reversed(attribute(tensor, "names"))]
    return Factor(scope, numbers(attribute(tensor, "toarray")()))
