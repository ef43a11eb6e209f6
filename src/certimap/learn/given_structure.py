"""Parameters of a network of given structure: by counting, or by expectation-maximisation with missing cells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from certimap.core.arguments import Record, is_path, keywords_hinted, shown
from certimap.core.arrays import Floats, Ints
from certimap.core.domain import Categorical, Domain, Label
from certimap.core.logs import log_of
from certimap.core.steps import step_of
from certimap.densities.linear_gaussian import LinearGaussianNetwork
from certimap.errors import DataError
from certimap.interop.networkx_graphs import parents_in
from certimap.learn.estimator import DensityEstimator, Seed
from certimap.learn.family_counts import FamilyCounts
from certimap.learn.linear_fits import linear_nodes
from certimap.learn.preparation import prepare
from certimap.learn.sequences import laid_out, repeated, split
from certimap.learn.table import DataTable
from certimap.learn.tree import scaled_rows
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import Factor

NOISY_STEPS = 50  # over the causes of a noisy-or, in each step of the whole


@dataclass(eq=False, repr=False)
class GivenStructure(DensityEstimator):
    """Learn the parameters of a Bayesian network whose structure is known.

    Missing cells and hidden variables, missing at random, are summed out exactly in each step (expectation-
    maximisation, Dempster et al. 1977). Raises DataError for rows that are impossible under the tables to start
    from, and TooLarge beyond memory.

    Columns of real numbers become linear-Gaussian variables, by least squares for each configuration of their
    discrete parents: the model is a `LinearGaussianNetwork`. Their standard deviations given the parents are at
    least 1e-3 of the column's (of 1 in a constant column). DataError for a discrete child of a real parent, and
    for a missing real cell, or a missing parent of a real variable, on which a known cell depends.

    - `structure`: a mapping from children to their parents, edges (parent, child), a `BayesianNetwork` or
      `LinearGaussianNetwork` (whose tables are the first start where cells are missing), or a graph of pgmpy,
      pyagrum or networkx. Other columns are left out.
    - `hidden`, `weights`: the number or the labels of the states of variables without a column, by name; one
      number per row.
    - `prior`, `strength`: "bdeu": `strength` pseudo-rows, spread over each table; "dirichlet": `strength` per
      entry; "ml": none, for maximum likelihood. Configurations of the parents that no row has get the uniform
      distribution. Pseudo-rows of a real variable, shared by its configurations or `strength` for each, follow the
      line of all rows together, and so do configurations without rows.
    - `nodes`: "noisy-or" by name of variables of two states: each state of a parent but the first, and a leak,
      causes the second state with a probability of its own. These are of maximum likelihood, whatever the prior.
    - `sequence`: for a structure over slices, as `unroll` takes it: the column that names each row's sequence, or
      True for a list of tables, one per sequence. Rows are steps, and `x[0]`, `x[1]` and so on come from the
      column `x`. Variables with the same parents in their own slice, or as many steps back, share one table;
      `hidden` and `nodes` take names without slices, `weights` one number per sequence. All columns are of states.
    - `n_starts`, `max_steps`, `tolerance`: random starts with hidden variables, of which the best is kept; steps
      of each; the gain in nats per row below which a start ends.
    - `kinds`, `domain`, `random_state`, `time_limit`, `progress`: as in `LearnSPN`.

    `model_`, `history_`: the network, and ln of the likelihood of all rows times the prior before each step,
    which never falls.
    """

    structure: Any = None
    _: KW_ONLY
    hidden: Mapping[str, int | Sequence[Label]] | None = None
    weights: Any = None
    prior: Literal["bdeu", "dirichlet", "ml"] = "bdeu"
    strength: float = 1.0
    nodes: Mapping[str, Literal["noisy-or"]] | None = None
    sequence: str | bool = False
    n_starts: int = 4
    max_steps: int = 200
    tolerance: float = 1e-5
    ranges: ClassVar[str] = "strength, tolerance (0, inf); n_starts, max_steps [1, inf)"

    def _fit(self, table: Any, valid: Any, domain: Domain | None) -> None:
        if self.prior not in ("bdeu", "dirichlet", "ml"):
            raise DataError(f"prior is {self.prior!r}; expected 'bdeu', 'dirichlet' or 'ml'")
        parents = parents_in(self.structure)
        base = {name: step_of(name)[0] if self.sequence else name for name in parents}
        own: Any = self.structure if isinstance(self.structure, BayesianNetwork | LinearGaussianNetwork) else None
        domain = domain if own is None else own.domain
        own = own.discrete if isinstance(own, LinearGaussianNetwork) else own
        rows, states, numbers = self._variables(table, valid, base, domain, own)
        real = [name for name, variable in states.items() if not variable.n_states]
        for name, above in parents.items():
            if base[name] not in real and (cause := next((p for p in above if base[p] in real), None)) is not None:
                text = f"{name!r} has states and the real parent {cause!r}; expected states or a real child"
                raise DataError(f"{text}: kinds= makes states of numbers")
        discrete = {name: above for name, above in parents.items() if base[name] not in real}
        for name in self.nodes or ():
            if name not in map(base.get, discrete):
                raise DataError(f"nodes has {name!r}; expected variables of two states as 'noisy-or'")
        n = len(rows) if numbers is None else int(numbers.max()) + 1
        weights = np.asarray(np.ones(n) if self.weights is None else self.weights, np.float64)
        if weights.shape != (n,) or not (np.all(weights >= 0.0) and 0.0 < weights.sum() < math.inf):
            raise DataError(f"weights are {shown(self.weights)}; expected {n} numbers from 0")
        keys: Mapping[str, object] = base
        if numbers is not None:
            if real:
                raise DataError(f"column {real[0]!r} is real; expected states in sequences: kinds= makes them")
            discrete, keys = repeated(discrete, int(np.bincount(numbers).max()))
            states = {name: states[step_of(name)[0]].renamed(name) for name in discrete}
            rows = laid_out(rows, numbers, Domain(v for v in states.values() if step_of(v.name)[0] in rows.domain))
        made = self._tables(discrete, states, rows, weights, own, keys)
        self.model_ = made
        if real:
            strength = 0.0 if self.prior == "ml" else self.strength
            nodes, value = linear_nodes(parents, rows, weights, strength, self.prior == "bdeu")
            self.model_ = LinearGaussianNetwork(nodes, made)
            self.history_ = [step + value for step in self.history_]
        self.domain_ = self.model_.domain

    def _variables(
        self, table: Any, valid: Any, base: Mapping[str, str], domain: Domain | None, own: Any
    ) -> tuple[DataTable, Record, Ints | None]:
        """Return rows, variables by the names of columns, and the number of each row's sequence, if any."""
        states: Record = {}
        for variable in domain or ():
            name = base.get(variable.name, variable.name)
            states[name] = variable.renamed(name) if isinstance(variable, Categorical) else variable
        hidden: Record = dict.fromkeys(base[name] for name in (own.hidden if own is not None else ()))
        hidden |= self.hidden or {}
        names, numbers = [name for name in dict.fromkeys(base.values()) if name not in hidden], None
        if self.sequence:
            table, numbers = split(prepare(table, kinds=self.kinds) if is_path(table) else table, self.sequence)
        known = Domain(states[n] for n in names if n in states) if domain is not None else None
        rows, _ = self._read(table, valid, known, True)
        for name in (*(n for n in names if n not in rows.domain), *(n for n in hidden if n not in base.values())):
            text = f"{name!r} must be a variable of the structure, and a column or hidden"
            raise DataError(f"{text}: hidden={{{name!r}: number of states}}")
        found = {name: rows.domain[name] for name in names}
        for name, given in hidden.items():
            labels = range(given) if isinstance(given, int) else given
            found[name] = states[name] if own is not None else Categorical(name, tuple(labels))
        return rows.aligned(Domain(found[name] for name in names)), found, numbers

    def _tables(
        self, parents: Mapping[str, list[str]], states: Record, rows: DataTable, weights: Floats,
        own: Any, keys: Mapping[str, object],
    ) -> BayesianNetwork | None:  # fmt: skip
        """Return the network of the variables of states, None without any; equal `keys` share a table."""
        self.history_, self.timed_out_ = [0.0], False
        if not parents:
            return None
        order = Domain(states[name] for name in parents)  # parents before children
        scopes = [tuple(order.index(n) for n in (*above, name)) for name, above in parents.items()]
        places = {key: k for k, key in enumerate(dict.fromkeys(keys[name] for name in parents))}
        shares = [places[keys[name]] for name in parents]
        codes = rows.aligned(order).points.astype(np.int64)
        tables = self._climb(FamilyCounts(scopes, codes, weights, order.n_states.tolist(), shares), order, own)
        kept = own.domain.names if own is not None else parents_in(self.structure)
        domain = Domain(states[name] for name in kept if name in parents)
        factors = [
            Factor([domain.index(n) for n in (*parents[name], name)], tables[places[keys[name]]])
            for name in domain.names
        ]
        hidden = [name for name in domain.names if name not in rows.domain]
        return BayesianNetwork(domain, factors, hidden)

    def _climb(self, counts: FamilyCounts, domain: Domain, own: BayesianNetwork | None) -> list[Floats]:
        """Return the best tables of several starts."""
        rng, best, self.history_ = np.random.default_rng(self.seed_), list[Floats](), [-math.inf]
        firsts = [counts.shares.index(k) for k in range(len(counts.complete))]  # a variable of each table
        shapes = [tuple(domain.n_states[list(counts.scopes[v])].tolist()) for v in firsts]
        one = {"ml": 0.0, "dirichlet": self.strength}.get(self.prior)
        priors = [self.strength / math.prod(shape) if one is None else one for shape in shapes]
        laws = {
            k: (self.nodes or {}).get(step_of(domain.names[v])[0] if self.sequence else domain.names[v])
            for k, v in enumerate(firsts)
        }
        noisy = [k for k, law in laws.items() if law is not None]
        for k in noisy:
            if shapes[k][-1] != 2 or laws[k] != "noisy-or":
                name = domain.names[firsts[k]]
                raise DataError(f"nodes has {name!r}; expected variables of two states as 'noisy-or'")
            priors[k] = 0.0
        for start in range(self.n_starts if counts.latent else 1):
            now = [scaled_rows(c.reshape(shape) + 1.0) for c, shape in zip(counts.complete, shapes, strict=True)]
            if own is not None and not start:
                now = [_started(own, [domain.names[i] for i in counts.scopes[v]]) for v in firsts]
            for k in counts.latent if own is None or start else ():
                now[k] = scaled_rows(rng.gamma(1.0, size=shapes[k]))
            for k in noisy:
                reach = 0.2 if k in counts.latent else 0.0
                drawn: list[Floats] = [0.5 + reach * (2.0 * rng.random(n) - 1.0) for n in shapes[k][:-1]]
                now[k] = _noisy_table(drawn, 0.5)
            history: list[float] = []
            while len(history) < self.max_steps and not self._is_late():
                logs = [log_of(table).ravel() for table in now]
                sums, value = counts.expected(logs)
                history.append(value + sum(a * float(t.sum()) for a, t in zip(priors, logs, strict=True) if a))
                if len(history) > 1 and history[-1] - history[-2] < self.tolerance * counts.n_rows:
                    break
                better = {k: _noisy_step(sums[k].reshape(shapes[k]), now[k]) for k in noisy}
                now = [scaled_rows(c.reshape(n) + a) for c, n, a in zip(sums, shapes, priors, strict=True)]
                now = [better.get(k, table) for k, table in enumerate(now)]
            if not best or (history and history[-1] > self.history_[-1]):
                best, self.history_ = now, history
        self.timed_out_ = self._is_late()
        return best


def _started(own: BayesianNetwork, scope: Sequence[str]) -> Floats:
    """Return the table of a variable, which comes last, with the axes of a scope."""
    places = [own.domain.index(name) for name in scope]
    factor = own.factors[places[-1]]
    return factor.table.transpose([factor.scope.index(v) for v in places])


def _noisy_table(causes: Sequence[Floats], leak: float) -> Floats:
    """Return the table of a noisy-or from what state of parent causes (0 for the first) and the leak."""
    left = np.array(1.0 - leak)
    for cause in causes:
        left = np.multiply.outer(left, np.append(1.0, 1.0 - cause[1:]))
    return np.stack([left, 1.0 - left], axis=-1)


def _noisy_step(counts: Floats, table: Floats) -> Floats:
    """Return a better table of a noisy-or by steps of expectation-maximisation over its causes."""
    axes, least = range(counts.ndim - 1), float(np.finfo(np.float64).tiny)
    lines = [np.moveaxis(table[..., 0], a, 0).reshape(table.shape[a], -1)[:, 0] for a in axes]
    causes, leak = [1.0 - line / max(line[0], least) for line in lines], 1.0 - table[..., 0].flat[0]
    others = [tuple(b for b in axes if b != a) for a in axes]
    seen = counts.sum(axis=-1)
    for _ in range(NOISY_STEPS):
        ratio = counts[..., 1] / np.maximum(_noisy_table(causes, leak)[..., 1], least)
        shares = [(ratio.sum(axis=o), np.maximum(seen.sum(axis=o), least)) for o in others]
        causes = [np.minimum(c * r / n, 1.0) for c, (r, n) in zip(causes, shares, strict=True)]
        leak = min(leak * float(ratio.sum()) / max(float(seen.sum()), least), 1.0)
    return _noisy_table(causes, leak)


@keywords_hinted(DataError, "GivenStructure")
def fit(structure: Any, data: Any, *, rng: Seed = None, **settings: Any) -> Any:
    """Return a network of given structure learned from `data`, linear-Gaussian if it has real columns.

    `structure`, `settings`: parameters of `GivenStructure`. `rng`: a seed of random starts of hidden variables.
    """
    return GivenStructure(structure, random_state=rng, **settings).fit(data).model_
