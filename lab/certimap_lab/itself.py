"""ITSELF: a network maps evidence to soft answers, trained by the circuit's own value, and refined per query."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from certimap.certify.ledger import Ledger
from certimap.circuits.posterior import CircuitPosterior
from certimap.circuits.tensors import TensorPlan, device_of, is_installed, torch
from certimap.conversions import condition
from certimap.core.arrays import Floats
from certimap.core.box import Boxes, Points
from certimap.core.control import Control, Limits
from certimap.core.domain import Domain
from certimap.core.posterior import Posterior
from certimap.errors import TooLarge
from certimap.solvers.base import Effort, LabelHeuristic

Tensor = Any
SMALL, LARGE = 17, 294  # numbers of variables at which the published network sizes change
MAX_KEPT = 16  # trained networks per model
_KEPT: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()


@contextmanager
def one_thread() -> Generator[None]:
    """Run PyTorch on one thread: batches are small, and sums get the same order on every machine."""
    before = torch().get_num_threads()
    torch().set_num_threads(1)
    try:
        yield
    finally:
        torch().set_num_threads(before)


def make_network(sizes: Sequence[int], rng: np.random.Generator) -> Any:
    """Return a perceptron with ReLU layers, initialised after He et al. (2015), the last after Glorot."""
    nn: Any = torch().nn
    layers: list[Any] = []
    for i, (n_in, n_out) in enumerate(pairwise(sizes)):
        is_last = i == len(sizes) - 2
        scale = np.sqrt(2.0 / (n_in + n_out)) if is_last else np.sqrt(2.0 / n_in)
        layer = nn.utils.skip_init(nn.Linear, n_in, n_out)
        with torch().no_grad():
            layer.weight.copy_(torch().as_tensor(rng.normal(0.0, scale, (n_out, n_in))))
            layer.bias.zero_()
        layers += [layer] if is_last else [layer, nn.ReLU()]
    return nn.Sequential(*layers)


class Softening:
    """Converts a network's scores of all states into one distribution per variable."""

    def __init__(self, domain: Domain, device: Any) -> None:
        within = np.arange(int(domain.n_states.max()))
        exists = within < domain.n_states[:, None]
        columns = np.where(exists, domain.offsets[:-1][:, None] + within, domain.total_states)
        self._columns = torch().as_tensor(columns.astype(np.int64), device=device)
        self._places = torch().as_tensor(np.flatnonzero(exists.ravel()), device=device)

    def __call__(self, scores: Tensor) -> Tensor:
        """Convert scores to probabilities, shape (batch, total_states) both."""
        padded = torch().nn.functional.pad(scores, (0, 1), value=-torch().inf)
        soft = padded[:, self._columns].softmax(-1)
        return soft.reshape(len(scores), -1)[:, self._places]


def decode(soft: Tensor, domain: Domain) -> Points:
    """Return the most probable state of each variable, shape (batch, n)."""
    parts = np.split(soft.detach().cpu().numpy(), domain.offsets[1:-1], axis=1)
    return np.stack([part.argmax(1) for part in parts], axis=1).astype(domain.point_dtype)


@dataclass(frozen=True, eq=False)
class TrainingCase:
    """A query in the form that the network takes."""

    joint: CircuitPosterior | None  # over query and evidence variables; None if the model has no such circuit
    told: Floats  # shape (1, n_inputs): a weight per state of the evidence variables, or a single 1 without any
    key: Any  # identifies the partition of the model's variables into query, evidence and nuisance

    @classmethod
    def of(cls, posterior: CircuitPosterior, limits: Limits) -> TrainingCase:
        """Derive the case from a posterior's model and query."""
        alone = cls(None, np.ones((1, 1)), None)
        if posterior.origin is None:
            return alone
        model, query = posterior.origin
        domain = query.domain
        weighs = np.logical_or.reduceat(query.log_weights != 0.0, domain.offsets[:-1]) & (domain.n_states > 0)
        asked = {int(v) for v in query.variables}
        told = [v for v in np.flatnonzero(weighs).tolist() if v not in asked]
        if not told:
            return alone
        both = replace(
            query,
            variables=np.concatenate([query.variables, np.array(told, np.int64)]),
            log_weights=np.zeros_like(query.log_weights),
            observed=query.observed.difference(told),
        )
        try:
            joint = condition(model, both, wants=(CircuitPosterior,), limits=limits)
        except TooLarge:
            return alone
        if not isinstance(joint, CircuitPosterior):
            return alone
        logs = [query.log_weights[domain.offsets[v] : domain.offsets[v + 1]] for v in told]
        weights = np.concatenate([np.exp(own - own.max()) for own in logs])[None, :]
        fixed = tuple(sorted(query.values.items())), tuple(sorted(query.intervals.items()))  # on real variables
        return cls(joint, weights, (query.variables.tobytes(), tuple(told), fixed))

    def rows(self, n: int, rng: np.random.Generator) -> Floats:
        """Return evidence to train on, shape (n, n_inputs): draws from the model, or the one query n times."""
        if self.joint is None:
            return np.repeat(self.told, n, axis=0)
        domain = self.joint.domain
        mask = Boxes.of_points(domain, self.joint.sample(n, rng)).mask
        return mask[:, domain.total_states - self.told.shape[1] :].astype(np.float64)


def kept_of(posterior: CircuitPosterior) -> dict[Any, Any]:
    """Return the networks trained for the posterior's model by variables and settings; a model may be unknown."""
    return {} if posterior.origin is None else _KEPT.setdefault(posterior.origin[0], {})


@dataclass(eq=False)
class ItselfState:
    """A network in training: its data, the progress of training and refining, and whether it is done."""

    posterior: CircuitPosterior
    case: TrainingCase
    soften: Softening
    key: Any
    rng: np.random.Generator
    plan: TensorPlan
    rows: Floats
    network: Any
    optimizer: Any
    n_trained: int = 0
    n_refined: int = 0
    is_trained: bool = False
    done: bool = False


@dataclass(frozen=True)
class Itself(LabelHeuristic, name="itself", needs=(CircuitPosterior,)):
    """Inference-time self-supervised training (Arya et al. 2024); needs PyTorch (`pip install 'certimap[torch]'`).

    A perceptron maps evidence to one distribution per query variable. Its loss is minus ln of the circuit's
    multilinear extension at these, nuisance summed out, so that no labelled answers are needed. It is trained on
    evidence drawn from the model, once per set of query and evidence variables (and kept while the model lives),
    then refined by the same loss on the current query; the most probable states at each step are scored exactly.
    It proves nothing. If the model yields no circuit over query and evidence together, it is trained on the one
    query. The defaults come from the published experiments on the Twenty Datasets.

    `hidden`: sizes of the hidden layers. None: (64, 32) up to 17 variables, (256, 128) from 294, else (128, 64).
    `learning_rate`, `batch`, `rows`, `epochs`: Adam's learning rate; evidence rows per step; rows drawn; passes
    over the rows.
    `refine_steps`, `refine_rate`: steps on the current query, and their learning rate.
    `device`: "cpu", "cuda" or "cuda:N".
    `train_seed`: seed of rows, weights and order. The run's seed is not used, so that one network serves many
    queries.
    """

    hidden: tuple[int, ...] | None = None
    learning_rate: float = 1e-3
    batch: int = 16
    rows: int = 256
    epochs: int = 50
    refine_steps: int = 100
    refine_rate: float = 1e-3
    device: str = "cpu"
    train_seed: int = 0
    ranges = (
        "hidden [1, inf); batch, rows [1, inf); epochs, refine_steps [0, inf); learning_rate, refine_rate (0, inf)"
    )

    def unsuited(self, posterior: Posterior) -> str | None:
        """Refuse real variables, and say what to install."""
        if not is_installed():
            return "solver 'itself' needs PyTorch (pip install 'certimap[torch]'); use solver='beam'"
        sentence = super().unsuited(posterior)
        if sentence is None:
            device_of(self.device)
        return sentence

    def effort(self, state: ItselfState) -> Effort:
        return Effort(work=state.n_trained + state.n_refined)

    def start(self, posterior: CircuitPosterior, control: Control, rng: np.random.Generator) -> ItselfState:
        case = TrainingCase.of(posterior, Limits(workers=posterior.workers, control=control))
        own_rng = np.random.default_rng(self.train_seed)
        n = len(posterior.domain if posterior.origin is None else posterior.origin[1].domain)  # of the model
        hidden = self.hidden or ((64, 32) if n <= SMALL else (256, 128) if n >= LARGE else (128, 64))
        sizes = (case.told.shape[1], *hidden, posterior.domain.total_states)
        key = (case.key, sizes, self.learning_rate, self.batch, self.rows, self.epochs, self.train_seed)
        found = None if case.key is None else kept_of(posterior).get(key)
        n_rows = self.rows if case.joint is not None else self.batch
        network = make_network(sizes, own_rng) if found is None else copy.deepcopy(found)
        network.to(device_of(self.device))
        plan = TensorPlan((posterior if case.joint is None else case.joint).plan, self.device, "float32")
        rows = case.rows(n_rows, own_rng) if found is None else case.told
        soften = Softening(posterior.domain, device_of(self.device))
        optimizer = torch().optim.Adam(network.parameters(), lr=self.learning_rate)
        state = ItselfState(posterior, case, soften, key, own_rng, plan, rows, network, optimizer)
        if found is not None or not self.epochs or case.joint is None:
            self._begin_refining(state)
        return state

    def step(self, state: ItselfState, ledger: Ledger) -> ItselfState:
        with one_thread():
            try:
                self._advance(state, ledger)
            except torch().OutOfMemoryError:
                self._hand_over(state)
        return state

    def _advance(self, state: ItselfState, ledger: Ledger) -> None:
        """Make one training step, or score the network's answer and make one refining step."""
        if not state.is_trained:
            self._train(state)
            return
        ledger.candidates(decode(self._soft(state, state.case.told), state.posterior.domain))
        if state.n_refined >= self.refine_steps:
            state.done = True
            return
        self._descend(state, state.case.told)
        state.n_refined += 1

    def _hand_over(self, state: ItselfState) -> None:
        """Move to the CPU after the device ran out of memory; warn once."""
        state.plan.with_less(1)
        state.network.to(state.plan.device)
        state.soften = Softening(state.posterior.domain, state.plan.device)
        rate = self.refine_rate if state.is_trained else self.learning_rate
        state.optimizer = torch().optim.Adam(state.network.parameters(), lr=rate)

    def _train(self, state: ItselfState) -> None:
        """Make one step on the next rows; each pass has its own order."""
        per_pass = -(-len(state.rows) // self.batch)
        turn = state.n_trained % per_pass
        if turn == 0:
            state.rows = state.rows[state.rng.permutation(len(state.rows))]
        self._descend(state, state.rows[turn * self.batch : (turn + 1) * self.batch])
        state.n_trained += 1
        if state.n_trained == per_pass * self.epochs:
            networks = kept_of(state.posterior)
            networks[state.key] = copy.deepcopy(state.network)
            if len(networks) > MAX_KEPT:
                del networks[next(iter(networks))]  # the oldest
            self._begin_refining(state)

    def _begin_refining(self, state: ItselfState) -> None:
        """Switch to the circuit of the current query, which is conditioned on the evidence."""
        state.is_trained = True
        state.plan = TensorPlan(state.posterior.plan, str(state.plan.device), "float32")
        state.optimizer = torch().optim.Adam(state.network.parameters(), lr=self.refine_rate)

    def _soft(self, state: ItselfState, told: Floats) -> Any:
        inputs = torch().as_tensor(told, dtype=torch().float32, device=state.plan.device)
        return state.soften(state.network(inputs))

    def _descend(self, state: ItselfState, told: Floats) -> None:
        """Make one Adam step that raises the circuit's value; rows of probability 0 are left out."""
        soft = self._soft(state, told).T
        if not state.is_trained and state.case.joint is not None:
            known = torch().as_tensor(told.T, dtype=torch().float32, device=state.plan.device)
            soft = torch().cat([soft, known])
        state.optimizer.zero_grad()
        values = state.plan(soft)
        possible = values > -torch().inf
        if possible.any():
            (-values[possible].mean()).backward()
            state.optimizer.step()
