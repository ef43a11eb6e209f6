"""Trials by place, and competition ranks of the methods on each query."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from certimap_lab.bench.records import Record

TIE_NATS = 1e-9
LIMITS = frozenset({"time_limit", "sample_limit", "node_limit", "memory_limit", "exhausted"})


def competition_ranks(log_probs: Mapping[str, float]) -> dict[str, int]:
    """Rank methods by the probability of their answers, best 1; those within 1e-9 nats share the better rank.

    `log_probs` are natural logs; -inf is accepted and shares the last rank.
    """
    values = list(log_probs.values())
    return {name: 1 + sum(v > mine + TIE_NATS for v in values) for name, mine in log_probs.items()}


def in_order(names: Iterable[str]) -> list[str]:
    """Sort method names: those of solvers in the order of the registry, "auto", then others by name."""
    from certimap.solvers.registry import names as registered

    auto, *solvers = registered()
    known = {name: i for i, name in enumerate([*solvers, auto])}
    return sorted(set(names), key=lambda n: (known.get(n, len(known)), n))


def seconds_of(record: Record) -> float:
    """Return the seconds of a trial, conditioning and solving together."""
    return record.get("seconds_conditioning", 0.0) + record.get("seconds_solving", 0.0)


def kind_of(record: Record) -> str:
    """Return how a trial ended: exact, epsilon, pac, heuristic, limit or failed."""
    certificate = record.get("certificate")
    if certificate is None:
        return "limit" if record.get("status") == "time_limit" else "failed"
    if certificate["kind"] != "none":
        return certificate["kind"]
    return "heuristic" if record.get("status") == "heuristic" else "limit"


def is_timeout(record: Record) -> bool:
    """Whether a trial ended at a limit without the certificate asked for."""
    return kind_of(record) == "limit"


def is_certified(record: Record) -> bool:
    """Whether a trial earned the certificate asked for."""
    return kind_of(record) in ("exact", "epsilon", "pac")


def log_prob_of(record: Record) -> float | None:
    """Return ln p(answer | e), -inf for an answer of probability zero, None without an answer."""
    if "assignment" not in record:
        return None
    value = record.get("log_prob")
    return -math.inf if value is None else float(value)


@dataclass
class Trials:
    """The records of a run by circuit, split, dataset and query.

    `queries[circuit, split][dataset][index][solver]` is a record.
    """

    queries: dict[tuple[str, str], dict[str, dict[int, dict[str, Record]]]] = field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType]

    @classmethod
    def of(cls, records: Iterable[Record], solvers: Sequence[str] | None = None) -> Trials:
        """Arrange records; of two with the same name the later one counts."""
        trials = cls()
        for record in records:
            if solvers is not None and record["solver"] not in solvers:
                continue
            place = trials.queries.setdefault((record["circuit"], record["split"]), {})
            place.setdefault(record["dataset"], {}).setdefault(record["query"], {})[record["solver"]] = record
        return trials

    @property
    def circuits(self) -> list[str]:
        return list(dict.fromkeys(circuit for circuit, _ in self.queries))

    def splits(self, circuit: str) -> list[str]:
        """Return the splits of a circuit, in the usual order."""
        usual = ["20/80", "50/50", "20/50", "50/30"]
        found = [s for c, s in self.queries if c == circuit]
        return sorted(found, key=lambda s: (usual.index(s) if s in usual else len(usual), s))

    def datasets(self, circuit: str, split: str) -> list[str]:
        return sorted(self.queries.get((circuit, split), {}))

    def solvers(self, circuit: str, split: str) -> list[str]:
        """Return the methods with a record in a split, in the usual order."""
        datasets = self.queries.get((circuit, split), {}).values()
        return in_order(name for queries in datasets for by_solver in queries.values() for name in by_solver)

    def records(self, circuit: str, split: str, solver: str, dataset: str | None = None) -> list[Record]:
        """Return the records of a method, by dataset and query."""
        place = self.queries.get((circuit, split), {})
        return [
            by_solver[solver]
            for name in sorted(place)
            if dataset in (None, name)
            for _, by_solver in sorted(place[name].items())
            if solver in by_solver
        ]

    def average_ranks(self, circuit: str, split: str, dataset: str) -> dict[str, float]:
        """Return the average rank of each method that answered a query of a dataset.

        On each query those with an answer are ranked among themselves.
        """
        ranks: dict[str, list[int]] = {}
        for by_solver in self.queries[circuit, split][dataset].values():
            answers = {s: v for s, r in by_solver.items() if (v := log_prob_of(r)) is not None}
            for solver, rank in competition_ranks(answers).items():
                ranks.setdefault(solver, []).append(rank)
        return {solver: float(np.mean(values)) for solver, values in ranks.items()}


def winners(averages: Mapping[str, float]) -> set[str]:
    """Return the methods whose average rank is the best, ties included."""
    if not averages:
        return set()
    best = min(averages.values())
    return {name for name, value in averages.items() if value <= best + 1e-9}


def mean_and_error(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the mean and its standard error (None where there are too few values)."""
    if not values:
        return None, None
    mean = float(np.mean(values))
    return mean, float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None
