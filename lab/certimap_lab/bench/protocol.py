"""The queries of the Twenty Datasets benchmark: random partitions and random possible evidence.

After the experiments of "Probably Approximately Correct Maximum A Posteriori Inference": variables are
divided at random into query, evidence and nuisance; evidence values are drawn at random.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from certimap.core.domain import Domain, Label
from certimap.core.query import Query, make_query
from certimap.errors import ImpossibleEvidence
from certimap_lab.bench.records import BenchError, Record

if TYPE_CHECKING:
    from certimap.core.posterior import Capability, Posterior

N_TRIES = 10  # random evidence is redrawn this often before it is sampled from the model


@dataclass(frozen=True)
class Split:
    """Shares of query and evidence variables, in percent; the rest is summed out."""

    query: int
    evidence: int

    @property
    def name(self) -> str:
        return f"{self.query}/{self.evidence}"

    @property
    def title(self) -> str:
        rest = 100 - self.query - self.evidence
        return f"{self.query} % Q, {self.evidence} % E" + (f", {rest} % V" if rest else "")

    def sizes(self, n: int) -> tuple[int, int]:
        """Return the numbers of query and evidence variables among n; at least one is queried."""
        n_query = max(1, round(n * self.query / 100))
        if self.query + self.evidence == 100:
            return n_query, n - n_query
        return n_query, min(n - n_query, round(n * self.evidence / 100))

    @classmethod
    def parse(cls, text: str) -> Split:
        """Read a split like "20/80"; raise BenchError for anything else."""
        parts = text.strip().split("/")
        if len(parts) == 2 and all(p.strip().isdigit() for p in parts):
            query, evidence = (int(p) for p in parts)
            if query >= 1 and query + evidence <= 100:
                return cls(query, evidence)
        raise BenchError(
            f"{text!r} is no split; expected QUERY/EVIDENCE in percent with QUERY >= 1 and a sum of at most 100"
        )


@dataclass(frozen=True)
class BenchQuery:
    """One query of the benchmark, by names and labels; the same for every solver.

    `source` is "random" when the evidence was drawn uniformly, "row" when it is a test row's, and "sampled" when
    every try was impossible and it was sampled from the model instead; `n_redraws` counts the impossible tries.
    """

    variables: tuple[str, ...]
    evidence: dict[str, Label]
    source: str
    n_redraws: int

    def on(self, domain: Domain) -> Query:
        """Return the query over a model's domain."""
        return make_query(domain, self.variables, self.evidence)

    def to_record(self, domain: Domain) -> Record:
        """Return the query as positions and labels, in short form for JSON."""
        return {
            "query_variables": [domain.index(v) for v in self.variables],
            "evidence": [[domain.index(v) for v in self.evidence], list(self.evidence.values())],
            "evidence_source": self.source,
            "n_redraws": self.n_redraws,
        }

    @classmethod
    def from_record(cls, record: Record, domain: Domain) -> BenchQuery:
        """Rebuild the query of a record, to replay it."""
        positions: list[int] = record["evidence"][0]
        values: list[Any] = record["evidence"][1]
        names = domain.names
        evidence = {names[i]: domain.variables[i].parse(str(x)) for i, x in zip(positions, values, strict=True)}
        queried: list[int] = record["query_variables"]
        variables = tuple(names[i] for i in queried)
        return cls(variables, evidence, record["evidence_source"], record["n_redraws"])


def stream(seed: int, dataset: str, split: Split, index: int, purpose: str) -> np.random.SeedSequence:
    """Return the seed of one purpose of one query; the same in every process and on every machine."""
    words = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") for text in (dataset, purpose)]
    return np.random.SeedSequence([seed, *words, split.query, split.evidence, index])


def solver_seed(seed: int, dataset: str, split: Split, index: int) -> int:
    """Return the seed that every solver gets on one query, below 2^32."""
    return int(stream(seed, dataset, split, index, "solver").generate_state(1)[0])


def draw_query(
    model: Any, seed: int, dataset: str, split: Split, index: int, rows: NDArray[np.integer] | None = None
) -> BenchQuery:
    """Draw query number `index` of a dataset and split.

    The partition depends on the arguments other than the model alone, and so does the evidence unless
    it is impossible under the model. Evidence is uniform, or that of one
    of the `rows`, shape (n_rows, n_variables).

    Raises
    ------
    BenchError
        When the model has a continuous variable, which the protocol does not cover.
    """
    domain: Domain = model.domain
    if not domain.is_discrete:
        raise BenchError(f"the model of {dataset!r} has a continuous variable; the benchmark is on discrete ones")
    order = np.random.default_rng(stream(seed, dataset, split, index, "partition")).permutation(len(domain))
    n_query, n_evidence = split.sizes(len(domain))
    queried = sorted(int(i) for i in order[:n_query])
    observed = sorted(int(i) for i in order[n_query : n_query + n_evidence])
    variables = tuple(domain.names[i] for i in queried)
    rng = np.random.default_rng(stream(seed, dataset, split, index, "evidence"))
    for n_redraws in range(N_TRIES):
        if rows is None:
            point = rng.integers(0, domain.n_states[observed])
        else:
            point = rows[rng.integers(len(rows)), observed]
        source = "random" if rows is None else "row"
        query = BenchQuery(variables, _labels(domain, observed, point), source, n_redraws)
        if is_possible(model, query):
            return query
    return BenchQuery(variables, _sample_evidence(model, observed, rng), "sampled", N_TRIES)


def is_possible(model: Any, query: BenchQuery) -> bool:
    """Whether the evidence has a positive probability under the model."""
    try:
        condition_on(model, query.on(model.domain))
    except ImpossibleEvidence:
        return False
    return True


def condition_on(
    model: Any, query: Query, workers: int = 1, wants: Sequence[Capability] | None = None
) -> Posterior:
    """Return the posterior of a query (imports the engine on first use)."""
    from certimap.conversions import condition
    from certimap.core.control import Limits

    return condition(model, query, wants=wants, limits=Limits(workers=workers))


def _sample_evidence(model: Any, observed: list[int], rng: np.random.Generator) -> dict[str, Label]:
    domain: Domain = model.domain
    from certimap.core.posterior import Draws

    posterior = condition_on(model, make_query(domain, [domain.names[i] for i in observed]), wants=(Draws,))
    assert isinstance(posterior, Draws)
    return posterior.domain.decode(posterior.sample(1, rng)[0])


def _labels(domain: Domain, observed: list[int], point: Any) -> dict[str, Label]:
    return domain.subset(observed).decode(point)
