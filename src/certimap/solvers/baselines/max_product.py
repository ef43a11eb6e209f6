"""Max-product: replace sums by maxima on the way up, follow the choices on the way down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from certimap.certify.ledger import Ledger
from certimap.certify.sources import own_source
from certimap.circuits.guess import GuessedCircuit
from certimap.core.box import Boxes, Points
from certimap.core.posterior import Bounds, Capability, Decodes
from certimap.solvers.guess import OnePoint, OneStepState

MAXIMA = own_source("max_product")


@dataclass(frozen=True)
class MaxProduct(OnePoint):
    """Decodes the most probable path through the circuit instead of the most probable assignment.

    Every sum is replaced by the maximum of its weighted children (after summing out nuisance variables); then the
    choices are followed from the root down. It is exact if each sum decides a query variable; otherwise it
    considers one component of a mixture at a time. Cost: one visit per edge.

    The value of the path is an upper bound only if no assignment reaches two children of a sum. The reported bound
    is therefore the bound of the whole space, rounded up: maxima at sums that decide a query variable, sums
    elsewhere. If every sum decides one, it equals the value of the path.
    """

    name: ClassVar[str] = "max_product"
    needs: ClassVar[tuple[Capability, ...]] = (Decodes,)

    def point(self, posterior: Decodes) -> Points:
        return posterior.max_product()

    def step(self, state: OneStepState, ledger: Ledger) -> OneStepState:
        done = super().step(state, ledger)
        posterior = state.posterior
        if isinstance(posterior, Bounds):
            ledger.upper_bound(float(posterior.log_bound(Boxes.full(posterior.domain))[0]), MAXIMA)
        return done


@dataclass(frozen=True)
class PaperMaxProduct(OnePoint):
    """Max-product as published: on the original circuit, with sums over nuisance variables maximised too.

    `max_product` runs on the conditioned circuit, in which sums over nuisance variables are added up, and nested
    sums and sums over one variable are merged, so that it replaces fewer sums by maxima.
    """

    name: ClassVar[str] = "paper_max_product"
    needs: ClassVar[tuple[Capability, ...]] = (GuessedCircuit,)

    def point(self, posterior: GuessedCircuit) -> Points:
        return posterior.most_probable_path()
