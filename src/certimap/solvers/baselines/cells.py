"""The most probable cell: a partition turns a density into probabilities, which discrete solvers certify."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.random import Generator

from certimap.certify.ledger import Ledger
from certimap.circuits.posterior import CircuitPosterior
from certimap.core.arrays import Floats
from certimap.core.box import Boxes, Layout, Points
from certimap.core.control import Control
from certimap.core.domain import MAX_STATES, Categorical, Domain, Label, Real
from certimap.core.named import needed
from certimap.core.posterior import Facts, Posterior
from certimap.core.rounding import ULP
from certimap.errors import SolverError
from certimap.solvers.base import Effort, Judging, Solver, WholeSpaceSolver
from certimap.solvers.registry import make, resolve

Width = float | Mapping[str, float] | None
TAIL = 1e-4  # of a variable's mass, beyond each end of a grid; the outermost cells extend to the domain's ends
N_HALVINGS = 60
N_DOUBLINGS = 1100  # bound on loops; from the smallest float to the largest takes 2,098
N_DRAWS = 64  # to locate a variable; they are not evidence
MIN_ROWS = 4  # draws in a leaf of a tree


class Interval(NamedTuple):
    """A side of a cell, in the units of its variable; neighbouring intervals share an end."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"[{self.low:.6g}, {self.high:.6g}]"


def real_positions(domain: Domain) -> list[int]:
    """Return the positions of the real variables."""
    return [i for i, variable in enumerate(domain) if isinstance(variable, Real)]


def quantile_edges(posterior: CircuitPosterior, layout: Layout, n_cells: int, rng: Generator) -> list[Floats]:
    """Cut each real variable into intervals of equal mass; one array per real variable."""
    shares = np.arange(1, n_cells) / n_cells
    inner = quantiles(posterior, shares, rng)
    return [_joined(layout, i, row) for i, row in zip(real_positions(posterior.domain), inner, strict=True)]


def grid_edges(
    posterior: CircuitPosterior, layout: Layout, n_cells: int, width: Width, rng: Generator
) -> list[Floats]:
    """Cut each real variable into equal intervals between the `TAIL` quantiles, and two tails."""
    domain = posterior.domain
    ends = quantiles(posterior, np.array([TAIL, 1.0 - TAIL]), rng)
    edges: list[Floats] = []
    for i, (low, high) in zip(real_positions(domain), ends.tolist(), strict=True):
        name = domain.names[i]
        asked = width[name] if isinstance(width, Mapping) else width
        n = n_cells if asked is None else max(1, math.ceil((high - low) / asked))
        if n + 2 > MAX_STATES:
            raise SolverError(
                f"variable {name!r} would have {n:,} cells of width {asked:g}; expected a width above "
                f"{(high - low) / (MAX_STATES - 2):.3g}"
            )
        step = (high - low) / n if asked is None else asked
        edges.append(_joined(layout, i, low + step * np.arange(n + 1, dtype=np.float64)))
    return edges


def _joined(layout: Layout, i: int, inner: Floats) -> Floats:
    """Add the outer ends that the evidence allows; cuts of whole numbers fall between neighbours."""
    low, high = layout.low[i], layout.high[i]
    inner = np.floor(inner) + 0.5 if layout.is_whole[i] else inner
    inside = inner[(inner > low) & (inner < high)]
    return np.unique(np.concatenate([[low], inside, [high]]))


def quantiles(posterior: CircuitPosterior, shares: Floats, rng: Generator) -> Floats:
    """Return the quantiles of each real variable at the given shares, shape (n_real, n_shares)."""
    domain = posterior.domain
    places = real_positions(domain)
    draws = np.asarray(posterior.sample(N_DRAWS, rng), np.float64)[:, places]
    low, high = (np.repeat(x[:, None], len(shares), axis=1) for x in (draws.min(axis=0), draws.max(axis=0)))
    step = np.maximum(high - low, np.spacing(np.abs(high)) + np.finfo(np.float64).tiny)
    log_shares = np.log(shares)[None, :]
    low = _moved(posterior, low, -step, log_shares)
    high = _moved(posterior, high, step, log_shares)
    for _ in range(N_HALVINGS):
        middle = 0.5 * low + 0.5 * high
        is_below = _log_below(posterior, middle) < log_shares
        low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
    return high


def _moved(posterior: CircuitPosterior, at: Floats, step: Floats, log_shares: Floats) -> Floats:
    """Move places outward, in doubling steps of one sign, until the mass below them is beyond the shares."""
    upward = step > 0.0
    for _ in range(N_DOUBLINGS):
        below = _log_below(posterior, at)
        short = np.where(upward, below < log_shares, below >= log_shares)
        if not np.any(short):
            break
        at = np.where(short, np.clip(at + step, -np.finfo(np.float64).max, np.finfo(np.float64).max), at)
        step = np.where(short, 2.0 * step, step)
    return at


def _log_below(posterior: CircuitPosterior, at: Floats) -> Floats:
    """Return ln of each real variable's mass below its places, in the shape of `at`."""
    boxes = Boxes.full(posterior.domain, at.size)
    assert boxes.low is not None
    assert boxes.high is not None
    own = np.arange(at.size), np.repeat(real_positions(posterior.domain), at.shape[1])
    boxes.high[own] = np.clip(at.ravel(), boxes.low[own], boxes.high[own])
    return posterior.log_mass(boxes).reshape(at.shape)


def domain_of_cells(domain: Domain, edges: Sequence[Floats]) -> tuple[Domain, list[Floats | None]]:
    """Return the domain with intervals as states of real variables, and the edges by variable."""
    found: list[Floats | None] = [None] * len(domain)
    variables = list(domain.variables)
    for i, ends in zip(real_positions(domain), edges, strict=True):
        pairs = zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
        variables[i] = Categorical(domain.names[i], tuple(Interval(*pair) for pair in pairs))
        found[i] = ends
    return Domain(variables), found


class BoxMasses:
    """The distribution of the boxes of a partition: one categorical variable, `cell`, with a state per box."""

    def __init__(self, posterior: CircuitPosterior, boxes: Boxes) -> None:
        self.boxes = boxes
        self.log_masses = posterior.log_mass(boxes)
        self.domain = Domain([Categorical("cell", tuple(range(len(boxes))))])
        known, slack = posterior.facts.log_evidence, posterior.facts.log_slack + 4.0 * ULP
        self.facts = Facts.of(self.domain, log_evidence=known, work=1.0, log_slack=slack)

    def log_prob(self, points: Points) -> Floats:
        """Return ln of the masses of boxes, shape (batch,)."""
        return self.log_masses[points[:, 0].astype(np.int64)]

    def sample(self, n: int, rng: Generator, boxes: Boxes | None = None) -> Points:
        """Draw n boxes in proportion to mass, shape (n, 1)."""
        masses = np.exp(self.log_masses)
        return rng.choice(len(masses), size=(n, 1), p=masses / masses.sum()).astype(self.domain.point_dtype)

    def decode(self, cell: int) -> dict[str, Label]:
        """Return a box as intervals and states; several states of one variable are a tuple."""
        boxes, domain = self.boxes, self.boxes.domain
        found: dict[str, Label] = {}
        for i, variable in enumerate(domain):
            if isinstance(variable, Categorical):
                kept = boxes.mask[cell, domain.offsets[i] : domain.offsets[i + 1]]
                labels = tuple(label for label, is_in in zip(variable.states, kept, strict=True) if is_in)
                found[variable.name] = labels[0] if len(labels) == 1 else labels
            elif boxes.low is not None and boxes.high is not None:
                found[variable.name] = Interval(float(boxes.low[cell, i]), float(boxes.high[cell, i]))
        return found


def grown_boxes(posterior: CircuitPosterior, layout: Layout, n_cells: int, n_draws: int, rng: Generator) -> Boxes:
    """Partition the space by a regression tree that predicts ln of the density at draws (needs scikit-learn)."""
    sentence = "a partition by a decision tree needs scikit-learn: pip install 'certimap[learn]'"
    trees: Any = needed("sklearn.tree", sentence)
    points = posterior.sample(n_draws, rng)
    columns, features = _features(posterior.domain, points)
    size, seed = max(2, min(n_cells, MAX_STATES)), int(rng.integers(2**31))
    grown = trees.DecisionTreeRegressor(max_leaf_nodes=size, min_samples_leaf=MIN_ROWS, random_state=seed)
    grown.fit(columns, posterior.log_prob(points))
    return _leaves(layout, grown.tree_, features)


def _features(domain: Domain, points: Points) -> tuple[Floats, list[tuple[int, int]]]:
    """Return one column per real variable and per state, and the (variable, state) of each; state -1 if real."""
    features = [(i, state) for i, n in enumerate(domain.n_states.tolist()) for state in (range(n) if n else (-1,))]
    columns = [points[:, i] if state < 0 else points[:, i] == state for i, state in features]
    return np.stack(columns, axis=1).astype(np.float64), features


def _leaves(layout: Layout, tree: Any, features: list[tuple[int, int]]) -> Boxes:
    """Return the boxes of a tree's leaves."""
    domain, is_whole = layout.domain, layout.is_whole
    found: list[Boxes] = []
    below = [(0, layout.public(layout.allowed()))]
    while below:
        node, box = below.pop()
        left, right = int(tree.children_left[node]), int(tree.children_right[node])
        if left < 0:
            found.append(box)
            continue
        variable, state = features[int(tree.feature[node])]
        sides = Boxes.concatenate([box, box])
        if state >= 0:
            column = int(domain.offsets[variable]) + state
            sides.mask[0, column] = False
            sides.mask[1, domain.offsets[variable] : domain.offsets[variable + 1]] = False
            sides.mask[1, column] = True
        elif sides.low is not None and sides.high is not None:
            place = float(tree.threshold[node])
            place = np.floor(place) + 0.5 if is_whole[variable] else place
            place = float(np.clip(place, sides.low[0, variable], sides.high[0, variable]))
            sides.high[0, variable] = sides.low[1, variable] = place
        below += [(left, sides[np.array([0])]), (right, sides[np.array([1])])]
    return Boxes.concatenate(found)


@dataclass
class CellState:
    """The solver that works on the cells, and its state."""

    solver: Solver
    state: Any

    @property
    def done(self) -> bool:
        return self.state.done


@dataclass(frozen=True)
class Cells(WholeSpaceSolver, name="cells", needs=(CircuitPosterior,), family="search"):
    """Partition the real query variables into cells, and find the most probable cell.

    The exact masses of the cells make a distribution over finitely many states (categorical query variables keep
    theirs), to which every rule about probabilities applies. The answer is one interval per real variable. The
    certificate compares only the cells of this partition: the densest point may lie in another cell. Draws used to
    place the partition never count as evidence.

    Source: the discretisation that PAC-MAP proposes for continuous queries. Cost: one mass per leaf and cell, then
    the cost of a discrete query.

    `partition`: "grid": intervals of one width where all but 1e-4 of the mass at each end lies, and one beyond
    each end. "quantiles": intervals of equal mass, variable by variable. "tree": the leaves of a regression tree
    of scikit-learn that predicts ln of the density at draws.
    `n_cells`: intervals per real variable; for a tree, cells in all.
    `width`: width of a grid's intervals, in the units of the variables, one number or one per name; replaces
    `n_cells`.
    `radius`: make the cells of a grid fit into balls of this radius; replaces `width`. If log2 of the density
    falls by at most L bits per unit of distance, a radius of epsilon / L keeps it constant within about epsilon.
    `n_draws`: draws to grow a tree.
    `by`: the solver for the query over cells: a name, a solver, or "auto".
    """

    partition: Literal["grid", "quantiles", "tree"] = "grid"
    n_cells: int = 32
    width: float | Mapping[str, float] | None = None
    radius: float | None = None
    n_draws: int = 4096
    by: str | Solver = "auto"
    ranges = "n_cells, n_draws [2, inf); width, radius (0, inf)"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.partition not in ("grid", "quantiles", "tree"):
            raise SolverError(f"partition is {self.partition!r}; expected 'grid', 'quantiles' or 'tree'")
        if self.partition != "grid" and (self.width is not None or self.radius is not None):
            raise SolverError(f"width and radius are of grids, and partition is {self.partition!r}; drop them")
        if self.width is not None and self.radius is not None:
            raise SolverError("width and radius were both given; one of them is expected")

    def judging(self) -> Judging:
        inner = make(self.by) if isinstance(self.by, str) and self.by != "auto" else self.by
        return inner.judging() if isinstance(inner, Solver) else Judging()

    def unsuited(self, posterior: Posterior) -> str | None:
        """Refuse a query without real variables, and a `width` mapping that misses one."""
        places = real_positions(posterior.domain)
        if not places:
            return "solver 'cells' parts real variables, and the query has none; use solver='auto'"
        if isinstance(self.width, Mapping):
            missing = [posterior.domain.names[i] for i in places if posterior.domain.names[i] not in self.width]
            if missing:
                return f"width names no value for variable {missing[0]!r}; expected one per real query variable"
        return None

    def posed(self, posterior: CircuitPosterior, rng: Generator) -> Posterior:
        domain = posterior.domain
        layout = posterior.prober().layout
        if self.partition == "tree":
            return BoxMasses(posterior, grown_boxes(posterior, layout, self.n_cells, self.n_draws, rng))
        if self.partition == "quantiles":
            edges = quantile_edges(posterior, layout, self.n_cells, rng)
        else:
            n_real = len(real_positions(domain))
            width = self.width if self.radius is None else 2.0 * self.radius / math.sqrt(n_real)
            edges = grid_edges(posterior, layout, self.n_cells, width, rng)
        return posterior.cut(*domain_of_cells(domain, edges))

    def decode(self, posterior: Posterior, point: Points) -> dict[str, Label]:
        is_box = isinstance(posterior, BoxMasses)
        return posterior.decode(int(point[0])) if is_box else super().decode(posterior, point)

    def start(self, posterior: Posterior, control: Control, rng: Generator) -> CellState:
        inner = resolve(self.by, posterior)
        return CellState(inner, inner.init(posterior, control, rng))

    def effort(self, state: CellState) -> Effort:
        return state.solver.effort(state.state)

    def step(self, state: CellState, ledger: Ledger) -> CellState:
        return CellState(state.solver, state.solver.step(state.state, ledger))
