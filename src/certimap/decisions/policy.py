"""Policies: what to do, for whatever is known, with two sides of the best expected utility."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from certimap.certify.bounds import certificate_between
from certimap.core.arrays import Floats
from certimap.core.control import Control, TimeUp
from certimap.core.domain import Categorical, Label
from certimap.core.named import at, needed
from certimap.core.query import make_query
from certimap.core.result import Certificate, CertificateKind, Status, json_ready
from certimap.core.summary import aligned
from certimap.decisions.diagram import Diagram
from certimap.decisions.induction import OptionValues
from certimap.decisions.network import DecisionNetwork
from certimap.decisions.search import PolicySearch
from certimap.errors import QueryError, TooLarge

SHOWN = 16  # rows of a table, when it is printed


class Moment(NamedTuple):
    """A moment of a search: seconds since it began, and both sides of the best expected utility."""

    seconds: float
    expected_utility: float
    upper_bound: float


class DecisionTable(NamedTuple):
    """What to do at one decision.

    - `known`: the variables that matter, of all that is known; `options`: the decision's labels.
    - `values`: one axis for each of `known`, and the options last: what an option is expected to bring in the
      utilities that the decision bears on, if later decisions follow the policy; -inf for an option that evidence
      rules out. Where what is known has probability 0 they mean nothing.
    """

    known: tuple[Categorical, ...]
    options: tuple[Label, ...]
    values: Floats

    def at(self, known: Mapping[str, Label]) -> Floats:
        """Return the values of the options, given labels of what is `known` by name; others are ignored."""
        if lacks := [v.name for v in self.known if v.name not in known]:
            names = tuple(v.name for v in self.known)
            raise QueryError(f"{lacks[0]!r} is not given; the decision depends on {names}")
        return self.values[tuple(v.index(known[v.name]) for v in self.known)]

    def rows(self) -> Iterator[tuple[dict[str, Label], Label, Floats]]:
        """Yield labels of what is known, by name, the best option, and the values of all."""
        for index in np.ndindex(*self.values.shape[:-1]):
            labels = {v.name: v.states[i] for v, i in zip(self.known, index, strict=True)}
            yield labels, self.options[int(self.values[index].argmax())], self.values[index]


@dataclass(frozen=True, eq=False)
class Policy:
    """What to do at each decision, and how good that is: `expected_utility` <= best <= `upper_bound`.

    - `tables`: a `DecisionTable` for each decision that is still open, by name, in order of time.
    - `expected_utility`: of this policy, given the evidence, in units of utility, rounded down.
    - `upper_bound`: on the expected utility of every policy, rounded up.
    - `certificate`: exact, or epsilon: the sides differ by at most that share of the larger one (of at least a
      thousandth of the largest absolute utilities together); none if that is more than was asked for.
    - `status`: why the search ended. `history`: its moments. `seconds`: how long it took.
    - `network`, `evidence`: what was asked.
    """

    tables: dict[str, DecisionTable]
    expected_utility: float
    upper_bound: float
    certificate: Certificate
    status: Status
    seconds: float
    history: list[Moment] = field(repr=False)
    network: DecisionNetwork = field(repr=False)
    evidence: Any = field(repr=False)

    def choose(self, decision: str, known: Mapping[str, Label] | None = None) -> Label:
        """Return the option to take at a `decision`, given labels of what is `known` by name."""
        table = self._table(decision)
        return table.options[int(table.at(known or {}).argmax())]

    def explain(self, decision: str, known: Mapping[str, Label] | None = None) -> str:
        """Say why an option is taken at a `decision`, given what is `known`, and by how much it leads."""
        table, given = self._table(decision), known or {}
        values = table.at(given)
        (best, most), *rest = [(table.options[i], float(values[i])) for i in np.argsort(-values, kind="stable")]
        where = ", ".join(f"{v.name}={given[v.name]!r}" for v in table.known) or "anything"
        lead = f", {most - rest[0][1]:.6g} ahead of {rest[0][0]!r}" if rest else ""
        rows = [(f"{label!r}", f"{value:.9g}") for label, value in [(best, most), *rest]]
        return "\n".join([f"given {where}: {decision}={best!r}{lead}", *aligned(rows, indent="  ")])

    def to_frame(self, decision: str | None = None) -> Any:
        """Return a pandas DataFrame of one `decision`, or all: what is known, the choice, its value and its lead.

        Raises MissingDependency when pandas is not installed.
        """
        pd = needed("pandas", "a data frame needs pandas; pip install 'certimap[pandas]'")
        rows = list[dict[str, Label]]()
        for name in self.tables if decision is None else [decision]:
            for known, best, values in self._table(name).rows():
                second, first = np.partition([-math.inf, *values], -2)[-2:].tolist()
                rows.append({"decision": name, **known, "choice": best, "value": first, "lead": first - second})
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the policy as JSON types: both sides, the certificate, and every row of every table."""
        tables = {
            name: [
                {"known": known, "choice": best, "values": dict(zip(table.options, values.tolist(), strict=True))}
                for known, best, values in table.rows()
            ]
            for name, table in self.tables.items()
        }
        proved = {"kind": self.certificate.kind, "epsilon": self.certificate.epsilon}
        found = {"expected_utility": self.expected_utility, "upper_bound": self.upper_bound, "certificate": proved}
        return json_ready({**found, "tables": tables, "status": self.status, "seconds": self.seconds})

    def plot(self, decision: str | None = None, ax: Any = None) -> Any:
        """Return axes (`ax`, or new ones) with what options of a `decision` bring; see `plots.plot_policy`."""
        return at("certimap.plots:plot_policy")(self, decision, ax)

    def report(self, path: str | PathLike[str]) -> None:
        """Write an HTML page about the policy, which needs no network, to a `path`."""
        at("certimap.io.files:write_text")(path, at("certimap.explanations.reports.policies:policy_page")(self))

    def proof(self, path: str | PathLike[str]) -> None:
        """Write a proof file to a `path`, which `certimap.check(network, path)` checks by other code."""
        rows = [table.values.argmax(axis=-1).reshape(-1) for table in self.tables.values()]
        weights = make_query(self.network.domain, None, self.evidence).log_weights
        arrays = {"log_weights": weights, "choices": np.concatenate([*rows, np.zeros(0)]).astype(np.int32)}
        claim = {"expected_utility": self.expected_utility, "upper_bound": self.upper_bound, "tolerance": 1e-9}
        looks = {name: [v.name for v in table.known] for name, table in self.tables.items()}
        meta = {"model": at("certimap.io.native:fingerprint")(self.network), "claim": claim, "policy": looks}
        at("certimap.checker:Proof")(meta, arrays).write(path)

    def _table(self, decision: str) -> DecisionTable:
        if decision not in self.tables:
            raise QueryError(f"{decision!r} is no open decision of the policy; it has {tuple(self.tables)}")
        return self.tables[decision]

    def __repr__(self) -> str:
        proved = f"certain within a share of {self.certificate.epsilon:.3g}"
        if self.certificate.kind is not CertificateKind.EPSILON:
            proved = "exact" if self.certificate.rule else f"NOT CERTIFIED. {self.status.message}"
        lines = [f"expected utility {self.expected_utility:.9g}, of at most {self.upper_bound:.9g}: {proved}"]
        for name, table in self.tables.items():
            shown = itertools.islice(table.rows(), SHOWN)
            rows = [(*(f"{v}={label}" for v, label in known.items()), f"-> {best}") for known, best, _ in shown]
            more = math.prod(table.values.shape[:-1]) - len(rows)
            lines += [name, *aligned(rows, indent="  "), *([f"  ... ({more} more)"] if more else [])]
        return "\n".join(lines)


def search_policy(
    network: DecisionNetwork, evidence: Any, epsilon: float, tolerance: float, control: Control,
    told: Callable[[Moment], object],
) -> Policy:  # fmt: skip
    """Return the best policy found within limits; see `certimap.decide`."""
    diagram, worths, least = Diagram.of(network, evidence)
    domain, decisions = network.domain, {network.domain.index(name): name for name in network.decisions}
    largest = math.fsum(float(np.abs(u.values).max()) for u in network.utilities)
    shifting = 2.0**-50 * len(decisions) * largest  # where shifts of options' values hide differences
    history, status = list[Moment](), Status.EXHAUSTED

    def sides(lower: float, upper: float) -> tuple[float, float]:
        low, high = (math.fsum([side, *least]) for side in (lower - shifting, upper))
        return math.nextafter(low, -math.inf), math.nextafter(high, math.inf)

    def judged(lower: float, upper: float) -> Certificate:
        return certificate_between(*sides(lower, upper), 1e-3 * largest, epsilon, tolerance)

    def is_enough(lower: float, upper: float) -> bool:
        return judged(lower, upper).kind is not CertificateKind.NONE

    def note() -> None:
        moment = Moment(control.seconds_run, *sides(search.lower, search.upper))
        if not history or moment[1:] != history[-1][1:]:
            history.append(moment)
            told(moment)

    open_ = {i: name for i, name in decisions.items() if i not in diagram.observed}
    own = {i: {domain.index(v) for v in network.decisions[name]} for i, name in open_.items()}
    search = PolicySearch(diagram, worths, own, control, is_enough)
    try:
        for _ in search.run():
            note()
    except TimeUp:
        status = Status.INTERRUPTED if control.interrupted else Status.TIME_LIMIT
    except TooLarge:
        status = Status.MEMORY_LIMIT
    note()
    certificate = judged(search.lower, search.upper)
    status = Status.CERTIFIED if certificate.kind is not CertificateKind.NONE else status
    tables = dict[str, DecisionTable]()
    for i, name in open_.items():
        allowed = diagram.options.get(i, np.ones(int(domain.n_states[i]), np.bool_))
        found = search.tables.get(i, OptionValues((), np.where(allowed, 0.0, -np.inf)))
        *known, option = (
            v for v in map(domain.variables.__getitem__, (*found.scope, i)) if isinstance(v, Categorical)
        )
        tables[name] = DecisionTable(tuple(known), option.states, found.values + found.shift)
    low, high = sides(search.lower, search.upper)
    return Policy(tables, low, high, certificate, status, control.seconds_run, history, network, evidence)
