"""A run without compilation gives the answers, bounds and certificates of a compiled one, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys

import numba
import pytest

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="is that run")

QUERIES = """
import numpy as np, certimap as cm
from certimap.testing.models import random_circuit, random_network
rng = np.random.default_rng(3)
domain = cm.Domain.of_sizes([2, 3, 2, 2, 3, 2])
roots = rng.normal(size=(3, 2, 2))
spread = roots @ roots.transpose(0, 2, 1) + np.eye(2)
mixture = cm.GaussianMixture([0.2, 0.3, 0.5], rng.normal(size=(3, 2)), spread)
chain = cm.hidden_markov_model(*(rng.dirichlet(np.ones(3), size) for size in (None, 3, 3)), steps=6)
edges = [(i, i + 1) for i in range(16) if (i + 1) % 4] + [(i, i + 4) for i in range(12)]
grid = cm.MarkovNetwork(cm.Domain.of_sizes([2] * 16), [cm.Factor(e, rng.gamma(1.0, size=(2, 2))) for e in edges])
asked = (["0", "3", "5"], {"1": 2})
for model, (variables, evidence), solvers in (
    (random_network(rng, domain), asked, "auto frontier smooth_pac set_elimination wmb aobb full_width"),
    (random_circuit(rng, domain), asked, "auto frontier pac smooth_pac argmax_product beam"),
    (mixture, (None, None), "auto frontier"),
    (chain, (None, {"symbol0": 1}), "auto frontier set_elimination"),
    (grid, (None, None), "auto hbfs aobf ijgp"),
):
    for solver in solvers.split():
        limits = {"max_nodes": 50, "max_samples": 300}
        found = cm.map_query(model, variables, evidence, solver=solver, rng=0, progress=False, **limits)
        numbers = (found.log_joint, found.log_joint_upper_bound, found.log_evidence)
        print(solver, found.assignment, *(x if x is None else x.hex() for x in numbers), found.certificate.kind)
"""


def test_a_run_without_compilation_is_the_same():
    def answers(**environment):
        command = [sys.executable, "-c", QUERIES]
        done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=600)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    compiled = answers()
    assert len(compiled) == 22
    assert answers(NUMBA_DISABLE_JIT="1") == compiled
