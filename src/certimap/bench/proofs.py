"""Proofs on trial: thousands of small ones with their alterations, and the costs of those of recorded queries."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from certimap.api import map_query, read
from certimap.bench.records import BenchError
from certimap.bench.tabular import Table
from certimap.proofs import check
from certimap.result import MapResult
from certimap.testing.proofs import ON_CIRCUITS, ON_NETWORKS, altered, failures, random_case, solved

EPSILONS = (0.0, 0.05, 0.3)
QUERY_SHARES = (0.2, 0.5, 0.9)
OBSERVED_SHARE = 0.1
Told = Callable[[str], None]


@dataclass
class Trial:
    """What the proofs of random small models came to.

    Attributes
    ----------
    n_proofs, n_altered
        How many proofs were written, and how many alterations of them were tried.
    methods
        How many proofs there were by each method.
    failing
        What went wrong, in words.
    """

    n_proofs: int = 0
    n_altered: int = 0
    methods: Counter[str] = field(default_factory=Counter[str])
    failing: list[str] = field(default_factory=list[str])


def try_models(n_models: int, seed: int = 0, tell: Told = print) -> Trial:
    """Put models number `seed` on to every solver; check their proofs as written and altered."""
    trial = Trial()
    for number in range(seed, seed + n_models):
        case, rng = random_case(number), np.random.default_rng([number, 6])
        for solver in ON_NETWORKS if number % 2 else ON_CIRCUITS:
            epsilon, delta = float(rng.choice(EPSILONS)), 0.05 if solver == "pac" else 0.0
            proof = solved(case, solver, epsilon=epsilon, delta=delta, seed=number).proof
            if proof is None:
                continue
            trial.n_proofs += 1
            trial.n_altered += sum(1 for _ in altered(proof, case, rng))
            trial.methods[proof.meta["method"]] += 1
            for text in failures(case, proof, rng):
                trial.failing.append(f"model {number}, solver {solver}: {text}")
                tell(trial.failing[-1])
    return trial


@dataclass(frozen=True)
class Cost:
    """One query: CPU seconds of solving without and with a proof, and of checking it, and the file's size."""

    group: str
    solving: float
    proving: float
    checking: float
    n_bytes: int
    text: str


Asked = tuple[str, Any, list[str], dict[str, Any]]


def learned_queries(folder: Path, n_queries: int) -> Iterator[Asked]:
    """Yield queries to learned models (`NAME-LEARNER.npz`): several shares of variables, a tenth observed."""
    files = sorted(folder.glob("*.npz"))
    if not files:
        raise BenchError(f"{folder} holds no .npz model; a folder of models of 'certimap learn' is expected")
    for file in files:
        model = read(file)
        names, rng = model.domain.names, np.random.default_rng(len(file.stem))
        for number in range(n_queries):
            order = [names[int(i)] for i in rng.permutation(len(names))]
            n_observed = max(1, int(OBSERVED_SHARE * len(names)))
            n_query = max(1, int(QUERY_SHARES[number % len(QUERY_SHARES)] * (len(names) - n_observed)))
            evidence = {name: model.domain[name].states[0] for name in order[:n_observed]}
            yield file.stem.split("-")[-1], model, order[n_observed : n_observed + n_query], evidence


def network_queries(folder: Path) -> Iterator[Asked]:
    """Yield the recorded queries of a folder with `cases.json`: by names, or positions with all else queried."""
    path = folder / "cases.json"
    if not path.is_file():
        raise BenchError(f"{folder} holds no cases.json, which names the queries")
    models: dict[str, Any] = {}
    for case in json.loads(path.read_text())["cases"]:
        if "model" in case:
            yield _by_position(read(folder / case["model"]), case["evidence"], folder.name)
            continue
        name = case["network"]
        if name not in models:
            models[name] = read(next(folder.glob(f"{name}.bif*")))
        yield "networks", models[name], case["query"], case["evidence"]


def _by_position(model: Any, evidence: dict[str, int], group: str) -> Asked:
    """Return a query for all variables that are not observed; evidence is states by position."""
    observed = {model.domain.variables[int(v)]: state for v, state in evidence.items()}
    known = {variable.name: variable.states[state] for variable, state in observed.items()}
    return group, model, [name for name in model.domain.names if name not in known], known


def weigh(queries: Iterable[Asked], time_limit: float, tell: Told = print) -> list[Cost]:
    """Solve each query without and with a proof, and check the proof; CPU seconds of one thread."""
    costs: list[Cost] = []
    for group, model, variables, evidence in queries:
        settings: dict[str, Any] = {
            "epsilon": 0.0,
            "delta": 0.0,
            "rng": 0,
            "workers": 1,
            "progress": False,
            "time_limit": time_limit,
        }
        timed = [_timed(model, variables, evidence, settings)]
        while len(timed) < 3 and timed[0][0] < 1.0:
            timed.append(_timed(model, variables, evidence, settings))
        solving, proving, result = min(t[0] for t in timed), min(t[1] for t in timed), timed[0][2]
        started = time.process_time()
        if result.proof is None:
            text, n_bytes = f"no proof: {result.no_proof}", 0
        else:
            text, n_bytes = check(model, result.proof).message, len(result.proof.to_bytes())
        costs.append(Cost(group, solving, proving, time.process_time() - started, n_bytes, text))
        if not text.startswith("accepted"):
            tell(f"{group}: {text}")
    return costs


def _timed(
    model: Any, variables: list[str], evidence: dict[str, Any], settings: dict[str, Any]
) -> tuple[float, float, MapResult]:
    """Solve a query without and with a proof; return the CPU seconds of each, and the second answer."""
    started = time.process_time()
    map_query(model, variables, evidence, **settings)
    between = time.process_time()
    result = map_query(model, variables, evidence, **settings, proof=True)
    return between - started, time.process_time() - between, result


def cost_table(costs: Sequence[Cost]) -> Table:
    """Return the costs by group: medians, and the largest of checking."""
    header = (
        "models",
        "queries",
        "proofs",
        "accepted",
        "solving (ms)",
        "with a proof (times)",
        "checking (ms)",
        "checking / solving",
        "longest check (s)",
        "file (kB)",
        "largest file (kB)",
    )
    table = Table("proofs", "Proofs of recorded queries", header)
    for group in dict.fromkeys(cost.group for cost in costs):
        mine = [cost for cost in costs if cost.group == group]
        proved = [cost for cost in mine if cost.n_bytes]
        accepted = [cost for cost in mine if cost.text.startswith("accepted")]
        if not proved:
            continue
        table.add(
            group,
            str(len(mine)),
            str(len(proved)),
            str(len(accepted)),
            f"{1e3 * median(c.solving for c in proved):.1f}",
            f"{median(c.proving / c.solving for c in proved):.2f}",
            f"{1e3 * median(c.checking for c in proved):.1f}",
            f"{median(c.checking / c.solving for c in proved):.1f}",
            f"{max(c.checking for c in proved):.1f}",
            f"{median(c.n_bytes for c in proved) / 1e3:.1f}",
            f"{max(c.n_bytes for c in proved) / 1e3:.1f}",
        )
    table.notes.append("CPU time of one thread; medians over queries, conditioning included in solving.")
    return table
