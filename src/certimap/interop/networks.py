"""Networks of pgmpy and pyagrum: Bayesian, linear-Gaussian and Markov; discrete ones also go back to pgmpy."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from certimap.core.arguments import is_sequence, shown
from certimap.core.arrays import Floats
from certimap.core.domain import Categorical, Domain
from certimap.core.logs import log_of
from certimap.core.model import Model
from certimap.core.named import needed
from certimap.core.steps import at_step
from certimap.decisions.network import DecisionNetwork, Utility
from certimap.densities.gaussian_mixture import LOG_2PI
from certimap.densities.linear_gaussian import LinearGaussian, LinearGaussianNetwork
from certimap.errors import ModelError, QueryError
from certimap.interop import reading
from certimap.interop.reading import Reading, Wishes, attribute, classes_of, kind_of, labels_of, numbers
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import Factor
from certimap.networks.network import MarkovNetwork
from certimap.networks.unrolled import unrolled

_ACCEPTED = (
    "expected DiscreteBayesianNetwork, NaiveBayes, DynamicBayesianNetwork, LinearGaussianBayesianNetwork, "
    "DiscreteMarkovNetwork, FactorGraph, JunctionTree, ClusterGraph or MarkovChain"
)
_BAYESIAN = {"DiscreteBayesianNetwork", "BayesianNetwork", "BayesianModel"}
_MARKOV = {"DiscreteMarkovNetwork", "MarkovNetwork", "MarkovModel", "FactorGraph", "ClusterGraph"}
_GAUSSIAN = "LinearGaussianBayesianNetwork"
_DYNAMIC = "DynamicBayesianNetwork"
OUR_WAY = "evidence={'X': {'likelihood': [one weight per state]}} says the same"
Law = tuple[float, Iterable[tuple[Any, float]], float]  # intercept, parents with their weights, standard deviation


def read_pgmpy(x: Any, wishes: Wishes) -> Reading:
    """Read a network of pgmpy; names of other types become text."""
    _check_unnamed(x, wishes)
    kinds = set(classes_of(x))
    if _GAUSSIAN in kinds:
        return _gaussian_of_pgmpy(x)
    if _DYNAMIC in kinds:
        return _of_steps(x, _bayesian(x), wishes.steps)
    if "MarkovChain" in kinds:
        return _of_steps(x, _chains(x), wishes.steps)
    if "FunctionalBayesianNetwork" in kinds or not kinds & (_BAYESIAN | _MARKOV):
        raise reading.refuse(x, _ACCEPTED)
    return _bayesian(x) if kinds & _BAYESIAN else _markov(x)


def _of_steps(x: Any, two: Reading, steps: int | None) -> Reading:
    """Return a sequence of a number of steps; its two slices are compared with the object's."""
    if steps is None:
        raise ModelError(
            f"a {kind_of(x)} stands for sequences of any length; certimap.unroll(model, steps) reads one"
        )
    assert isinstance(two.model, BayesianNetwork)
    return replace(two, model=unrolled(two.model, steps), compared=two.model)


def _check_unnamed(x: Any, wishes: Wishes) -> None:
    if wishes.names is not None:
        raise ModelError(f"the variables of a {kind_of(x)} have names of their own; leave names out")


def _bayesian(x: Any) -> Reading:
    tables = _of_nodes(x, "table", lambda cpd: list(attribute(cpd, "variables"))[1:])
    nodes = list(tables)
    domain = _domain(x, nodes, list(tables.values()))
    place = {node: i for i, node in enumerate(nodes)}
    factors: list[Factor] = []
    for node in nodes:
        child, *parents = list(attribute(tables[node], "variables"))
        table = np.moveaxis(_aligned(tables[node], domain, place), 0, -1)
        factors.append(Factor([place[v] for v in (*parents, child)], table))
    return Reading(
        BayesianNetwork(domain, factors), lambda rows: _log_values(list(tables.values()), domain, nodes, rows)
    )


def _of_nodes(x: Any, what: str, parents_of: Callable[[Any], list[Any]]) -> dict[Any, Any]:
    """Return each node's table or density; ModelError for a missing one, or other parents than the graph's."""
    found: dict[Any, Any] = {attribute(cpd, "variable"): cpd for cpd in attribute(x, "get_cpds")()}
    made: dict[Any, Any] = {}
    for node in attribute(x, "nodes")():
        if node not in found:
            told = f"node {node!r} of this {kind_of(x)} has no conditional {what}; each needs one"
            raise ModelError(f"{told} (certimap.learn.fit(model, data) learns all of them)")
        parents = parents_of(found[node])
        if set(parents) != set(attribute(x, "predecessors")(node)):
            raise ModelError(f"the {what} of node {node!r} has the parents {parents}; the graph has others")
        made[node] = found[node]
    return made


def _log_values(tables: list[Any], domain: Domain, nodes: list[Any], rows: Floats) -> list[float]:
    """Return the logs of the products of pgmpy's tables, looked up by the labels of each assignment."""
    totals: list[float] = []
    for row in rows:
        labels = dict(zip(nodes, domain.decode(row).values(), strict=True))
        places = [
            tuple(attribute(t, "name_to_no")[v][labels[v]] for v in attribute(t, "variables")) for t in tables
        ]
        entries = [float(attribute(t, "values")[place]) for t, place in zip(tables, places, strict=True)]
        totals.append(float(log_of(np.array(entries)).sum()))
    return totals


def _gaussian_of_pgmpy(x: Any) -> Reading:
    found = _of_nodes(x, "density", lambda cpd: list(attribute(cpd, "evidence")))
    made: list[LinearGaussian] = []
    for node, density in found.items():
        parents = list(attribute(density, "evidence"))
        weights = numbers(attribute(density, "beta")).reshape(-1)
        if len(weights) != 1 + len(parents):
            text = f"node {node!r} has {len(weights)} numbers as beta; expected an intercept and one per parent"
            raise ModelError(text)
        sd = float(attribute(density, "std"))
        above = [str(parent) for parent in parents]
        made.append(LinearGaussian(str(node), above, weights[0], weights[1:], sd))

    def law(node: Any) -> Law:  # pgmpy's own joint Gaussian is rounded to eight decimals
        intercept, *weights = numbers(found[node].beta).reshape(-1).tolist()
        return intercept, zip(found[node].evidence, weights, strict=True), float(found[node].std)

    return _of_laws(made, list(found), law)


def _of_laws(made: list[LinearGaussian], nodes: list[Any], law: Callable[[Any], Law]) -> Reading:
    """Return a network, compared with the library's densities: the law of each node given its parents."""

    def log_densities(rows: Floats) -> Floats:
        columns, total = dict(zip(nodes, rows.T, strict=True)), np.zeros(len(rows))
        for node, column in columns.items():
            intercept, parents, sd = law(node)
            mean = intercept + sum(columns[parent] * weight for parent, weight in parents)
            total -= 0.5 * (((column - mean) / sd) ** 2 + LOG_2PI) + math.log(sd)
        return total

    network = LinearGaussianNetwork(made)
    return Reading(network, log_densities, compared=network.mixture())


def _chains(x: Any) -> Reading:
    """Read the first two steps of independent chains, from the object's state, or any with equal chances."""
    start = {node: int(state) for node, state in attribute(x, "state") or ()}
    moves, variables, factors = attribute(x, "transition_models"), list[Categorical](), list[Factor]()
    for k, (node, n) in enumerate(attribute(x, "cardinalities").items()):
        if set(moves[node]) != set(range(n)):
            raise ModelError(f"variable {node!r} of this {kind_of(x)} has no transition model; each needs one")
        variables += [Categorical(at_step(str(node), t), tuple(range(n))) for t in (0, 1)]
        first = np.eye(n)[start[node]] if node in start else np.full(n, 1.0 / n)
        move = [[moves[node][a].get(b, 0.0) for b in range(n)] for a in range(n)]
        factors += [Factor((2 * k,), first), Factor((2 * k, 2 * k + 1), move)]
    return Reading(BayesianNetwork(Domain(variables), factors))


def _markov(x: Any) -> Reading:
    kinds = set(classes_of(x))
    factors: list[Any] = list(attribute(x, "get_factors")())
    nodes: list[Any] = list(attribute(x, "get_variable_nodes" if "FactorGraph" in kinds else "nodes")())
    if "ClusterGraph" in kinds:  # its nodes are tuples of variables
        nodes = list(dict.fromkeys(v for clique in nodes for v in clique))
    covered = {variable for factor in factors for variable in attribute(factor, "variables")}
    lacking = [node for node in nodes if node not in covered]
    if lacking:
        raise ModelError(f"no factor of this {kind_of(x)} has node {lacking[0]!r}, so that its states are unknown")
    domain = _domain(x, nodes, factors)
    place = {node: i for i, node in enumerate(nodes)}
    read = [Factor([place[v] for v in attribute(f, "variables")], _aligned(f, domain, place)) for f in factors]
    return Reading(MarkovNetwork(domain, read), lambda rows: _log_values(factors, domain, nodes, rows))


def _domain(x: Any, nodes: list[Any], tables: list[Any]) -> Domain:
    """Return the variables; tables with a variable on the first axis give the order of its states."""
    states: dict[Any, tuple[Any, ...]] = {}
    for table in tables:
        for variable, labels in attribute(table, "state_names").items():
            found = labels_of(labels)
            known = states.setdefault(variable, found)
            if set(known) != set(found):
                told = f"two tables of this {kind_of(x)} give node {variable!r} the states {known} and {found}"
                raise ModelError(told)
    is_dynamic = _DYNAMIC in classes_of(x)
    names = [at_step(str(node[0]), int(node[1])) if is_dynamic else str(node) for node in nodes]
    if len(set(names)) != len(names):
        doubled = next(name for name in names if names.count(name) > 1)
        raise ModelError(f"two nodes of this {kind_of(x)} are written {doubled!r}; names must be distinct as text")
    return Domain(Categorical(name, states[node]) for name, node in zip(names, nodes, strict=True))


def _aligned(table: Any, domain: Domain, place: dict[Any, int]) -> Any:
    """Return a table's values with the states of each axis in the domain's order."""
    values = numbers(attribute(table, "values"))
    for axis, variable in enumerate(attribute(table, "variables")):
        own = domain.variables[place[variable]]
        assert isinstance(own, Categorical)
        given = labels_of(attribute(table, "state_names")[variable])
        if given != own.states:
            values = np.take(values, [given.index(label) for label in own.states], axis=axis)
    return values


def to_pgmpy(model: Any) -> Any:
    """Return a network as a pgmpy model.

    `model`: a `BayesianNetwork` or `MarkovNetwork`. The `DiscreteBayesianNetwork` or `DiscreteMarkovNetwork` has
    the same names, states and tables. A variable without factor gets one of ones, and a constant goes into the
    first factor. Raises ModelError for another model, for a table with rows of zeros, which pgmpy rejects, and for
    factors beyond floats; MissingDependency without pgmpy.
    """
    if not isinstance(model, BayesianNetwork | MarkovNetwork):
        raise ModelError(f"a {type(model).__name__} is no network; pgmpy holds Bayesian and Markov networks")
    models, discrete = (
        needed(module, "to_pgmpy needs pgmpy: pip install pgmpy")
        for module in ("pgmpy.models", "pgmpy.factors.discrete")
    )
    if isinstance(model, BayesianNetwork):
        return _to_bayesian(model, models, discrete)
    return _to_markov(model, models, discrete)


def _states(domain: Domain, scope: tuple[int, ...]) -> dict[str, list[Any]]:
    return {v.name: list(v.states) for v in (domain.variables[i] for i in scope) if isinstance(v, Categorical)}


def _to_bayesian(model: BayesianNetwork, models: Any, discrete: Any) -> Any:
    names = model.domain.names
    out = models.DiscreteBayesianNetwork()
    out.add_nodes_from(names)
    out.add_edges_from((names[p], names[i]) for i, parents in enumerate(model.parents) for p in parents)
    for i, factor in enumerate(model.factors):
        *parents, _ = factor.scope
        rows = factor.table.reshape(-1, factor.shape[-1])
        if not np.all(rows.sum(axis=1) > 0.0):
            raise ModelError(f"the table of {names[i]!r} has a row of zeros, which pgmpy refuses")
        out.add_cpds(
            discrete.TabularCPD(
                names[i],
                factor.shape[-1],
                rows.T,
                evidence=[names[p] for p in parents] or None,
                evidence_card=list(factor.shape[:-1]) or None,
                state_names=_states(model.domain, factor.scope),
            )
        )
    return out


def _to_markov(model: MarkovNetwork, models: Any, discrete: Any) -> Any:
    names = model.domain.names
    constant = float(np.prod([f.table for f in model.factors if not f.scope]))
    scopes = {v for f in model.factors for v in f.scope}
    ones = [Factor((v,), np.ones(int(model.domain.n_states[v]))) for v in range(len(names)) if v not in scopes]
    out = models.DiscreteMarkovNetwork()
    out.add_nodes_from(names)
    for factor in (*(f for f in model.factors if f.scope), *ones):
        table = factor.table * constant
        constant = 1.0
        scope = [names[v] for v in factor.scope]
        if not np.all(np.isfinite(table)):
            raise ModelError(f"the factor over {scope} exceeds floats, which pgmpy holds")
        out.add_edges_from((a, b) for k, a in enumerate(scope) for b in scope[k + 1 :])
        states = _states(model.domain, factor.scope)
        out.add_factors(discrete.DiscreteFactor(scope, list(factor.shape), table, state_names=states))
    return out


def with_virtual_evidence(evidence: Any, virtual: Any) -> dict[str, Any]:
    """Join evidence with pgmpy's virtual evidence.

    `evidence`: a mapping or a Series from names to values, or None. `virtual`: tables over single variables
    (`TabularCPD`, `DiscreteFactor`) with likelihoods of the states. Returns evidence with a likelihood for each
    label of these variables. Raises QueryError for anything else, and for a variable that has evidence already.
    """
    if evidence is not None and hasattr(evidence, "iterrows"):
        raise QueryError(f"virtual_evidence does not go with a frame of evidence rows; {OUR_WAY} in each row")
    joined: dict[str, Any] = {} if evidence is None else {str(name): value for name, value in evidence.items()}
    for table in virtual if is_sequence(virtual) else [virtual]:
        name, likelihood = _likelihood(table)
        if joined.get(name) is not None:
            raise QueryError(f"variable {name!r} has virtual evidence and evidence; expected one")
        joined[name] = likelihood
    return joined


def _likelihood(table: Any) -> tuple[str, dict[str, Any]]:
    if not all(hasattr(table, name) for name in ("variables", "values", "state_names")):
        text = f"virtual evidence holds {shown(table)}; expected a table of pgmpy over one variable, and {OUR_WAY}"
        raise QueryError(text)
    variables = list(table.variables)
    if len(variables) != 1:
        told = ", ".join(str(v) for v in variables)
        raise QueryError(
            f"a table of virtual evidence is over several variables ({told}); expected one each (an observed "
            "child of them all, added to the network, says the same)"
        )
    labels = labels_of(table.state_names[variables[0]])
    weights = numbers(table.values).ravel().tolist()
    return str(variables[0]), {"likelihood": dict(zip(labels, weights, strict=True))}


def read_pyagrum(x: Any, wishes: Wishes) -> Reading:
    """Read a network of pyagrum; states are text, as its labels are."""
    _check_unnamed(x, wishes)
    if reading.library_of(x) == "pyAgrum":
        told = "a model of pyAgrum before version 2 was given, whose tables are laid out otherwise"
        raise ModelError(f"{told}; expected pyagrum 2 or later")
    kinds = set(classes_of(x))
    if "CLG" in kinds:
        return _gaussian_of_pyagrum(x)
    if not kinds & {"BayesNet", "MarkovRandomField", "InfluenceDiagram"}:
        raise reading.refuse(x, "expected BayesNet, MarkovRandomField, InfluenceDiagram or CLG")
    ids = sorted(attribute(x, "nodes")())
    if "InfluenceDiagram" in kinds:
        ids = [i for i in ids if not x.isUtilityNode(i)]
    variables = [attribute(x, "variable")(i) for i in ids]
    names = [str(attribute(v, "name")()) for v in variables]
    labels = [tuple(attribute(v, "labels")()) for v in variables]
    domain = Domain(map(Categorical, names, labels))
    if "BayesNet" in kinds:
        read = BayesianNetwork(domain, [_factor(attribute(x, "cpt")(i), domain) for i in ids])
        found = Reading(read, lambda rows: [_log_joint(x, at) for at in _instances(x, names, rows)])
        return found if wishes.steps is None else _of_steps(x, found, wishes.steps)
    is_diagram = "InfluenceDiagram" in kinds
    of_nodes = (x.cpt(i) for i in ids if x.isChanceNode(i)) if is_diagram else map(x.factor, x.factors())
    factors: list[Any] = list(of_nodes)
    read = [_factor(f, domain) for f in factors]
    model = _decisions(x, domain, read) if is_diagram else MarkovNetwork(domain, read)
    return Reading(
        model,
        lambda rows: [log_of(numbers([f.get(at) for f in factors])).sum() for at in _instances(x, names, rows)],
        compared=MarkovNetwork(domain, read),
    )


def _decisions(x: Any, domain: Domain, cpts: list[Factor]) -> DecisionNetwork:
    """Return an influence diagram with its conditional tables; its arcs order the decisions."""
    nodes = [(i, str(x.variable(i).name())) for i in x.topologicalOrder()]
    if len(domain) > len(cpts) + 1 and not x.decisionOrderExists():
        warnings.warn(
            "no arcs put all decisions in order; what is known at one is known at later ones", stacklevel=4
        )
    seen = {name: [str(x.variable(p).name()) for p in x.parents(i)] for i, name in nodes if x.isDecisionNode(i)}
    utilities: list[Utility] = []
    for i, name in nodes:
        if x.isUtilityNode(i):
            scope = [domain.index(own) for own in reversed(x.utility(i).names) if own != name]
            utilities.append(Utility(name, tuple(scope), numbers(x.utility(i).tolist())[..., 0]))
    return DecisionNetwork(domain, cpts, seen, utilities)


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


def _gaussian_of_pyagrum(x: Any) -> Reading:
    """Read a network of real variables; `mu` is the intercept."""
    made: list[LinearGaussian] = []
    for node in sorted(attribute(x, "nodes")()):
        variable, parents = attribute(x, "variable")(node), sorted(attribute(x, "parents")(node))
        mean, sd = (float(attribute(variable, key)()) for key in ("mu", "sigma"))
        weights = [float(attribute(x, "coefArc")(parent, node)) for parent in parents]
        above = [str(attribute(x, "name")(parent)) for parent in parents]
        made.append(LinearGaussian(str(attribute(variable, "name")()), above, mean, weights, sd))

    def law(name: str) -> Law:  # by names, not numbers
        variable, parents = x.variable(name), [x.name(parent) for parent in x.parents(name)]
        weights = [(str(parent), x.coefArc(parent, name)) for parent in parents]
        return variable.mu(), weights, float(variable.sigma())

    return _of_laws(made, [node.variable for node in made], law)


def unroll(model: Any, steps: int) -> BayesianNetwork:
    """Return a network of two slices as one for a sequence: `x[0]` and `x[1]` become `x[0]` ... `x[steps-1]`.

    `model`: a `BayesianNetwork` over `x[0]` and `x[1]` (or `x0` and `xt`, as in pyagrum), a pgmpy
    `DynamicBayesianNetwork`, or a pyagrum `BayesNet` of two slices. Slice 0 is step 0, and the last slice, here 1,
    is every later step, where slice 0 means one step earlier; more slices look farther back. A variable of one
    slice alone is of step 0 only, or of all others. A variable without a slice is one for the whole sequence; if
    its parents are in the last slice, it follows the last step. `steps`: at least 1; all share their tables.

    Raises ModelError for names without slices, a parent in a later slice or at a step that lacks it, states that
    change from slice to slice, and an unsupported object. Cost: some 10 microseconds per variable and step.
    """
    made = reading.from_object(model) if isinstance(model, Model) else reading.from_object(model, steps=steps)
    if not isinstance(made, BayesianNetwork):
        raise ModelError(f"a {type(made).__name__} is no Bayesian network; unroll takes one of two slices")
    return unrolled(made, steps) if made is model else made


def _factor(tensor: Any, domain: Domain) -> Factor:
    """Read a tensor, whose names are in reverse order of its array's axes; a conditional table's child is last.

    Entries are read one by one: for a node without a plain table (a noisy OR, a logit, a maximum), `toarray`
    returns uninitialised memory.
    """
    scope = [domain.index(name) for name in reversed(attribute(tensor, "names"))]
    return Factor(scope, numbers(attribute(tensor, "tolist")()))
