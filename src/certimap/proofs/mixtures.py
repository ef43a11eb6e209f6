"""Proofs of mixtures over real variables: runs the checker's own search before the proof is handed out."""

from __future__ import annotations

import numpy as np

from certimap.checker import Proof, Verdict, check_arrays
from certimap.checker.budget import CheckBudget
from certimap.circuits.circuit import Circuit, NodeKind
from certimap.circuits.leaves import leaf_kind
from certimap.core.model import Model
from certimap.core.query import Query
from certimap.core.result import MapResult
from certimap.densities.gaussian_mixture import GaussianMixture
from certimap.densities.linear_gaussian import LinearGaussianNetwork
from certimap.io.native import exported

NORMALS = (GaussianMixture, LinearGaussianNetwork)


def is_smooth(model: Circuit, query: Query, result: MapResult) -> bool:
    """Whether a circuit may be proved as a mixture: its query has curved densities, and no counts."""
    if query.query_domain.is_discrete or result.certificate.delta > 0.0:
        return False
    kinds = model.kind[np.isin(model.leaf_var, query.variables) & (model.kind < NodeKind.PRODUCT)]
    kinds = kinds[kinds != NodeKind.CATEGORICAL]
    poisson, geometric, uniform = (leaf_kind(name)[0] for name in ("poisson", "geometric", "uniform"))
    return not np.any(np.isin(kinds, [poisson, geometric])) and bool(np.any(kinds != uniform))


def refused(model: Model, query: Query, result: MapResult) -> str | None:
    """Return why an answer to a mixture of Gaussians has no proof, or None."""
    if result.certificate.delta > 0.0:
        return "of a mixture of Gaussians what holds for certain is proved; ask with delta=0"
    if result.top is not None and len(result.top) > 1:
        return "a proof covers one answer of a mixture of Gaussians; leave top_k out"
    if set(query.intervals) - set(query.variables.tolist()):
        return "the checker knows no masses of intervals of Gaussians with covariances; query their variables"
    return None


def checked_here(model: Model, proof: Proof, seconds: float) -> Verdict:
    """Run the checker's search, which will take as long when the proof is checked."""
    kind, variables, arrays, hidden = exported(model)
    return check_arrays(kind, variables, arrays, proof, hidden=hidden, budget=CheckBudget.starting_now(seconds))
