"""Other libraries on the same queries, each in a process with limits of its own; their answers are scored here.

None of them is needed: one that is not installed is left out, with a sentence. Those that know no time limit
are ended when theirs is over.
"""

from __future__ import annotations

import importlib
import importlib.util
import resource
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from certimap.errors import CertimapError
from certimap_lab.bench.machine import peak_memory_mib, reset_peak_memory
from certimap_lab.bench.network_cases import NetworkCase, load_network
from certimap_lab.bench.records import BenchError, Record

READING = 120.0  # seconds beyond the time limit to start, import (pgmpy: 25 on a busy machine) and read
I_BOUND, ITERATIONS = 10, 10  # of pygms's weighted mini-buckets


class Unsuited(Exception):
    """A peer cannot be asked this query; the text says why."""


@dataclass(frozen=True)
class PeerAnswer:
    """What a peer says: positions of states by name, seconds, and an upper bound in nats if it has one.

    `proved` is whether it holds its answer for the best, whatever its bound.
    """

    assignment: Mapping[str, int]
    seconds: float
    proved: bool
    log_upper_bound: float | None = None


@dataclass(frozen=True)
class Asked:
    """A query as every peer gets it: the network, its file, names, and positions of the evidence."""

    model: Any
    case: NetworkCase
    query: tuple[str, ...]
    evidence: dict[str, int]
    time_limit: float | None
    max_memory: int

    @property
    def is_mpe(self) -> bool:
        return len(self.query) + len(self.evidence) == len(self.model.domain)


def _pgmpy(asked: Asked) -> PeerAnswer:
    """VariableElimination.map_query."""
    readwrite: Any = importlib.import_module("pgmpy.readwrite")
    inference: Any = importlib.import_module("pgmpy.inference")
    with _plain_bif(asked) as path:
        model = readwrite.BIFReader(string=path.read_text()).get_model()
    index = asked.model.domain.index
    evidence = {f"v{index(name)}": f"s{k}" for name, k in asked.evidence.items()}
    queried = [f"v{index(name)}" for name in asked.query]
    started = time.perf_counter()
    found: Mapping[str, Any] = inference.VariableElimination(model).map_query(
        queried, evidence=evidence, show_progress=False
    )
    seconds = time.perf_counter() - started
    return PeerAnswer({name: int(found[f"v{index(name)}"][1:]) for name in asked.query}, seconds, True)


def _pyagrum(asked: Asked) -> PeerAnswer:
    """LazyPropagation: mpe(), or the largest entry of the joint posterior."""
    gum: Any = importlib.import_module("pyagrum")
    with _plain_bif(asked) as path:
        model = gum.loadBN(str(path))
    index = asked.model.domain.index
    engine = gum.LazyPropagation(model)
    for name, k in asked.evidence.items():
        engine.addEvidence(f"v{index(name)}", f"s{k}")
    queried = {f"v{index(name)}" for name in asked.query}
    started = time.perf_counter()
    if asked.is_mpe:
        point: Any = engine.mpe()
    else:
        engine.addJointTarget(queried)
        engine.makeInference()
        best, _ = engine.jointPosterior(queried).argmax()
        point = best[0]
    seconds = time.perf_counter() - started
    labels = {name: model.variable(f"v{index(name)}").label(int(point[f"v{index(name)}"])) for name in asked.query}
    return PeerAnswer({name: int(label[1:]) for name, label in labels.items()}, seconds, True)


def _pygms(asked: Asked) -> PeerAnswer:
    """Weighted mini-buckets (i-bound 10, 10 passes), decoded; gives an upper bound."""
    graphs: Any = importlib.import_module("pygms")
    wmb: Any = importlib.import_module("pygms.wmb")
    sizes = asked.model.domain.n_states
    observed = {asked.model.domain.index(name): k for name, k in asked.evidence.items()}
    variables = {i: graphs.Var(i, int(sizes[i])) for i in range(len(sizes))}
    factors: list[Any] = []
    for factor in asked.model.factors:
        table = factor.table[tuple(observed.get(i, slice(None)) for i in factor.scope)]
        scope = [i for i in factor.scope if i not in observed]
        kept = [variables[i] for i in sorted(scope)]
        factors.append(graphs.Factor(kept, np.transpose(table, np.argsort(scope)) if scope else float(table)))
    started = time.perf_counter()
    model = graphs.GraphModel(factors)
    queried = {asked.model.domain.index(name) for name in asked.query}
    priority = [1 if i in queried else 0 for i in range(model.nvar)]
    order, _ = graphs.eliminationOrder(model, "minfill", priority=priority)
    weights = [1e-8 if i in queried else 1.0 for i in range(model.nvar)]
    solver = wmb.WMB(model, elimOrder=order, iBound=I_BOUND, weights=weights)
    bounds: list[float] = []
    for _ in range(ITERATIONS):
        bounds.append(float(solver.msgForward(0.5, 0.1)))
        solver.msgBackward(0.5, 0.1)
    bounds.append(float(solver.msgForward(0.0, 0.0)))
    point = {int(variable): int(k) for variable, k in solver.assignBackward().items()}
    seconds = time.perf_counter() - started
    answer = {asked.model.domain.names[i]: point.get(i, 0) for i in queried}
    constant = sum(float(np.log(f.table)) for f in factors if not len(f.vars))  # it leaves constants out
    return PeerAnswer(answer, seconds, False, min(bounds) + constant)


def _toulbar2(asked: Asked) -> PeerAnswer:
    """toulbar2, as the solver `toulbar2` calls it: on what evidence and the removal of barren parts leave."""
    if not asked.is_mpe:
        raise Unsuited("toulbar2 answers MPE queries only")
    import certimap

    domain = asked.model.domain
    evidence = {name: domain[name].states[k] for name, k in asked.evidence.items()}
    started = time.perf_counter()
    result = certimap.map_query(
        asked.model,
        None,
        evidence,
        solver="toulbar2",
        epsilon=0.0,
        delta=0.0,
        time_limit=asked.time_limit,
        max_memory=asked.max_memory,
        progress=False,
        rng=0,
    )
    seconds = time.perf_counter() - started
    if result.log_joint is None:
        raise Unsuited(f"toulbar2 found no assignment ({result.status.value})")
    answer = {name: int(domain[name].index(label)) for name, label in result.assignment.items()}
    return PeerAnswer(answer, seconds, result.certificate.kind.value == "exact", result.log_joint_upper_bound)


@dataclass(frozen=True)
class Peer:
    """Another library: the module to import, what to install, and how it is asked."""

    module: str
    package: str
    ask: Callable[[Asked], PeerAnswer]


PEERS: dict[str, Peer] = {
    "pgmpy": Peer("pgmpy", "pgmpy", _pgmpy),
    "pyagrum": Peer("pyagrum", "pyagrum", _pyagrum),
    "pygms": Peer("pygms", "pygms", _pygms),
    "toulbar2": Peer("pytoulbar2", "pytoulbar2", _toulbar2),
}


def installed_peers(names: tuple[str, ...]) -> tuple[tuple[str, ...], list[str]]:
    """Return those of the peers named that are installed, and a sentence for each that is not.

    Raises
    ------
    BenchError
        For a name that is no peer.
    """
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise BenchError(f"{unknown[0]!r} is no peer; expected {', '.join(PEERS)}")
    found = tuple(name for name in names if importlib.util.find_spec(PEERS[name].module) is not None)
    missing = [
        f"{name} is left out: it is not installed (pip install {PEERS[name].package})"
        for name in names
        if name not in found
    ]
    return found, missing


class PeerServer:
    """Asks peers in a process of its own, which may hold `max_memory` bytes."""

    def __init__(self, max_memory: int | None, time_limit: float | None) -> None:
        self._max_memory = max_memory or 2**62
        self._time_limit = time_limit
        self._loaded: tuple[str, Any] | None = None
        with suppress(ValueError, OSError):
            if max_memory is not None:
                resource.setrlimit(resource.RLIMIT_AS, (max_memory, max_memory))

    def __call__(self, job: Any, part: Any) -> Record:
        case: NetworkCase = job
        if self._loaded is None or self._loaded[0] != case.network:
            self._loaded = (case.network, load_network(case))
        model = self._loaded[1]
        domain = model.domain
        evidence = {name: int(domain[name].index(_label(domain[name], x))) for name, x in case.evidence.items()}
        query = case.query or tuple(name for name in domain.names if name not in evidence)
        asked = Asked(model, case, query, evidence, self._time_limit, self._max_memory)
        reset_peak_memory()
        try:
            answer = PEERS[part].ask(asked)
        except Exception as problem:  # whatever a peer raises is its result
            kind = "" if isinstance(problem, Unsuited) else f"{type(problem).__name__}: "
            sentence = " ".join(str(problem).split())[:200]
            return {"error": kind + (sentence or "no reason given"), "unsuited": isinstance(problem, Unsuited)}
        return {
            "log_joint": score(asked, answer.assignment),
            "log_joint_upper_bound": answer.log_upper_bound,
            "peer_proves": answer.proved,
            "seconds": round(answer.seconds, 6),
            "peak_memory_mib": round(peak_memory_mib(), 1),
        }


def _label(variable: Any, given: Any) -> Any:
    return variable.parse(given) if isinstance(given, str) else given


def score(asked: Asked, assignment: Mapping[str, int]) -> float | None:
    """Return ln p(query, evidence) of an answer by our own tables, in nats; None where it cannot be computed."""
    import certimap

    domain = asked.model.domain
    positions = {**assignment, **asked.evidence}
    if asked.is_mpe:
        point = np.array([[positions[name] for name in domain.names]], domain.point_dtype)
        return float(asked.model.log_joint(point)[0])
    try:
        return certimap.log_evidence(asked.model, {n: domain[n].states[k] for n, k in positions.items()})
    except (CertimapError, MemoryError):
        return None


@contextmanager
def _plain_bif(asked: Asked) -> Generator[Path]:
    """Write the network as BIF with the names v0, v1, ... and states s0, s1, ..., which every reader takes."""
    from certimap import io
    from certimap.core.domain import Categorical, Domain
    from certimap.networks.bayesian import BayesianNetwork

    model = asked.model
    if not isinstance(model, BayesianNetwork):
        raise Unsuited("it answers on Bayesian networks only")
    variables = [
        Categorical(f"v{i}", tuple(f"s{k}" for k in range(n))) for i, n in enumerate(model.domain.n_states)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.bif"
        io.write(BayesianNetwork(Domain(variables), model.factors), path)
        yield path
