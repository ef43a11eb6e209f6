"""ITSELF: a network maps evidence to soft answers, trained by the circuit's own value, and refined per query."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.posterior import CircuitPosterior
from certimap.circuits.tensors import device_of, is_installed, torch
from certimap.core.control import Limits
from certimap.core.posterior import Capability, Posterior
from certimap.errors import SolverError
from certimap.solvers.base import Effort
from certimap.solvers.guess import Heuristic

if TYPE_CHECKING:
    from certimap.certify.ledger import Ledger
    from certimap.circuits.tensors import TensorPlan
    from certimap.core.box import Boxes
    from certimap.core.control import Control
    from certimap.solvers.baselines.soft_network import Softening, TrainingCase


@dataclass(eq=False)
class ItselfState:
    """A network in training: its data, the progress of training and refining, and whether it is done."""

    posterior: CircuitPosterior
    case: TrainingCase
    soften: Softening
    key: Any
    rng: np.random.Generator
    plan: TensorPlan
    rows: NDArray[np.float64]
    network: Any
    optimizer: Any
    n_trained: int = 0
    n_refined: int = 0
    is_trained: bool = False
    done: bool = False


@dataclass(frozen=True)
class Itself(Heuristic):
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

    name: ClassVar[str] = "itself"
    needs: ClassVar[tuple[Capability, ...]] = (CircuitPosterior,)

    def __post_init__(self) -> None:
        sizes, passes = (self.batch, self.rows, *(self.hidden or ())), (self.epochs, self.refine_steps)
        if min(sizes) < 1 or min(passes) < 0:
            raise SolverError(
                f"hidden={self.hidden}, batch={self.batch}, rows={self.rows}, epochs={self.epochs}, "
                f"refine_steps={self.refine_steps}; expected positive numbers, and epochs and steps of at least 0"
            )
        if not (self.learning_rate > 0.0 and self.refine_rate > 0.0):
            raise SolverError(
                f"learning_rate={self.learning_rate!r}, refine_rate={self.refine_rate!r}; expected more than 0"
            )

    def unsuited(self, posterior: Posterior) -> str | None:
        """Refuse real variables, and say what to install."""
        if not is_installed():
            return "solver 'itself' needs PyTorch (pip install 'certimap[torch]'); use solver='beam'"
        if not posterior.domain.is_discrete:
            return "solver 'itself' needs categorical query variables; use solver='frontier'"
        device_of(self.device)
        return None

    def effort(self, state: ItselfState) -> Effort:
        return Effort(work=state.n_trained + state.n_refined)

    def init(
        self, posterior: CircuitPosterior, control: Control, rng: np.random.Generator, boxes: Boxes | None = None
    ) -> ItselfState:
        from certimap.circuits.tensors import TensorPlan
        from certimap.solvers.baselines import soft_network

        self.refuse_boxes(boxes)
        case = soft_network.TrainingCase.of(posterior, Limits(workers=posterior.workers, control=control))
        own_rng = np.random.default_rng(self.train_seed)
        hidden = self.hidden or soft_network.published_sizes(self._n_variables(posterior))
        sizes = (case.told.shape[1], *hidden, posterior.domain.total_states)
        key = (case.key, sizes, self.learning_rate, self.batch, self.rows, self.epochs, self.train_seed)
        found = None if case.key is None else soft_network.kept(posterior, key)
        n_rows = self.rows if case.joint is not None else self.batch
        network = soft_network.make_network(sizes, own_rng) if found is None else copy.deepcopy(found)
        network.to(device_of(self.device))
        state = ItselfState(
            posterior,
            case,
            soft_network.Softening(posterior.domain, device_of(self.device)),
            key,
            own_rng,
            TensorPlan((posterior if case.joint is None else case.joint).plan, self.device, "float32"),
            case.rows(n_rows, own_rng) if found is None else case.told,
            network,
            torch().optim.Adam(network.parameters(), lr=self.learning_rate),
        )
        if found is not None or not self.epochs or case.joint is None:
            self._begin_refining(state)
        return state

    @staticmethod
    def _n_variables(posterior: CircuitPosterior) -> int:
        return len(posterior.domain if posterior.origin is None else posterior.origin[1].domain)

    def step(self, state: ItselfState, ledger: Ledger) -> ItselfState:
        from certimap.solvers.baselines.soft_network import one_thread

        with one_thread():
            try:
                self._advance(state, ledger)
            except torch().OutOfMemoryError:
                self._hand_over(state)
        return state

    def _advance(self, state: ItselfState, ledger: Ledger) -> None:
        """Make one training step, or score the network's answer and make one refining step."""
        from certimap.solvers.baselines.soft_network import decode

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
        from certimap.solvers.baselines.soft_network import Softening

        state.plan.with_less(1)
        state.network.to(state.plan.device)
        state.soften = Softening(state.posterior.domain, state.plan.device)
        rate = self.refine_rate if state.is_trained else self.learning_rate
        state.optimizer = torch().optim.Adam(state.network.parameters(), lr=rate)

    def _train(self, state: ItselfState) -> None:
        """Make one step on the next rows; each pass has its own order."""
        from certimap.solvers.baselines.soft_network import keep

        per_pass = -(-len(state.rows) // self.batch)
        turn = state.n_trained % per_pass
        if turn == 0:
            state.rows = state.rows[state.rng.permutation(len(state.rows))]
        self._descend(state, state.rows[turn * self.batch : (turn + 1) * self.batch])
        state.n_trained += 1
        if state.n_trained == per_pass * self.epochs:
            keep(state.posterior, state.key, copy.deepcopy(state.network))
            self._begin_refining(state)

    def _begin_refining(self, state: ItselfState) -> None:
        """Switch to the circuit of the current query, which is conditioned on the evidence."""
        from certimap.circuits.tensors import TensorPlan

        state.is_trained = True
        state.plan = TensorPlan(state.posterior.plan, str(state.plan.device), "float32")
        state.optimizer = torch().optim.Adam(state.network.parameters(), lr=self.refine_rate)

    def _soft(self, state: ItselfState, told: NDArray[np.float64]) -> Any:
        inputs = torch().as_tensor(told, dtype=torch().float32, device=state.plan.device)
        return state.soften(state.network(inputs))

    def _descend(self, state: ItselfState, told: NDArray[np.float64]) -> None:
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
