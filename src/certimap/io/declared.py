"""Build a Bayesian network from a file's declarations; errors name the variable and the line."""

from __future__ import annotations

import itertools
import math
import operator
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from certimap.core.arrays import Floats
from certimap.core.domain import Categorical, Domain, Label, Variable
from certimap.decisions.network import DecisionNetwork, Utility
from certimap.errors import ParseError, did_you_mean
from certimap.io.files import AnyPath, cut, parsing
from certimap.io.words import Numbers
from certimap.networks.bayesian import BayesianNetwork, RowNormaliser, row_totals
from certimap.networks.factor import MAX_SCOPE, Factor
from certimap.networks.noisy import MAX_TABLE, NoisyMax, Piece, expand
from certimap.networks.reduction import ancestors

Pieces = list[tuple[tuple[str, ...], str, Numbers]]  # per table: parents, variable, entries
Build = Callable[[Categorical, list[Categorical]], Floats]
Rows = dict[
    tuple[int, ...], tuple[Numbers, int | None]
]  # a row and its line, by the positions of the parents' states
MAX_EXPANDED = 2**24  # limit on entries of tables that a file describes without listing them


@dataclass(frozen=True)
class _Node:
    """A variable's parents, and a function that builds its table when all variables are known."""

    parents: tuple[str, ...]
    line: int | None
    pieces: Callable[[Categorical, list[Categorical]], Pieces]
    rows: Rows


class Declared:
    """The variables and tables of a file, in any order."""

    def __init__(self, path: AnyPath) -> None:
        self.path = path
        self.variables: dict[str, Categorical] = {}  # and utilities, with one state
        self.kinds: dict[str, str] = {}  # "decision", "utility", "sum"; any other word, and "hidden", for chance
        self.limited_memory = False
        self._sums: dict[str, dict[str, float]] = {}  # of each sum, its parts and their weights
        self.titles: dict[str, str] = {}  # the variables' names in the model, where the file has shortened them
        self._lines: dict[str, int | None] = {}
        self._nodes: dict[str, _Node] = {}
        self._n_expanded = 0

    def fail(self, message: str, line: int | None = None) -> ParseError:
        return ParseError(message, self.path, line)

    def variable(self, name: str, states: Sequence[Label], line: int | None, kind: str = "chance") -> None:
        """Declare a variable, or a utility, whose states do not count."""
        if name in self.kinds:
            raise self.fail(f"variable {cut(name)} is declared twice; expected once", line)
        with parsing(self.path, line):
            self.variables[name] = Categorical(name, ("utility",) if kind == "utility" else tuple(states))
        self._lines[name], self.kinds[name] = line, kind

    def number_kind(self, name: str) -> str:
        """Return what the table of a variable holds: "utility" or "probability"."""
        return "utility" if self.kinds.get(name) == "utility" else "probability"

    def total(self, name: str, parts: Sequence[str], weights: Sequence[float], line: int | None) -> None:
        """Declare a weighted sum of utilities declared before, which then count in it alone."""
        others = [part for part in parts if self.kinds.get(part) not in ("utility", "sum")]
        if name in self.kinds or others or len(weights) != len(parts):
            told = f"the sum {cut(name)} of {', '.join(map(cut, parts[:8]))} has {len(weights)} weights"
            raise self.fail(f"{told}; expected one for each, all utilities above it, and the sum once", line)
        self.kinds[name], self._sums[name] = "sum", dict(zip(parts, weights, strict=True))

    def table(
        self, name: str, parents: Sequence[str], numbers: Numbers, line: int | None, *, first_fastest: bool = False
    ) -> None:
        """Give a variable its table: its own states fastest, then its last parent, or its first one.

        A decision's parents are what is seen before it, and it has no entries.
        """

        def pieces(child: Categorical, above: list[Categorical]) -> Pieces:
            sizes = [v.n_states for v in above]
            if math.prod(sizes) * child.n_states != (n := len(numbers.values)):
                text = f"the table of {cut(name)} has {n:,} entries; expected {_product(child, above)}"
                raise self.fail(text, line)
            if not first_fastest:
                return [(tuple(parents), name, numbers.reshape(*sizes, child.n_states))]
            turned = numbers.reshape(*reversed(sizes), child.n_states)
            return [(tuple(parents), name, turned.transpose(*reversed(range(len(above))), len(above)))]

        self._node(name, parents, line, pieces)

    def rows(
        self, name: str, parents: Sequence[str], rows: Rows, default: Numbers | None, line: int | None
    ) -> None:
        """Give a variable a row for each combination of its parents' states; `default` is every other row."""

        def pieces(child: Categorical, above: list[Categorical]) -> Pieces:
            sizes = tuple(v.n_states for v in above)
            for index, (row, at) in rows.items():
                if len(index) != len(sizes) or any(map(operator.ge, index, sizes)):
                    text = f"the row {index} of {cut(name)} names no states of its parents; expected below {sizes}"
                    raise self.fail(text, at)
                self._check_length(name, row, child, at)
            if default is not None:
                self._check_length(name, default, child, line)
                self._count((math.prod(sizes) - len(rows)) * child.n_states, line)
            found: list[Numbers] = []
            for index in itertools.product(*map(range, sizes)):
                row, _ = rows.get(index, (default, line))
                if row is None:
                    text = f"{cut(name)} has {len(rows)} rows; expected {math.prod(sizes)}, or a default"
                    raise self.fail(f"{text}: none is for ({_labels(above, index)})", line)
                found.append(row)
            return [(tuple(parents), name, Numbers.stacked(found).reshape(*sizes, child.n_states))]

        self._node(name, parents, line, pieces, rows)

    def _check_length(self, name: str, row: Numbers, child: Categorical, line: int | None) -> None:
        if (n := len(row.values)) != child.n_states:
            raise self.fail(f"a row of {cut(name)} has {n} entries here; expected {child.n_states}", line)

    def computed(self, name: str, parents: Sequence[str], build: Build, line: int | None) -> None:
        """Give a variable a table that `build` makes of the variable and its parents, whose axes come first."""

        def pieces(child: Categorical, above: list[Categorical]) -> Pieces:
            shape = (*(v.n_states for v in above), child.n_states)
            self._count(math.prod(shape), line)
            return [(tuple(parents), name, Numbers(build(child, above).reshape(shape)))]

        self._node(name, parents, line, pieces)

    def uniform(self, name: str, parents: Sequence[str], line: int | None) -> None:
        """Give a variable equal probabilities in every row."""

        def build(child: Categorical, above: list[Categorical]) -> Floats:
            return np.full((math.prod(v.n_states for v in above), child.n_states), 1.0 / child.n_states)

        self.computed(name, parents, build, line)

    def deterministic(self, name: str, parents: Sequence[str], states: Sequence[str], line: int | None) -> None:
        """Give a variable one certain state per configuration of its parents, the last parent fastest."""

        def build(child: Categorical, above: list[Categorical]) -> Floats:
            if len(states) != (n := math.prod(v.n_states for v in above)):
                text = f"{cut(name)} has {len(states):,} resulting states for {n:,} configurations of its parents"
                raise self.fail(text, line)
            for state in states:
                if state not in child:
                    guess = did_you_mean(state, map(str, child.states))
                    raise self.fail(f"{cut(name)} results in {cut(state)}, which is no state of it{guess}", line)
            return np.eye(child.n_states)[[child.index(state) for state in states]]

        self.computed(name, parents, build, line)

    def noisy_max(
        self, name: str, parents: Sequence[str], rows: Floats, order: Sequence[int] | None, line: int | None,
        strongest: int = 0,
    ) -> None:  # fmt: skip
        """Give a variable a noisy-max table; its first state is the strongest, its last means no cause.

        `rows` is flat: P(state of the variable) for each parent and each of its states, from the strongest; then
        for the leak. `order` has, for each parent, its states from the strongest; None if they have this order.
        `strongest`: -1 if the variable's last state is the strongest.
        """

        def pieces(child: Categorical, above: list[Categorical]) -> Pieces:
            sizes = [v.n_states for v in above]
            if len(rows) != child.n_states * (sum(sizes) + 1):
                each = f"{child.n_states} for each of the {sum(sizes)} states of its parents and the leak"
                raise self.fail(f"the noisy node {cut(name)} has {len(rows):,} parameters; expected {each}", line)
            places = self._strengths(name, sizes, order, line)
            turn = slice(None, None, -1 if strongest == 0 else 1)
            by_state = rows.reshape(-1, child.n_states)[:, turn]
            starts = np.concatenate([[0], np.cumsum(sizes)])
            causes = {
                v.name: {v.states[s]: by_state[starts[i] + k].tolist() for k, s in enumerate(places[i])}
                for i, v in enumerate(above)
            }
            node = NoisyMax(causes, by_state[-1].tolist())
            self._count(min(MAX_TABLE, math.prod(sizes) * child.n_states) + sum(sizes) * child.n_states**2, line)
            found = expand(node, Categorical(name, child.states[turn]), above)
            return [_turned(piece, name, turn) for piece in found]

        self._node(name, parents, line, pieces)

    def _strengths(
        self, name: str, sizes: Sequence[int], order: Sequence[int] | None, line: int | None
    ) -> list[list[int]]:
        """Return each parent's states, from the strongest."""
        if order is None:
            return [list(range(k)) for k in sizes]
        starts = [0, *itertools.accumulate(sizes)]
        found = [list(order[a:b]) for a, b in itertools.pairwise(starts)]
        if len(order) != starts[-1] or list(map(sorted, found)) != [list(range(k)) for k in sizes]:
            text = f"the strengths of the noisy node {cut(name)} are no order of its parents' states"
            raise self.fail(f"{text}; expected the numbers of each parent's states, each once", line)
        return found

    def _count(self, n_entries: int, line: int | None) -> None:
        self._n_expanded += n_entries
        if self._n_expanded > MAX_EXPANDED:
            text = f"the tables up to here that are not written out have more than {MAX_EXPANDED:,} entries"
            raise self.fail(f"{text}, the most that is accepted in a file", line)

    def check_head(self, name: str, parents: Sequence[str], line: int | None) -> None:
        """Raise ParseError for a second table of a variable, a variable named twice, or too many parents."""
        if name in self._nodes:
            raise self.fail(f"variable {cut(name)} has two tables; expected one", line)
        if len(set(parents)) < len(parents) or name in parents:
            raise self.fail(f"the table of {cut(name)} names a variable twice; expected once", line)
        if len(parents) >= MAX_SCOPE:
            raise self.fail(f"{cut(name)} has {len(parents)} parents; expected at most {MAX_SCOPE - 1}", line)

    def _node(
        self, name: str, parents: Sequence[str], line: int | None,
        pieces: Callable[[Categorical, list[Categorical]], Pieces], rows: Rows | None = None,
    ) -> None:  # fmt: skip
        self.check_head(name, parents, line)
        self._nodes[name] = _Node(tuple(parents), line, pieces, rows or {})

    def network(self) -> BayesianNetwork:
        """Return the network as `model` does; ParseError where it has decisions or utilities."""
        model = self.model()
        if not isinstance(model, BayesianNetwork):
            raise self.fail("has decisions or utilities; expected chance variables alone")
        return model

    def model(self) -> BayesianNetwork | DecisionNetwork:
        """Return the network; warn once when rows add to 1 within 1e-3 but not within 1e-6: they are rescaled.

        Raises ParseError for an unknown variable, a variable without a table, a table of the wrong size, a row
        that adds to neither 1 nor 0, and a directed cycle.
        """
        if not self.variables:
            raise self.fail("declares no variable; at least one is needed")
        for name, node in self._nodes.items():
            for word in (name, *node.parents):
                if word not in self.variables or (word != name and self.kinds[word] == "utility"):
                    told = f"{cut(word)} in the table of {cut(name)} is no variable of the file"
                    raise self.fail(f"{told}{did_you_mean(word, self.variables)}", node.line)
        names = {kind: [n for n, own in self.kinds.items() if own == kind] for kind in ("decision", "utility")}
        chance = [n for n, kind in self.kinds.items() if kind not in (*names, "sum")]
        found = [piece for name in chance for piece in self._pieces(name)]
        helpers = [name for _, name, _, _ in found if name not in self.variables]  # of noisy nodes
        added = [Categorical(name, self.variables[name.rpartition(":max:")[0]].states) for name in helpers]
        domain = Domain([*(v for n, v in self.variables.items() if n not in names["utility"]), *added])
        normalise = RowNormaliser(str(self.path))
        cpts: list[Factor] = []
        for parents, name, numbers, node in found:
            scope = [domain.index(v) for v in (*parents, name)]
            factor, wrong = normalise(numbers.factor(scope))
            if wrong is not None:
                given, total = [domain.variables[v] for v in scope], abs(float(row_totals(factor)[wrong]))
                told = f"the distribution of {cut(name)} given ({_labels(given, wrong)}) adds to {total:.10g}"
                line = node.rows[wrong][1] if wrong in node.rows else node.line
                raise self.fail(f"{told}; expected 1 within 0.001, or a row of zeros", line)
            cpts.append(factor)
        normalise.warn()
        with parsing(self.path):
            if names["decision"] or names["utility"]:
                decisions = self._in_time(names["decision"], domain, cpts)
                utilities = self._weighted(names["utility"], domain)
                return DecisionNetwork(domain, cpts, decisions, utilities, self.limited_memory, helpers)
            if self.titles:
                domain = Domain(replace(v, name=self.titles.get(v.name, v.name)) for v in domain)
            return BayesianNetwork(domain, cpts, [*helpers, *(n for n, k in self.kinds.items() if k == "hidden")])

    def _in_time(self, names: Sequence[str], domain: Domain, cpts: Sequence[Factor]) -> dict[str, tuple[str, ...]]:
        """Return the decisions and what each sees, in the order of arcs, else of the file."""
        seen = {name: self._nodes[name].parents if name in self._nodes else () for name in names}
        above = {f.scope[-1]: f.scope[:-1] for f in cpts}
        above |= {domain.index(name): tuple(map(domain.index, own)) for name, own in seen.items()}
        parents, own = [above[v] for v in range(len(domain))], set(map(domain.index, names))
        rank = {name: len(own & ancestors(parents, {domain.index(name)})) for name in names}
        if not self.limited_memory and len(set(rank.values())) < len(rank):
            a, b = next(two for two in itertools.combinations(rank, 2) if rank[two[0]] == rank[two[1]])
            told = f"no arcs put decisions {a!r} and {b!r} in order; what is known at the first"
            warnings.warn(f"{self.path}: {told} is known at the second", stacklevel=4)
        return {name: seen[name] for name in sorted(names, key=rank.__getitem__)}

    def _weighted(self, names: Sequence[str], domain: Domain) -> list[Utility]:
        """Return the utilities, each times its weight in the sum of all."""
        weights: dict[str, float] = {}
        for name, parts in reversed(self._sums.items()):
            for part, weight in parts.items():
                weights[part] = weights.get(part, 0.0) + weight * weights.get(name, 1.0)
        pieces = (piece for name in names for piece in self._pieces(name))
        return [
            Utility(name, tuple(map(domain.index, parents)), weights.get(name, 1.0) * numbers.values[..., 0])
            for parents, name, numbers, _ in pieces
        ]

    def _pieces(self, name: str) -> list[tuple[tuple[str, ...], str, Numbers, _Node]]:
        node = self._nodes.get(name)
        if node is None:
            raise self.fail(f"variable {cut(name)} has no table; each variable needs one", self._lines[name])
        with parsing(self.path, node.line):
            made = node.pieces(self.variables[name], [self.variables[p] for p in node.parents])
        return [(*piece, node) for piece in made]


def _turned(piece: Piece, name: str, turn: slice) -> tuple[tuple[str, ...], str, Numbers]:
    """Bring the axes of a noisy node and its helpers back to the order of its states."""
    own = (v == name or v.startswith(f"{name}:max:") for v in (*piece.parents, piece.name))
    axes = tuple(turn if is_own else slice(None) for is_own in own)
    return piece.parents, piece.name, Numbers(piece.table[axes])


def _product(child: Categorical, above: Sequence[Categorical]) -> str:
    sizes = [*(v.n_states for v in above), child.n_states]
    total = math.prod(sizes)
    return f"{total:,}" if len(sizes) == 1 else f"{' x '.join(map(str, sizes))} = {total:,}"


def _labels(given: Sequence[Variable], states: Sequence[int]) -> str:
    pairs = zip(given, states, strict=False)
    return ", ".join(f"{v.name}={v.states[s]}" for v, s in pairs if isinstance(v, Categorical))
