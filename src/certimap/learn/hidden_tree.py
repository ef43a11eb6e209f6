"""HiddenChowLiuTree: learning hidden Chow-Liu trees by expectation-maximisation, missing values allowed."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.circuit import Circuit
from certimap.core.box import Points
from certimap.core.domain import Domain
from certimap.errors import DataError, ModelError
from certimap.learn.bars import Bars
from certimap.learn.batched_em import BatchedEM, Schedule
from certimap.learn.blas import single_threaded_blas
from certimap.learn.estimator import DensityEstimator, LearnerSettings, Seed, split_rows
from certimap.learn.hidden_leaves import chosen_leaves, circuit_with
from certimap.learn.hidden_model import HiddenChowLiuModel
from certimap.learn.hidden_passes import Counts, Parameters, Passes
from certimap.learn.hidden_start import counts_of_clusters, split_states
from certimap.learn.pairs import mutual_information, one_hot, pair_counts, smoothed_joint, spanning_tree
from certimap.learn.progress import deadline_of
from certimap.learn.settings import check_count
from certimap.learn.table import DataTable, Kind, encode, read_table

HELD_OUT = 0.1
SMOOTHING = 0.3  # with many rows, where it hardly matters
SMOOTHINGS = (0.3, 1.0, 3.0)  # candidates with few rows
FEW_ROWS = 100  # rows per latent state below which rows count as few
FEWER = 4  # factor between the numbers of states of successive trials (down) and stages (up)
LARGE = 64  # above this number of states, learning begins with fewer and splits them


class HiddenChoice(NamedTuple):
    """Settings of the learned model: states per latent variable, and pseudo-counts."""

    n_states: int
    smoothing: float


class HiddenChowLiuTree(Schedule, DensityEstimator):
    """Learn a hidden Chow-Liu tree (Liu and Van den Broeck 2021).

    Each variable gets a latent variable; the latent variables form the Chow-Liu tree of the data (Chow and Liu
    1968). Parameters start from clusters of each variable's neighbourhood in the tree. Expectation-maximisation
    improves them, first on batches of rows, then on all rows. More than 64 states are learned in stages: a
    quarter of the states first; then each state, with its pseudo-counts, is split in four, improved on all rows.

    Parameters
    ----------
    n_states
        States per latent variable; an upper limit where `smoothing` is None.
    max_steps
        Maximum number of passes over the data, for each setting tried.
    batch_rows
        Rows per batch. None takes a hundredth of the rows, at least 100 and one per latent state. The last
        fifth of the passes, or more, uses all rows.
    smoothing
        Pseudo-counts of every distribution, spread over its states: emissions towards the variable's
        margin, transitions towards the latent variable's margin. None takes 0.3 with at least 100 rows per
        state of the first stage. With fewer rows, it tries .3, 1 and 3, then repeatedly a quarter of the states
        while that helps; validation rows decide. They also decide whether to accept a stage with fewer rows
        per state.
    patience
        Passes without a better validation likelihood after which batches end, and later learning ends.
    kinds, domain
        See `LearnSPN`. Real columns are learned as histograms (see `certimap.learn.bars`). In the end they get
        leaves of another family if held-out rows are denser under it; counts get Poisson or geometric leaves.
    random_state
        Seed or generator. The model does not depend on the number of workers.
    workers
        Threads; None takes one per processor.
    time_limit
        Seconds; the best model so far is kept.
    progress
        Whether to show progress; None means on a terminal.

    Attributes
    ----------
    model_
        The `HiddenChowLiuModel`; `to_circuit()` and `model_.to_network()` are its views. A `Circuit` if a column
        is real.
    history_
        One `TrainingStep` per pass.
    choice_
        The `HiddenChoice` (states and smoothing) of the model.
    leaves_
        The family of leaves of each real column, by name.
    timed_out_
        Whether the time limit ended learning.

    Notes
    -----
    The pass with the best validation likelihood gives the model. Without `valid`, validation holds out a random
    tenth of the rows, or none of fewer than 20. One pass costs about 6 K^2 operations for each edge of the tree
    and each distinct pattern of the states below it: a fiftieth to a half of 6 n K^2 per row.
    """

    def __init__(
        self,
        n_states: int = 16,
        *,
        max_steps: int = 60,
        batch_rows: int | None = None,
        smoothing: float | None = None,
        patience: int = 6,
        kinds: Mapping[str, Kind] | None = None,
        domain: Domain | None = None,
        random_state: Seed = None,
        workers: int | None = None,
        time_limit: float | None = None,
        progress: bool | None = None,
    ) -> None:
        self.n_states = n_states
        self.max_steps = max_steps
        self.batch_rows = batch_rows
        self.smoothing = smoothing
        self.patience = patience
        self.kinds = kinds
        self.domain = domain
        self.random_state = random_state
        self.workers = workers
        self.time_limit = time_limit
        self.progress = progress

    def _fit(self, table: Any, valid: Any, domain: Domain | None) -> None:
        self._check()
        deadline = deadline_of(self.time_limit)
        also = [] if valid is None else [valid]
        rows = read_table(table, domain=domain, kinds=self.kinds, also=also, integers="chosen")
        bars = Bars.of(rows)
        self.domain_ = rows.domain
        rng = np.random.default_rng(self.seed_)
        held_out = None if valid is None else encode(valid, rows.domain)
        if held_out is None and len(rows) >= 20:
            kept, held = split_rows(len(rows), HELD_OUT, rng)
            rows, held_out = rows.rows(kept), rows.rows(held)
        with single_threaded_blas():
            judge = None if held_out is None else bars.coded(held_out)
            model = self._learn(bars.coded(rows), judge, rng, deadline).best_model()
            leaves = chosen_leaves(model, bars, rows, held_out, self.choice_.smoothing)
        self.leaves_ = {self.domain_.names[i]: own.family.name for i, own in leaves.items()}
        self.model_ = circuit_with(model, bars, leaves) if leaves else model

    def _learn(
        self, rows: DataTable, held_out: DataTable | None, rng: np.random.Generator, deadline: float | None
    ) -> _Training:
        """Train with the given settings, or with several candidates from which validation rows choose."""
        self.timed_out_ = False

        def trained(n_states: int, smoothing: float, start: _Training | None = None) -> _Training:
            choice = HiddenChoice(n_states, smoothing)
            run = _Training(self, choice, rows, held_out, copy.deepcopy(rng), start)
            title = f"Hidden Chow-Liu tree, {n_states} states, smoothing {smoothing:g}"
            self.timed_out_ = run.train(title, deadline) or self.timed_out_
            return run

        first, *larger = _stages(int(self.n_states))
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

    def _check(self) -> None:
        check_count("n_states", self.n_states, 1)
        check_count("max_steps", self.max_steps, 0)
        check_count("patience", self.patience, 1)
        check_count("batch_rows", 1 if self.batch_rows is None else self.batch_rows, 1)
        if self.smoothing is not None and not self.smoothing > 0:
            raise DataError(f"smoothing is {self.smoothing!r}; expected a positive number, or None")

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


def _stages(n_states: int) -> list[int]:
    """Return the numbers of states to learn with, one after the other."""
    stages = [n_states]
    while stages[0] > LARGE:
        stages.insert(0, -(-stages[0] // FEWER))
    return stages


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
        self.choice = choice
        self.domain = table.domain
        k = choice.n_states
        indicators = one_hot(self.domain, table.points)
        counts = pair_counts(indicators)
        joint = smoothed_joint(counts, self.domain, 1.0)
        self.order, self.parent = spanning_tree(mutual_information(joint, self.domain))
        self.offsets = self.domain.offsets[:-1] + np.arange(len(self.domain))
        diagonal = np.diag(counts)
        observed = np.add.reduceat(diagonal, self.domain.offsets[:-1])
        self.margin = (diagonal + 1.0 / np.repeat(self.domain.n_states, self.domain.n_states)) / np.repeat(
            observed + 1.0, self.domain.n_states
        )
        running: Counts | None = None  # batches would undo what split states have learned
        if start is None:
            running = counts_of_clusters(self.domain, indicators, self.parent, k, int(rng.integers(1 << 63)))
            parameters = self.maximise(running)
        else:
            parameters = split_states(start.best, k, rng)
        passes = self._passes(table, settings.workers)
        judge = None if held_out is None else self._passes(held_out, settings.workers)
        super().__init__(settings, passes, judge, rng, running, parameters, least_batch=max(100, k))

    def _passes(self, table: DataTable, workers: int | None) -> Passes:
        return Passes(self.domain, _codes(table), self.order, self.parent, self.choice.n_states, workers)

    def move(self, running: Counts, counts: Counts, rate: float, n_batch: int) -> None:
        running.move_to(counts, rate, self.n_rows / n_batch)

    def maximise(self, counts: Counts) -> Parameters:
        """Return the most probable parameters given expected counts and smoothing."""
        smoothing = self.choice.smoothing
        emission = np.ones_like(counts.emission)
        for i in range(len(self.domain)):
            start = int(self.offsets[i])
            rows = slice(start, start + int(self.domain.n_states[i]))
            mine = slice(self.domain.offsets[i], self.domain.offsets[i + 1])
            smoothed = counts.emission[rows] + smoothing * self.margin[mine, None]
            emission[rows] = smoothed / smoothed.sum(axis=0)
        k = len(counts.root)
        root = counts.root + smoothing / k
        root /= root.sum()
        transition = np.empty_like(counts.transition)
        for table, out in zip(counts.transition, transition, strict=True):  # a table at a time stays near
            margin = table.sum(axis=0, dtype=np.float64) + smoothing / k
            np.add(table, (smoothing * margin / margin.sum()).astype(np.float32), out=out)
            out /= out.sum(axis=1, keepdims=True)
        single = np.float32
        return Parameters(
            self.order, self.parent, root.astype(single), transition, emission.astype(single), self.offsets
        )

    def best_model(self) -> HiddenChowLiuModel:
        """Return the best parameters as a model, in double precision and normalised."""
        emission: list[NDArray[np.float64]] = []
        for i in range(len(self.domain)):
            start = int(self.offsets[i])
            table = self.best.emission[start : start + int(self.domain.n_states[i])].T.astype(np.float64)
            emission.append(table / table.sum(axis=1, keepdims=True))
        transition = self.best.transition.astype(np.float64)
        transition /= transition.sum(axis=2, keepdims=True)
        root = self.best.root_prior.astype(np.float64)
        return HiddenChowLiuModel(self.domain, self.parent, root / root.sum(), transition, emission)


def _codes(table: DataTable) -> NDArray[np.int64]:
    """Return state positions for the passes, shape (n, n_rows); a missing value follows the last state."""
    points = table.points.astype(np.int64)
    return np.ascontiguousarray(np.where(points < 0, table.domain.n_states, points).T)


class HiddenTreeSettings(LearnerSettings, total=False):
    """Settings of `HiddenChowLiuTree`."""

    max_steps: int
    batch_rows: int | None
    smoothing: float | None
    patience: int
    workers: int | None


def hclt(
    data: Any, *, n_states: int = 16, valid: Any = None, rng: Seed = None, **settings: Unpack[HiddenTreeSettings]
) -> HiddenChowLiuModel | Circuit:
    """Learn a hidden Chow-Liu tree and return it as a latent-variable model.

    Parameters
    ----------
    data
        A table (see `certimap.learn.table`) of any columns, missing values allowed, or a `Dataset`.
    n_states
        States per latent variable; fewer with few rows if validation rows prefer it.
    valid
        Rows that choose the best pass; by default a tenth of the rows.
    rng
        Seed or generator.
    **settings
        Parameters of `HiddenChowLiuTree`.

    Returns
    -------
    HiddenChowLiuModel or Circuit
        A circuit if a column is real. Latent variables are never queried.

    Raises
    ------
    DataError
        For an empty table, a continuous column, or settings out of range.
    """
    return HiddenChowLiuTree(n_states, random_state=rng, **settings).fit(data, valid=valid).model_
