"""Posteriors of one's own, models that went through a file, and files whose numbers no float holds."""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap import io
from certimap.core.arguments import is_list, is_set
from certimap.core.domain import Domain
from certimap.core.posterior import FunctionPosterior
from certimap.errors import ModelError
from certimap.networks import BayesianNetwork
from certimap.networks.network import Network
from certimap_lab.hostile import circuits, networks
from certimap_lab.hostile.case import HostileCase, choose_evidence, choose_query
from certimap_lab.hostile.exact import Exact, from_logs
from certimap_lab.hostile.numbers import log_vector, pick_style, shuffled
from certimap_lab.hostile.oracles import factor_truth
from certimap_lab.hostile.truth import TableTruth

CIRCUITS = (
    circuits.leaf,
    circuits.sizes,
    circuits.mixture,
    circuits.shared,
    circuits.structured,
    circuits.gaussian,
)
NETWORKS = (networks.naive_bayes, networks.chain, networks.bayesian, networks.markov, networks.hidden_tree)


def function(rng: np.random.Generator) -> HostileCase:
    """A sampler and an oracle: a table, or so many coins that every point lies below e^-700."""
    if rng.random() < 0.75:
        sizes = rng.integers(2, 4, int(rng.integers(1, 6))).tolist()
        logs = _normalised(log_vector(rng, math.prod(sizes), pick_style(rng)))
        parts = [(tuple(range(len(sizes))), from_logs(logs).reshape(sizes))]
        model = _FunctionsOf(sizes, logs).posterior()
    else:
        n = int(rng.integers(900, 1300))
        heads = float(rng.choice([0.5, 0.52, 0.6]))
        sizes = [2] * n
        logs = np.log([1.0 - heads, heads])
        coin = from_logs(logs)
        parts = [((v,), coin) for v in range(n)]
        model = _FunctionsOf(sizes, logs, n).posterior()
    return HostileCase(model, None, None, TableTruth(sizes, parts))


def _normalised(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    top = float(logs.max())
    return logs - (top + math.log(float(np.exp(logs - top).sum())))


class _FunctionsOf:
    """Draws from, and scores by, one joint table, or coins that are all alike, given as logs of probabilities."""

    def __init__(self, sizes: list[int], logs: NDArray[np.float64], n_coins: int = 0) -> None:
        self._sizes, self._logs, self._n_coins = sizes, logs, n_coins

    def posterior(self) -> FunctionPosterior:
        return FunctionPosterior(self._sizes, self.sample, self.log_prob)

    def sample(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        if not self._n_coins:
            probs = np.exp(self._logs)
            flat = rng.choice(len(probs), n, p=probs / probs.sum())
            return np.stack(np.unravel_index(flat, tuple(self._sizes)), axis=1).astype(np.int64)
        return (rng.random((n, self._n_coins)) < math.exp(self._logs[1])).astype(np.int64)

    def log_prob(self, points: NDArray[Any]) -> NDArray[np.float64]:
        if not self._n_coins:
            rows = np.asarray(points, np.int64)
            return self._logs[np.ravel_multi_index(tuple(rows.T), tuple(self._sizes))]
        heads = np.asarray(points).sum(axis=1, dtype=np.int64)
        return heads * self._logs[1] + (self._n_coins - heads) * self._logs[0]


def round_trip(rng: np.random.Generator) -> HostileCase:
    """A model of another family, written to a file and read again."""
    generators = CIRCUITS if rng.random() < 0.4 else NETWORKS
    case = generators[int(rng.integers(len(generators)))](rng)
    suffix = ".npz"
    if generators is CIRCUITS and rng.random() < 0.5:
        suffix = ".spn"
    if isinstance(case.model, Network) and rng.random() < 0.7:
        suffix = ".bif" if isinstance(case.model, BayesianNetwork) and rng.random() < 0.3 else ".uai"
    try:
        again = _through_file(case.model, suffix)
    except ModelError as error:
        if suffix == ".npz":
            raise
        return replace(case, refusal=error)
    if again.domain.n_states.tolist() != case.model.domain.n_states.tolist():
        again = _through_file(case.model, ".npz")  # a text circuit knows no state that has no weight
    names = dict(zip(case.model.domain.names, again.domain.names, strict=True))
    query = [names[name] for name in case.query or []]
    evidence = {names[name]: _relabelled(value, suffix) for name, value in (case.evidence or {}).items()}
    return replace(case, model=again, query=query, evidence=evidence)


def _through_file(model: Any, suffix: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"model{suffix}"
        io.write(model, path)
        return io.read(path)


def _relabelled(value: Any, suffix: str) -> Any:
    """Return evidence with the labels that a file gives back: a BIF file's are text."""
    if suffix != ".bif" or is_list(value):
        return value
    return {str(s) for s in value} if is_set(value) else str(value)


def text(rng: np.random.Generator) -> HostileCase:
    """A UAI file whose numbers are decimal text, from 1e-2000 to 1e2000."""
    n = int(rng.integers(1, 5))
    domain = Domain.of_sizes(rng.integers(2, 4, n).tolist())
    scopes = [tuple(shuffled(rng, n)[: int(rng.integers(1, min(n, 2) + 1))]) for _ in range(n + 2)]
    reach = int(rng.choice([20, 320, 330, 420, 2000]))
    factors: list[tuple[tuple[int, ...], Exact]] = []
    lines = ["MARKOV", str(n), " ".join(map(str, domain.n_states.tolist())), str(len(scopes))]
    lines += [" ".join(map(str, (len(scope), *scope))) for scope in scopes]
    for scope in scopes:
        shape = [int(domain.n_states[v]) for v in scope]
        words = [_word(rng, reach) for _ in range(math.prod(shape))]
        words[int(rng.integers(len(words)))] = f"1e{int(rng.integers(-reach, reach))}"
        table = np.empty(len(words), np.object_)
        table[:] = [Decimal(word) for word in words]
        factors.append((scope, table.reshape(shape)))
        lines += [str(len(words)), " ".join(words)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.uai"
        path.write_text("\n".join(lines) + "\n")
        model = io.read(path)
    query = choose_query(rng, domain)
    evidence = choose_evidence(rng, domain, query)
    return HostileCase(model, query, evidence, factor_truth(domain, factors, query, evidence))


def _word(rng: np.random.Generator, reach: int) -> str:
    """Return a decimal number as text, sometimes 0."""
    if rng.random() < 0.1:
        return "0"
    return f"{rng.uniform(1.0, 10.0):.17g}e{int(rng.integers(-reach, reach + 1))}"
