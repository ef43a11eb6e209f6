"""Models of discrete latent variables in PyMC and NumPyro.

The libraries tell on which variables each conditional depends, and compute it at all states of them. Conditionals
of observed values become factors over their parents.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from certimap.core.arrays import Floats, Ints
from certimap.core.domain import Categorical, Domain
from certimap.core.logs import log_sum
from certimap.errors import ModelError
from certimap.interop.reading import Reading, Wishes, attribute, classes_of, kind_of, numbers, refuse
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import Factor
from certimap.networks.network import MarkovNetwork

MOST_ROWS = 2**16  # states of the elements that one conditional depends on


class Site(NamedTuple):
    """A random variable: an array of elements, independent given their parents."""

    shape: tuple[int, ...]  # of its log probabilities
    values: Ints  # states of each element; none if it is observed
    parents: Mapping[str, bool]  # whether an element depends on the parent's element at its own place alone


def reading_of(
    x: Any, sites: Mapping[str, Site], evaluate: Callable[[Any], Any], total: Callable[[Any], Any]
) -> Reading:
    """Return the network of a program.

    `evaluate`: log probabilities of each site, shape (n, *its shape), at n rows of values of the latent ones.
    `total`: the library's log density at one row.
    """
    latent = {name: site for name, site in sites.items() if len(site.values)}
    variables: list[Categorical] = []
    ids: dict[str, Ints] = {}
    axes: dict[str, list[tuple[str, tuple[int, ...]]]] = {}  # variables, and places of elements, or () for all
    for name, site in sites.items():
        own = [(name, ())] if name in latent else []
        above = [(p, [()] if alone else np.ndindex(latent[p].shape)) for p, alone in site.parents.items()]
        axes[name] = [*((p, at) for p, places in above for at in places), *own]
        if own:
            ids[name] = len(variables) + np.arange(math.prod(site.shape)).reshape(site.shape)
            ends = [f"[{','.join(map(str, at))}]" if at else "" for at in np.ndindex(site.shape)]
            variables += [Categorical(name + end, tuple(site.values.tolist())) for end in ends]
    sizes = {name: [len(latent[p].values) for p, _ in own] for name, own in axes.items()}
    for name, own in sizes.items():
        if (n := math.prod(own)) > MOST_ROWS:
            told = f"{name!r} of this {kind_of(x)} depends on {len(axes[name])} elements of {n:,} states together"
            raise ModelError(f"{told}; expected at most {MOST_ROWS:,} (with variables of one element, or plates)")
    stops = list(itertools.accumulate((math.prod(own) for own in sizes.values()), initial=0))
    rows = {name: np.full((stops[-1], *site.shape), site.values[0]) for name, site in latent.items()}
    spans = {name: slice(*ends) for name, ends in zip(sites, itertools.pairwise(stops), strict=True)}
    for name, own in axes.items():
        for k, (parent, at) in enumerate(own):
            column = latent[parent].values[np.indices(sizes[name])[k].reshape(-1)]
            rows[parent][(spans[name], *at)].T[...] = column
    found, factors = evaluate(rows), list[Factor]()
    for name, site in sites.items():
        table = numbers(found[name])[spans[name]].reshape((*sizes[name], *site.shape))
        factors += _factors(x, name, site, table, [ids[p][at] for p, at in axes[name]])
    made = (BayesianNetwork if len(latent) == len(sites) else MarkovNetwork)(Domain(variables), factors)

    def theirs(points: Floats) -> list[float]:
        places = points.astype(np.int64)
        return [float(total({n: latent[n].values[row[own]] for n, own in ids.items()})) for row in places]

    return Reading(made, theirs)


def _factors(x: Any, name: str, site: Site, table: Floats, scopes: Sequence[Any]) -> list[Factor]:
    """Return one factor per element, without parents that do not matter; those of observed ones are summed up."""
    n_parents = len(scopes) - bool(len(site.values))
    if len(site.values):
        totals = log_sum(table, n_parents)
        if not np.all(np.abs(totals) <= 1e-3):
            told = f"the chances of {name!r} of this {kind_of(x)} do not add to 1 over {site.values.tolist()}"
            raise ModelError(f"{told}; expected the same states whatever its parents are, and no weights")
        table = table - np.expand_dims(totals, n_parents)
    variables = [np.broadcast_to(scope, site.shape) for scope in scopes]
    found: dict[tuple[int, ...], Floats] = {}
    for at in np.ndindex(site.shape):
        element, scope = table[(..., *at)], [int(own[at]) for own in variables]
        for k in reversed(range(n_parents)):
            if np.array_equal(element, np.broadcast_to(element.take([0], k), element.shape)):
                element = element.take(0, k)
                del scope[k]
        found[tuple(scope)] = found.get(tuple(scope), np.zeros(())) + element
    return [Factor.from_log(scope, logs) for scope, logs in found.items()]


def read_numpyro(x: Any, wishes: Wishes) -> Reading:
    """Read a handler around a model, such as `handlers.seed(model, 0)`; plates tell which elements go together."""
    if "Messenger" not in classes_of(x) or wishes.names is not None:
        raise refuse(x, "expected a handler of a model, such as numpyro.handlers.seed(model, 0), without names")
    jax, numpyro = (sys.modules[name] for name in ("jax", "numpyro"))
    trace: dict[str, Any] = numpyro.handlers.trace(x).get_trace()
    drawn = {name: site for name, site in trace.items() if site["type"] == "sample"}
    plates = {name: {p.name: p.size for p in site["cond_indep_stack"]} for name, site in drawn.items()}
    supports = dict.fromkeys(drawn, np.zeros(0, np.int64))
    for name, site in drawn.items():
        law, shape = site["fn"], np.shape(site["value"])
        if not site["is_observed"]:
            if not law.has_enumerate_support or math.prod(shape) != math.prod(plates[name].values()):
                raise _infinite(x, name, f"{type(law).__name__} of the shape {shape}")
            supports[name] = np.asarray(law.enumerate_support(expand=False), np.int64).reshape(-1)

    def values_of(row: Any) -> Any:
        return numpyro.infer.util.compute_log_probs(x, (), {}, row, sum_log_prob=False)[0]

    found = jax.eval_shape(values_of, {name: site["value"] for name, site in drawn.items()})
    sites: dict[str, Site] = {}
    for name, above in numpyro.infer.inspect.get_dependencies(x)["prior_dependencies"].items():
        parents = {p: plates[p].keys() <= plates[name].keys() for p in above if p != name}
        sites[name] = Site(found[name].shape, supports[name], parents)
    one = jax.jit(values_of)
    return reading_of(x, sites, jax.jit(jax.vmap(values_of)), lambda row: sum(v.sum() for v in one(row).values()))


def read_pymc(x: Any, wishes: Wishes) -> Reading:
    """Read a model; elements of arrays may depend on all elements of the arrays above them."""
    if "Model" not in classes_of(x) or wishes.names is not None:
        raise refuse(x, "expected a Model, without names: its variables have names")
    terms, latent = [*attribute(x, "basic_RVs"), *attribute(x, "potentials")], list(attribute(x, "free_RVs"))
    ancestors = attribute(sys.modules["pytensor.graph.traversal"], "ancestors")
    supports = {rv.name: _support(x, rv, lambda end: set(latent).isdisjoint(ancestors([end]))) for rv in latent}
    logs, shapes = attribute(x, "logp")(vars=terms, sum=False), attribute(x, "eval_rv_shapes")()
    inputs = [attribute(x, "rvs_to_values")[rv] for rv in latent]
    evaluate = attribute(x, "compile_fn")(logs, inputs=inputs, on_unused_input="ignore", mode="FAST_COMPILE")
    found = evaluate({name: np.full(shapes[name], values[0]) for name, values in supports.items()})
    sites: dict[str, Site] = {}
    for rv, log, array in zip(terms, logs, found, strict=True):
        above = set(ancestors([log]))
        names = [own.name for own, value in zip(latent, inputs, strict=True) if value in above and own is not rv]
        parents = {name: not shapes[name] for name in names}
        sites[rv.name] = Site(array.shape, supports.get(rv.name, np.zeros(0, np.int64)), parents)

    def at_rows(rows: Mapping[str, Ints]) -> dict[str, Floats]:
        by_row = [evaluate(dict(zip(rows, row, strict=True))) for row in zip(*rows.values(), strict=True)]
        return dict(zip(sites, map(np.array, zip(*by_row, strict=True)), strict=True))

    return reading_of(x, sites, at_rows, lambda row: sum(array.sum() for array in evaluate(row)))


def _support(x: Any, rv: Any, is_fixed: Callable[[Any], bool]) -> Ints:
    """Return the states of a variable of PyMC."""
    kind = getattr(rv.owner.op, "name", type(rv.owner.op).__name__)
    if kind not in ("categorical", "bernoulli", "discrete_uniform", "binomial"):
        raise _infinite(x, rv.name, kind)
    first, *others = rv.owner.op.dist_params(rv.owner)
    if kind in ("categorical", "bernoulli"):
        return np.arange(2 if kind == "bernoulli" else int(first.shape[-1].eval()))
    ends = (first, *others[: kind == "discrete_uniform"])
    found = [numbers(end.eval() if is_fixed(end) else []) for end in ends]
    if any(len(set(end.flat)) != 1 for end in found):
        raise _infinite(x, rv.name, f"{kind} with different ranges")
    low, high = [0, *(int(end.flat[0]) for end in found)][-2:]
    return np.arange(low, high + 1)


def _infinite(x: Any, name: str, what: str) -> ModelError:
    expected = "discrete variables of finitely many states, in plates if of several elements, others observed"
    return ModelError(f"variable {name!r} of this {kind_of(x)} is a {what}; expected {expected}")
