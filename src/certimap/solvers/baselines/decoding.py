"""Heuristics that decode points from the structure of a posterior: modes, max-product, beams, beliefs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from certimap.certify.ledger import Ledger, own_source
from certimap.circuits.posterior import CircuitPosterior, GuessedCircuit
from certimap.core.box import Boxes, Points
from certimap.core.control import Control
from certimap.core.posterior import Bounds, Decodes, Masses, Posterior, Probes
from certimap.core.probing import log_bounds
from certimap.solvers.base import LabelHeuristic, OnePoint, OneStep, OneStepState

if TYPE_CHECKING:
    from certimap.circuits.walks import Propagation

MAXIMA = own_source("max_product")


@dataclass(frozen=True)
class Independent(OnePoint, name="independent", needs=(Decodes | Masses,)):
    """Each query variable takes the mode of its marginal posterior.

    Two passes over the circuit, whatever the size of the query; dependence is ignored. A real variable takes the
    mean of a component, the one with the largest marginal density.
    """

    def unsuited(self, posterior: Posterior) -> str | None:
        if posterior.domain.is_discrete or isinstance(posterior, Decodes):
            return None
        return (
            f"solver {self.name!r} needs the posterior to have modes() where a variable is real, and a "
            f"{type(posterior).__name__} has not; use solver='pac'"
        )

    def point(self, posterior: Decodes | Masses) -> Points:
        return posterior.modes() if isinstance(posterior, Decodes) else modes_of(posterior)


def modes_of(posterior: Masses) -> Points:
    """Return the marginal modes of the variables, shape (1, n); ties take the first state."""
    domain = posterior.domain
    log_mass = posterior.log_mass_each(Boxes.full(domain))[0]
    point = [np.argmax(own) for own in np.split(log_mass, domain.offsets[1:-1])]
    return np.array(point, domain.point_dtype)[None, :]


@dataclass(frozen=True)
class MaxProduct(OnePoint, name="max_product", needs=(Decodes,)):
    """Decodes the most probable path through the circuit instead of the most probable assignment.

    Every sum is replaced by the maximum of its weighted children (after summing out nuisance variables); then the
    choices are followed from the root down. It is exact if each sum decides a query variable; otherwise it
    considers one component of a mixture at a time. Cost: one visit per edge.

    The value of the path is an upper bound only if no assignment reaches two children of a sum. The reported bound
    is therefore the bound of the whole space, rounded up: maxima at sums that decide a query variable, sums
    elsewhere. If every sum decides one, it equals the value of the path.
    """

    def point(self, posterior: Decodes) -> Points:
        return posterior.max_product()

    def step(self, state: OneStepState, ledger: Ledger) -> OneStepState:
        done = super().step(state, ledger)
        posterior = state.posterior
        if isinstance(posterior, Probes | Bounds):
            whole = log_bounds(posterior, Boxes.full(posterior.domain))
            ledger.upper_bound(float(whole[0]), MAXIMA)
        return done


@dataclass(frozen=True)
class PaperMaxProduct(OnePoint, name="paper_max_product", needs=(GuessedCircuit,)):
    """Max-product as published: on the original circuit, with sums over nuisance variables maximised too.

    `max_product` runs on the conditioned circuit, in which sums over nuisance variables are added up, and nested
    sums and sums over one variable are merged, so that it replaces fewer sums by maxima.
    """

    def point(self, posterior: GuessedCircuit) -> Points:
        return posterior.most_probable_path()


@dataclass(frozen=True)
class ArgmaxProduct(OnePoint, name="argmax_product", needs=(Decodes,)):
    """Keeps at every node the best of its children's assignments, scored by the node's own value.

    Never worse than max-product in a circuit with one sum; elsewhere usually better, at a higher cost: see
    `certimap.circuits.kernels.decode.argmax_upward`.
    """

    def point(self, posterior: Decodes) -> Points:
        return posterior.argmax_product()


@dataclass(frozen=True)
class BeamSearch(OneStep, name="beam", needs=(Decodes,)):
    """Argmax-product with several assignments per node; all assignments of the root are scored exactly.

    Once the time is up, the remaining sums score assignments by their largest term alone.

    `width`: assignments per node; 1 is argmax-product.
    """

    width: int = 8
    ranges = "width [1, inf)"

    def step(self, state: OneStepState, ledger: Ledger) -> OneStepState:
        control = ledger.control
        ledger.candidates(state.posterior.beam(self.width, lambda: control.should_stop))
        return replace(state, done=True)


@dataclass(frozen=True)
class PropagationState:
    """Messages, and the number of sweeps done."""

    propagation: Propagation
    n_sweeps: int = 0
    done: bool = False


@dataclass(frozen=True)
class HybridBeliefPropagation(LabelHeuristic, name="hybrid_bp", needs=(CircuitPosterior,)):
    """Message passing on the circuit as a network of binary variables (Mauá et al. 2020), decoded every sweep.

    Nuisance variables are summed out before. Query variables send mixed-product messages (Liu and Ihler 2013). The
    method is loopy and proves nothing: decoded assignments are scored exactly, and the best is reported.

    `iterations`: largest number of sweeps up and down; the published experiments make 5. `damping`: the weight of
    the old message in the mean of logs that replaces it, from 0 to below 1. `min_change`: stop when no belief
    changes by more than this many nats.
    """

    iterations: int = 5
    damping: float = 0.0
    min_change: float = 1e-6
    ranges = "iterations [1, inf); damping [0, 1); min_change [0, inf]"

    def start(self, posterior: CircuitPosterior, control: Control, rng: np.random.Generator) -> PropagationState:
        return PropagationState(posterior.propagation(self.damping))

    def step(self, state: PropagationState, ledger: Ledger) -> PropagationState:
        points, change = state.propagation.advance()
        ledger.candidates(points)
        n_sweeps = state.n_sweeps + 1
        return replace(state, n_sweeps=n_sweeps, done=n_sweeps >= self.iterations or change <= self.min_change)
