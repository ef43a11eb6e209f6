"""Several searches of one network in turns: each knows what the others found, and what pays gets the work."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from certimap.certify.ledger import Ledger
from certimap.core.box import Boxes
from certimap.core.control import Control, TimeUp
from certimap.core.posterior import AsNetwork, Posterior
from certimap.errors import TooLarge
from certimap.networks.posterior import NetworkPosterior, TwoSidedNetworkPosterior
from certimap.solvers.base import Effort, Solver
from certimap.solvers.box_search.frontier import Frontier
from certimap.solvers.elimination.set_elimination import SetElimination
from certimap.solvers.networks.and_or import AndOrBranchAndBound
from certimap.solvers.networks.full_width import FullWidth
from certimap.solvers.networks.wmb import WeightedMiniBuckets


@dataclass(frozen=True)
class TurnTuning:
    """How turns are shared out; no bound depends on it."""

    turn: float = 2.0**27  # products, or what takes as long, that a part may form in one turn
    # of so many turns one goes to the part that lowered the bound last, and one to the part with the least work
    cycle: int = 4
    memory: float = 0.25  # how much of a part's last gain counts beside its next one
    nothing: float = 1e-3  # share of the gap that a turn must close to count as a gain
    # bits, iterations: of the mini-buckets, one after another
    bits: tuple[float, ...] = (10.0, 13.0, 16.0, 19.0, 22.0)
    iterations: int = 32
    # products that take as long as one unit of a part's own work: `full_width`, `wmb`, `frontier`, `aobb`,
    # `set_elimination`
    weights: tuple[float, float, float, float, float] = (1.0, 60.0, 10.0, 2.0, 1.0)
    # work of the first turns of `set_elimination`, and of `full_width`, which tries orders first
    head_start: float = 2.0**30
    trials: float = 2.0**29
    # a first piece beyond that waits until all parts together have had so many times as much work
    patience: float = 4.0
    # table entries per point from which `frontier`, which evaluates them by the hundred, waits for the others' end
    dear: float = 2.0**24
    # of a time limit: what one turn and the head start may take; and products that take a second (turns do not
    # depend on a clock)
    short: float = 1.0 / 16.0
    start: float = 1.0 / 4.0
    pace: float = 2.0**30


@dataclass(eq=False)
class PortfolioPart:
    """One of the searches: solvers to run one after another, the state of the present one, and what came of it."""

    posterior: Posterior
    solvers: Iterator[Solver]
    weight: float
    rng: np.random.Generator
    turn: float  # what the next turn may cost
    keeps_books: bool = False  # whether it accounts for the whole space to the ledger
    is_spare: bool = False  # whether it has turns only where no other part goes on
    needs: float = 0.0  # work that all parts together have before its first piece
    solver: Solver | None = None
    state: Any = None
    rate: float = math.inf  # share of the gap closed per unit of work, lately
    work: float = 0.0
    n_nodes: int = 0
    done: bool = False

    @property
    def effort(self) -> Effort:
        """What the present solver has cost."""
        return Effort() if self.solver is None else self.solver.effort(self.state)


@dataclass(eq=False)
class PortfolioState:
    """The parts, and how many turns they have had."""

    control: Control
    parts: list[PortfolioPart]
    n_turns: int = 0
    leader: PortfolioPart | None = None  # which lowered the bound last
    done: bool = False


@dataclass(frozen=True)
class Portfolio(Solver, name="portfolio", needs=(NetworkPosterior | AsNetwork,), family="search"):
    """Run searches of different kinds in turns, on one ledger.

    The parts are eliminations at full width (`full_width`), mini-buckets with shifted costs at growing i-bounds
    (`wmb`), the search of boxes (`frontier`) and depth-first AND/OR search (`aobb`). The best answer of any prunes
    in all of them, and the least bound of any counts. A turn goes to the part whose last one
    closed the largest share of the gap for its work. A part that has not begun counts as if it closed the gap for
    as much work as all parts have had, and every second turn goes to one of those. Of four turns one goes to the
    part that lowered the bound last, and one to the part that has had the least work. Turns are measured in table
    entries, at most a share of what a time limit allows at a fixed pace,
    not seconds, so that a seed replays.

    On a tree of a network's tables, `set_elimination` stands for `frontier` and `aobb`. It has a
    head start where the tree is not large.

    Where a list of assignments, a proof file or the search of one box is wanted, `frontier` (or `set_elimination`)
    runs alone: it alone keeps the books that these need.

    `tuning`: how turns are shared out.
    """

    tuning: TurnTuning = field(default_factory=TurnTuning)

    def unsuited(self, posterior: Posterior) -> str | None:
        """Return why a posterior cannot be searched, or None."""
        if isinstance(posterior, NetworkPosterior):
            return None
        if not isinstance(posterior, AsNetwork) or posterior.as_network is None:
            return f"solver {self.name!r} searches the tables of a network; use solver='set_elimination'"
        return None

    def init(
        self,
        posterior: NetworkPosterior | AsNetwork,
        control: Control,
        rng: np.random.Generator,
        boxes: Boxes | None = None,
    ) -> PortfolioState:
        parts = self._parts(posterior, control, rng)
        if boxes is not None:
            parts = [part for part in parts if part.keeps_books]
            for part in parts:
                part.solver = next(part.solvers)
                part.state = part.solver.init(posterior, control, rng, boxes)
        return PortfolioState(control, parts)

    def _most(self, control: Control, share: float) -> float:
        """Return the work that a share of a time limit allows."""
        return math.inf if control.time_limit is None else share * self.tuning.pace * control.time_limit

    def _parts(
        self, posterior: NetworkPosterior | AsNetwork, control: Control, rng: np.random.Generator
    ) -> list[PortfolioPart]:
        """Return the parts that a posterior suits."""
        tuning = self.tuning
        full, buckets, boxes, paths, sets = tuning.weights
        streams, most = iter(rng.spawn(5)), self._most(control, tuning.short)

        def part(weight: float, *solvers: Solver, on: Posterior, books: bool = False) -> PortfolioPart:
            return PortfolioPart(on, iter(solvers), weight, next(streams), min(tuning.turn, most), books)

        if isinstance(posterior, NetworkPosterior):
            network = posterior
        else:
            assert posterior.as_network is not None
            made: Any = posterior.as_network()
            network = replace(made, control=control)  # a tree may outlive the run that it was made for
        parts = [
            part(full, FullWidth(), on=network),
            part(buckets, *(WeightedMiniBuckets(None, tuning.iterations, b) for b in tuning.bits), on=network),
        ]
        parts[0].turn = min(tuning.trials, most)
        if network is not posterior:
            in_sets = part(sets, SetElimination(), on=posterior, books=True)
            in_sets.turn = min(tuning.head_start, self._most(control, tuning.start))
            return [in_sets, *parts]
        by_boxes, depth_first = part(boxes, Frontier(), on=posterior, books=True), AndOrBranchAndBound()
        by_boxes.is_spare = posterior.facts.work > tuning.dear
        if depth_first.unsuited(posterior) is None:
            parts.append(part(paths, depth_first, on=posterior))
        return [*parts, by_boxes]

    def effort(self, state: PortfolioState) -> Effort:
        efforts = [part.effort for part in state.parts]
        n_nodes = sum(part.n_nodes for part in state.parts) + sum(e.n_nodes for e in efforts)
        return Effort(n_nodes, sum(e.n_bytes for e in efforts), int(sum(p.work for p in state.parts)))

    def step(self, state: PortfolioState, ledger: Ledger) -> PortfolioState:
        """Give one part its turn."""
        if state.n_turns == 0 and (ledger.recorder is not None or ledger.top_k > 1):
            state.parts = [part for part in state.parts if part.keeps_books]
        part = self._next(state)
        state.n_turns += 1
        before, work = _gap(ledger), part.work
        self._run(part, state, ledger)
        after = _gap(ledger)
        state.leader = part if after[1] < before[1] else state.leader
        gained = _gained(before, after) / max(part.work - work, 1.0)
        network = part.posterior
        # zeros forbid all that the parts have tried, or points are valued by what is around a likely one
        is_shared = len(state.parts) > 1 and isinstance(network, TwoSidedNetworkPosterior)
        starts = ledger.best_log_prob == -math.inf or is_shared
        if starts and state.n_turns == min(2, len(state.parts)) and isinstance(network, NetworkPosterior):
            found = network.possible_point()
            ledger.candidates(np.concatenate([found, network.prober().climb(found)]))
        elif state.n_turns == 2 < len(state.parts) and after[0] == before[0] and not is_shared:
            self._climb(network, ledger)
        kept = 0.0 if part.rate == math.inf else self.tuning.memory * part.rate
        part.rate = math.inf if part.needs else max(gained, kept)
        if part.rate * self.tuning.turn < self.tuning.nothing:
            part.rate = 0.0
        state.done = all(p.done for p in state.parts)
        return state

    def _climb(self, network: Posterior, ledger: Ledger) -> None:
        """Better an answer, which two parts came to, by single changes where points cost little."""
        if not isinstance(network, NetworkPosterior) or network.facts.work > self.tuning.dear:
            return
        if ledger.best_point is not None:
            ledger.candidates(network.prober().climb(ledger.best_point[None]))

    def _next(self, state: PortfolioState) -> PortfolioPart:
        waiting = [part for part in state.parts if not part.done]
        had = sum(part.work for part in state.parts)
        waiting = [part for part in waiting if part.needs <= had and not part.is_spare] or waiting
        begun = [part for part in waiting if part.rate < math.inf or part.work > 0.0]
        if state.n_turns % 2 and len(begun) < len(waiting):  # what each finds soon is worth more than long turns
            return next(part for part in waiting if part not in begun)
        at = state.n_turns % self.tuning.cycle
        if at == self.tuning.cycle - 1:
            return min(waiting, key=lambda part: part.work)
        if at == 1 and state.leader in waiting:
            return state.leader
        # what has not begun may close the gap for as much work as all have had
        hope = 1.0 / max(1.0, had)
        return max(waiting, key=lambda p: (hope if p.rate == math.inf else p.rate, p is state.leader, -p.work))

    def _run(self, part: PortfolioPart, state: PortfolioState, ledger: Ledger) -> None:
        """Step a part until its turn is over or the run ends."""
        end, part.turn = part.work + part.turn, min(self.tuning.turn, self._most(state.control, self.tuning.short))
        try:
            while part.work < end and not part.done and not ledger.satisfied and not state.control.should_stop:
                if part.solver is None or part.state.done:
                    self._begin(part, state)
                    if part.work and isinstance(part.solver, WeightedMiniBuckets) and self._is_dear(part, state):
                        return
                    continue
                before = part.effort
                part.state = part.solver.step(part.state, ledger)
                if isinstance(part.solver, FullWidth):
                    foreseen = part.solver.foreseen(part.state)
                    if self._is_early(part, foreseen, self.tuning.patience * foreseen, state):
                        return
                spent = part.weight * max(part.effort.work - before.work, 1)
                part.work += spent
                if isinstance(part.solver, AndOrBranchAndBound) and not before.work:
                    end += 2.0 * spent  # the search of a space may cost as much as its opening
                if state.control.nodes_left(self.effort(state).n_nodes) == 0:
                    return
        except TimeUp:  # it foresees that its next piece would end too late: another one may have smaller pieces
            state.control.check("searching")
            part.done = True
        except TooLarge:
            part.done = True

    def _is_dear(self, part: PortfolioPart, state: PortfolioState) -> bool:
        """Whether larger mini-buckets are left out as too slow for the time limit, or wait for the other parts."""
        assert isinstance(part.solver, WeightedMiniBuckets)
        foreseen = part.weight * part.solver.foreseen(part.state)
        part.done = foreseen > self._most(state.control, self.tuning.start)
        return part.done or self._is_early(part, foreseen, foreseen, state)

    def _is_early(self, part: PortfolioPart, foreseen: float, needs: float, state: PortfolioState) -> bool:
        """Whether a piece is so dear that the other parts go on before it, until all have had what it needs."""
        is_early = foreseen > self.tuning.trials and needs > sum(p.work for p in state.parts)
        part.needs = needs if is_early else 0.0
        return is_early

    def _begin(self, part: PortfolioPart, state: PortfolioState) -> None:
        """Go on to a part's next solver, if there is one."""
        part.n_nodes += part.effort.n_nodes
        part.solver, solver = None, next(part.solvers, None)
        part.done = solver is None
        if solver is not None:
            part.state = solver.init(part.posterior, state.control, part.rng)
            part.solver = solver


def _gap(ledger: Ledger) -> tuple[float, float]:
    return ledger.best_log_prob, ledger.log_upper_bound


def _gained(before: tuple[float, float], after: tuple[float, float]) -> float:
    """Return the share of the gap that was closed; all of it where there was none yet."""
    gap, left = before[1] - before[0], after[1] - after[0]
    if before == after or gap <= 0.0 or not math.isfinite(left):
        return 0.0
    return max(0.0, 1.0 - left / gap) if math.isfinite(gap) else 1.0
