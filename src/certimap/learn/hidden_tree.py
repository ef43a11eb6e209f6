"""HiddenChowLiuTree: learning hidden Chow-Liu trees by expectation-maximisation, missing values allowed."""

from __future__ import annotations

import copy
from dataclasses import KW_ONLY, dataclass
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, Unpack

import numpy as np

from certimap.circuits.circuit import Circuit
from certimap.circuits.leaves.kind import LeafFamily
from certimap.core.arguments import keywords_hinted
from certimap.core.arrays import Floats, Ints
from certimap.core.box import Points
from certimap.core.domain import Domain
from certimap.core.logs import log_sum
from certimap.errors import DataError, ModelError
from certimap.learn.batched_em import BatchedEM, BatchLearner
from certimap.learn.estimator import LearnerSettings, Seed, learned_by, single_threaded_blas, split_rows
from certimap.learn.hidden_model import HiddenChowLiuModel
from certimap.learn.hidden_passes import Counts, Parameters, Passes, counts_of_clusters, split_states
from certimap.learn.leaves import Bars, densest, families_of
from certimap.learn.table import DataTable, one_hot
from certimap.learn.tree import mutual_information, pair_counts, scaled_rows, smoothed_joint, spanning_tree

HELD_OUT = 0.1
SMOOTHING = 0.3  # with many rows, where it hardly matters
SMOOTHINGS = (0.3, 1.0, 3.0)  # candidates with few rows
FEW_ROWS = 100  # rows per latent state below which rows count as few
FEWER = 4  # factor between the numbers of states of successive trials (down) and stages (up)
BLOCK = 1024  # rows at a time, where leaves are chosen
LARGE = 64  # above this number of states, learning begins with fewer and splits them


class HiddenChoice(NamedTuple):
    """Settings of the learned model: states per latent variable, and pseudo-counts."""

    n_states: int
    smoothing: float


@dataclass(eq=False, repr=False)
class HiddenChowLiuTree(BatchLearner):
    """Learn a hidden Chow-Liu tree (Liu and Van den Broeck 2021).

    Each variable gets a latent variable; the latent variables form the Chow-Liu tree of the data (Chow and Liu
    1968). Parameters start from clusters of each variable's neighbourhood in the tree. Expectation-maximisation
    improves them, first on batches of rows, then on all rows. More than 64 states are learned in stages: a
    quarter of the states first; then each state, with its pseudo-counts, is split in four, improved on all rows.

    - `n_states`: states per latent variable; an upper limit where `smoothing` is None.
    - `max_steps`, `batch_rows`, `patience`, `workers`: as in `certimap.learn.batched_em.BatchLearner`.
    - `smoothing`: pseudo-counts of every distribution, spread over its states: emissions towards the variable's
      margin, transitions towards the latent variable's margin. None takes 0.3 with at least 100 rows per state of
      the first stage. With fewer rows, it tries .3, 1 and 3, then repeatedly a quarter of the states while that
      helps; validation rows decide. They also decide whether to accept a stage with fewer rows per state.
    - `kinds`, `domain`, `random_state`, `time_limit`, `progress`: as in `LearnSPN`. Real columns are learned as
      histograms (see `certimap.learn.leaves`). In the end they get another family if held-out rows are denser
      under it; counts get Poisson or geometric leaves.

    `model_`: the `HiddenChowLiuModel`; `to_circuit()` and `model_.to_network()` are its views. A `Circuit` if a
    column is real. `history_`: one `TrainingStep` per pass. `choice_`: the `HiddenChoice` (states and smoothing)
    of the model. `leaves_`: the family of leaves of each real column, by name.

    The pass with the best validation likelihood gives the model. Without `valid`, validation holds out a random
    tenth of the rows, or none of fewer than 20. One pass costs about 6 K^2 operations for each edge of the tree
    and each distinct pattern of the states below it: a fiftieth to a half of 6 n K^2 per row.
    """

    n_states: int = 16
    _: KW_ONLY
    max_steps: int = 60
    smoothing: float | None = None
    ranges: ClassVar[str] = f"{BatchLearner.ranges}; n_states [1, inf); smoothing (0, inf)"

    def _fit(self, table: Any, valid: Any, domain: Domain | None) -> None:
        rows, held_out = self._read(table, valid, domain)
        bars = Bars.of(rows)
        rng = np.random.default_rng(self.seed_)
        rows, held_out = split_rows(rows, held_out, HELD_OUT, rng)
        with single_threaded_blas():
            judge = None if held_out is None else bars.coded(held_out)
            model = self._learn(bars.coded(rows), judge, rng).best_model()
            leaves = _chosen_leaves(model, bars, rows, held_out, self.choice_.smoothing)
        self.leaves_ = {self.domain_.names[i]: family.name for i, (family, _) in leaves.items()}
        self.model_ = bars.to_circuit(model.to_circuit(), leaves) if leaves else model

    def _learn(self, rows: DataTable, held_out: DataTable | None, rng: np.random.Generator) -> _Training:
        """Train with the given settings, or with several candidates from which validation rows choose."""
        self.timed_out_ = False

        def trained(n_states: int, smoothing: float, start: _Training | None = None) -> _Training:
            choice = HiddenChoice(n_states, smoothing)
            run = _Training(self, choice, rows, held_out, copy.deepcopy(rng), start)
            title = f"Hidden Chow-Liu tree, {n_states} states, smoothing {smoothing:g}"
            self.timed_out_ = run.train(title, self._deadline) or self.timed_out_
            return run

        stages = [int(self.n_states)]  # the numbers of states to learn with, one after the other
        while stages[0] > LARGE:
            stages.insert(0, -(-stages[0] // FEWER))
        first, *larger = stages
        chooses = self.smoothing is None and held_out is not None
        few = chooses and len(rows) < FEW_ROWS * first
        best = trained(first, SMOOTHING if self.smoothing is None else float(self.smoothing))
        for smoothing in SMOOTHINGS[1:] if few else ():
            best = best if self.timed_out_ else max(best, trained(first, smoothing), key=attrgetter("best_value"))
        while few and not self.timed_out_ and best.choice.n_states >= 2 * FEWER:
            smaller = trained(best.choice.n_states // FEWER, best.choice.smoothing)
            if smaller.best_value <= best.best_value:
                break
            best = smaller
        for n_states in larger if best.choice.n_states == first else ():
            if self.timed_out_:
                break
            smoothing = best.choice.smoothing * best.choice.n_states / n_states  # pseudo-counts are split as well
            grown = trained(n_states, smoothing, best)
            if chooses and len(rows) < FEW_ROWS * n_states and grown.best_value <= best.best_value:
                break
            best = grown
        self.history_, self.choice_ = best.history, best.choice
        return best

    def _draw(self, model: HiddenChowLiuModel | Circuit, n: int, rng: np.random.Generator) -> Points:
        return model.sample(n, rng) if isinstance(model, HiddenChowLiuModel) else super()._draw(model, n, rng)

    def to_circuit(self) -> Any:
        """Return the circuit view of the model."""
        model = self._fitted()
        return model if isinstance(model, Circuit) else model.to_circuit()

    def to_network(self) -> Any:
        """Return the network view of the model, with its latent variables; ModelError where a column is real."""
        model = self._fitted()
        if isinstance(model, Circuit):
            raise ModelError("a hidden tree with real columns has no network of tables; to_circuit() is its view")
        return model.to_network()


class _Training(BatchedEM[Parameters, Counts]):
    """One run, from clusters of the rows or from the best parameters of a run with fewer states."""

    def __init__(
        self,
        settings: HiddenChowLiuTree,
        choice: HiddenChoice,
        table: DataTable,
        held_out: DataTable | None,
        rng: np.random.Generator,
        start: _Training | None,
    ) -> None:
        self.choice, self.domain, k = choice, table.domain, choice.n_states
        indicators = one_hot(self.domain, table.points)
        joint = smoothed_joint(pair_counts(indicators), self.domain, 1.0)
        self.order, self.parent = spanning_tree(mutual_information(joint, self.domain))
        self.offsets = self.domain.offsets[:-1] + np.arange(len(self.domain))
        self.margins = table.margins()
        running: Counts | None = None  # batches would undo what split states have learned
        if start is None:
            running = counts_of_clusters(self.domain, indicators, self.parent, k, int(rng.integers(1 << 63)))
            parameters = self.maximise(running)
        else:
            parameters = split_states(start.best, k, rng)
        tree = self.order, self.parent, k, settings.workers
        passes = Passes(self.domain, np.ascontiguousarray(table.codes.T), *tree)
        judged = None if held_out is None else np.ascontiguousarray(held_out.codes.T)
        judge = None if judged is None else Passes(self.domain, judged, *tree)
        super().__init__(settings, passes, judge, rng, running, parameters, least_batch=max(100, k))

    def maximise(self, counts: Counts) -> Parameters:
        """Return the most probable parameters given expected counts and smoothing."""
        smoothing = self.choice.smoothing
        emission = np.ones_like(counts.emission)
        for i in range(len(self.domain)):
            start = int(self.offsets[i])
            rows = slice(start, start + int(self.domain.n_states[i]))
            smoothed = counts.emission[rows] + smoothing * self.margins[i][:, None]
            emission[rows] = smoothed / smoothed.sum(axis=0)
        k = len(counts.root)
        root = counts.root + smoothing / k
        root /= root.sum()
        transition = np.empty_like(counts.transition)
        for table, out in zip(counts.transition, transition, strict=True):  # a table at a time stays near
            margin = table.sum(axis=0, dtype=np.float64) + smoothing / k
            np.add(table, (smoothing * margin / margin.sum()).astype(np.float32), out=out)
            out /= out.sum(axis=1, keepdims=True)
        prior, emission = root.astype(np.float32), emission.astype(np.float32)
        return Parameters(self.order, self.parent, prior, transition, emission, self.offsets)

    def best_model(self) -> HiddenChowLiuModel:
        """Return the best parameters as a model, in double precision and normalised."""
        emission: list[Floats] = []
        for i in range(len(self.domain)):
            start = int(self.offsets[i])
            table = self.best.emission[start : start + int(self.domain.n_states[i])].T.astype(np.float64)
            emission.append(table / table.sum(axis=1, keepdims=True))
        transition = self.best.transition.astype(np.float64)
        transition /= transition.sum(axis=2, keepdims=True)
        root = self.best.root_prior.astype(np.float64)
        return HiddenChowLiuModel(self.domain, self.parent, root / root.sum(), transition, emission)


_Leaves = tuple[LeafFamily, Floats]


@keywords_hinted(DataError, "HiddenChowLiuTree")
def hclt(
    data: Any, *, n_states: int = 16, valid: Any = None, rng: Seed = None, **settings: Unpack[LearnerSettings]
) -> HiddenChowLiuModel | Circuit:
    """Return a hidden Chow-Liu tree learned from a table, missing cells allowed; see `HiddenChowLiuTree`.

    `data`, `valid`, `rng`: as in `learnspn`; a tenth of the rows choose the best pass by default. `n_states`:
    states per latent variable, which queries never name; fewer with few rows if validation rows prefer it.
    `settings`: parameters of `HiddenChowLiuTree`. A circuit is returned if a column is real.
    """
    return learned_by(HiddenChowLiuTree, data, valid, rng, n_states=n_states, **settings).model_


def _chosen_leaves(
    model: HiddenChowLiuModel, bars: Bars, rows: DataTable, held_out: DataTable | None, smoothing: float
) -> dict[int, _Leaves]:
    """Return each real column's family, and its parameters under each latent state."""
    # bars stay unless held-out cells, given the rest of their rows, are clearly denser; counts are never bars
    wanted = list(bars.histograms)
    if not wanted:
        return {}
    within = _contexts(model, bars.coded(rows), wanted)
    outside = None if held_out is None else _contexts(model, bars.coded(held_out), wanted)
    found: dict[int, _Leaves] = {}
    for i in wanted:
        options = [f for f in families_of(rows, i, None) if f.name != "histogram"]
        values = rows.observed(i)
        known = ~rows.missing[:, i]
        own = bars.coded(rows).points[known, i].astype(np.int64)
        shares = within[i][known] * model.emission[i].T[own]
        shares /= np.maximum(shares.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
        trials: list[_Leaves] = [(family, family.fit(values, shares, smoothing)) for family in options]
        if rows.whole.get(i) != "count":  # integers are counts unless another family is clearly better
            trials.insert(len(trials) if i in rows.whole else 0, (bars.histograms[i], model.emission[i]))
        best = 0
        if held_out is not None and outside is not None:
            tried = held_out.observed(i)
            with np.errstate(divide="ignore"):
                context = np.log(outside[i][~held_out.missing[:, i]])
            logs = [log_sum(context + f.log_density(tried, params), 1) for f, params in trials]
            best = densest(logs) if len(tried) else 0
        found[i] = trials[best]
    return found


def _contexts(model: HiddenChowLiuModel, table: DataTable, wanted: list[int]) -> dict[int, Floats]:
    """Return P(latent state of a variable | the other cells of the row), shape (n_rows, K), for some variables."""
    points = table.points.astype(np.int64)
    parts = [_block(model, points[a : a + BLOCK], wanted) for a in range(0, len(points), BLOCK)]
    return {i: np.concatenate([part[i] for part in parts]) for i in wanted}


def _block(model: HiddenChowLiuModel, points: Ints, wanted: list[int]) -> dict[int, Floats]:
    """Pass messages up and down the tree, each scaled row by row."""
    k = model.n_hidden
    order: list[int] = model.order.tolist()
    emitted = [
        np.where(points[:, i : i + 1] < 0, 1.0, table.T[np.maximum(points[:, i], 0)])
        for i, table in enumerate(model.emission)
    ]
    below = [np.ones((len(points), k)) for _ in order]  # of all children
    messages: dict[int, Floats] = {}
    for i in order[::-1]:
        up = int(model.parent[i])
        if up >= 0:
            messages[i] = scaled_rows(emitted[i] * below[i]) @ model.transition[i].T
            below[up] = scaled_rows(below[up] * messages[i])
    above: dict[int, Floats] = {order[0]: np.tile(model.root_prior, (len(points), 1))}
    found: dict[int, Floats] = {}
    for i in order:
        up = int(model.parent[i])
        if up >= 0:
            whole = above[up] * below[up] * emitted[up]
            without = np.divide(whole, messages[i], out=np.zeros_like(whole), where=messages[i] > 0.0)
            above[i] = scaled_rows(without) @ model.transition[i]
        if i in wanted:
            found[i] = scaled_rows(above[i] * below[i])
    return found
