"""Every solver by name: a run that ends by itself within the epsilon asked for has its certificate."""

from __future__ import annotations

import math

import numpy as np
import pytest

import certimap as cm
from certimap.errors import CertimapError
from certimap.solvers.registry import names

GRID = (0.001, 0.01, 0.05, 0.2, 0.5)
SETTINGS = {"hbfs": {"quick_entries": 0, "max_entries": 0, "exact_work": 0}, "frontier": {"exact_work": 0}}
COMPLETE = {"auto", "frontier", "hbfs", "set_elimination", "bucket_elimination", "exhaustive", "aobb", "aobf"}


def network() -> cm.BayesianNetwork:
    rng = np.random.default_rng(3)
    labels = [f"v{i}" for i in range(12)]
    before = {labels[i]: [labels[j] for j in (i - 1, i - 3) if j >= 0] for i in range(12)}
    tables = {name: rng.dirichlet(np.ones(2), size=(2,) * len(before[name])) for name in labels}
    return cm.BayesianNetwork.from_cpts({name: [0, 1] for name in labels}, before, tables)


def density(*, is_full: bool) -> cm.GaussianMixture | cm.Circuit:
    means, weights = np.array([[0.0, 0.0], [1.5, 0.5], [0.4, -1.0]]), np.array([0.5, 0.3, 0.2])
    if is_full:
        return cm.GaussianMixture(weights, means, [[[1.0, 0.3], [0.3, 0.8]]] * 3, ["x", "y"])
    builder = cm.CircuitBuilder(cm.Domain([cm.Real("x"), cm.Real("y")]))
    parts = [
        builder.product([builder.gaussian(0, a, 0.7), builder.gaussian(1, b, 0.5)]) for a, b in means.tolist()
    ]
    builder.sum(parts, np.log(weights).tolist())
    return builder.build()


MODELS = {
    "network": (network(), None, None),
    "part of a network": (network(), ["v0", "v4", "v9"], None),
    "full covariances": (density(is_full=True), None, None),
    "circuit": (density(is_full=False), None, None),
    "interval": (density(is_full=False), None, {"x": (0.6, 0.9)}),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("solver", ["auto", *names()])
def test_epsilon_asked_is_epsilon_earned(solver: str, model: str) -> None:
    for epsilon in GRID:
        try:
            result = cm.map_query(
                *MODELS[model],
                solver=solver,
                epsilon=epsilon,
                delta=0.0,
                rng=0,
                max_samples=500,
                max_nodes=4000,
                **SETTINGS.get(solver, {}),
            )
        except CertimapError:  # a kind of model that the solver does not take
            return
        if result.certificate.kind == "none":
            sides = result.log_upper_bound, result.log_prob
            if None in sides:
                sides = result.log_joint_upper_bound, result.log_joint
            gap = sides[0] - sides[1]
            assert gap > -math.log1p(-epsilon) + 1e-9
            assert solver not in COMPLETE
