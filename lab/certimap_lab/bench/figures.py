"""What the figures of a run show, as numbers: warm starts, Pareto fronts, the schematic run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.solvers.registry import family, names
from certimap_lab.bench.paper import paper
from certimap_lab.bench.ranks import (
    Trials,
    is_certified,
    is_timeout,
    kind_of,
    log_prob_of,
    mean_and_error,
    seconds_of,
)
from certimap_lab.bench.records import Record
from certimap_lab.bench.tabular import MISSING, Cell, Table, number, significant

PARETO_DATASETS = ("baudio", "ocr_letters", "msweb")
N_TRIES = 100_000


def warm_pairs(trials: Trials, circuit: str, split: str) -> list[tuple[str, str]]:
    """Return the (warm-started method, heuristic) pairs that were both run in a split."""
    solvers = trials.solvers(circuit, split)
    pairs = [(s, s.partition("+")[2]) for s in solvers if "+" in s]
    return [(warm, heuristic) for warm, heuristic in pairs if heuristic in solvers]


def warm_start_table(trials: Trials, circuit: str, split: str, warm: str, heuristic: str) -> Table:
    """Return by how much a warm-started method improved on its start.

    The mean over queries of log2 p(warm)/p(start) per dataset, its standard error and the share of trials
    with a higher probability.
    """
    name = f"warm-start-{circuit}-{split.replace('/', '-')}-{warm.replace('+', '-from-')}"
    table = Table(
        name,
        f"{warm} over {heuristic} alone, {circuit}, split {split}",
        ("dataset", "trials", "mean log2 ratio", "standard error", "improved %", "certified %"),
    )
    everything: list[float] = []
    certified: list[bool] = []
    for dataset in trials.datasets(circuit, split):
        gains, earned = _gains(trials, circuit, split, dataset, warm, heuristic)
        if not gains:
            continue
        everything += gains
        certified += earned
        mean, error = mean_and_error(gains)
        table.add(dataset, str(len(gains)), number(mean, 4), number(error, 4), *_shares(gains, earned))
    if everything:
        mean, error = mean_and_error(everything)
        table.add("all", str(len(everything)), number(mean, 4), number(error, 4), *_shares(everything, certified))
        share = paper()["warm_start"]["share_improved"]
        table.notes.append(
            f"Published (split {paper()['warm_start']['split']}): improved in {100 * share:.0f} % of trials."
        )
    return table


def _gains(
    trials: Trials, circuit: str, split: str, dataset: str, warm: str, heuristic: str
) -> tuple[list[float], list[bool]]:
    gains: list[float] = []
    earned: list[bool] = []
    for by_solver in trials.queries[circuit, split][dataset].values():
        if warm not in by_solver or heuristic not in by_solver:
            continue
        ours, start = log_prob_of(by_solver[warm]), log_prob_of(by_solver[heuristic])
        if ours is not None and start is not None and math.isfinite(start):
            gains.append(max(0.0, ours - start) / math.log(2) if ours >= start else (ours - start) / math.log(2))
            earned.append(is_certified(by_solver[warm]))
    return gains, earned


def _shares(gains: list[float], earned: list[bool]) -> Iterator[Cell]:
    yield number(100 * sum(g > 1e-9 / math.log(2) for g in gains) / len(gains))
    yield number(100 * sum(earned) / len(earned))


def pareto_records(trials: Trials, circuit: str) -> dict[str, Record]:
    """Return, for each of the datasets shown, the first sampling trial that ended uncertified with a front."""
    found: dict[str, Record] = {}
    for dataset in PARETO_DATASETS:
        candidates = (
            record
            for split in trials.splits(circuit)
            for solver in trials.solvers(circuit, split)
            if family(solver) == "sampling"
            for record in trials.records(circuit, split, solver, dataset)
            if is_timeout(record) and len(record.get("pareto", ())) > 1
        )
        record = min(candidates, key=_front_order, default=None)
        if record is not None:
            found[dataset] = record
    return found


def _front_order(record: Record) -> tuple[bool, int, float]:
    """Budget runs first, then by method; among equals the most informative front, that is the smallest delta."""
    solver = record["solver"]
    return solver != "budget", names().index(solver), record["certificate"]["delta"]


def pareto_table(records: dict[str, Record]) -> Table:
    """Return the failure probability that the uncertified runs support at a few tolerances."""
    levels = (0.01, 0.05, 0.1, 0.25, 0.5)
    table = Table(
        "pareto",
        "Pareto fronts of uncertified runs: failure probability at a tolerance",
        ("dataset", "split", "query", "method", "draws", "ln p", *(f"ε = {e:g}" for e in levels), "paper (ε, δ)"),
    )
    for dataset, r in records.items():
        published = ", ".join(f"({e:g}, {d:g})" for e, d in paper()["pareto"].get(dataset, []))
        at = [significant(delta_at(r["pareto"], e)) for e in levels]
        table.add(
            dataset, r["split"], str(r["query"]), r["solver"], str(r["n_draws"]), number(r["log_prob"], 3), *at,
            published or MISSING,
        )  # fmt: skip
    return table


def delta_at(front: list[list[float]], epsilon: float) -> float:
    """Return the least failure probability of a front at a tolerance of at most `epsilon`; 1 without one."""
    return min((delta for e, delta in front if e <= epsilon + 1e-12), default=1.0)


def certified_seconds(trials: Trials, circuit: str) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Return, for each method that can certify, the seconds of its certified trials and the number of all."""
    seconds: dict[str, list[float]] = {}
    n_trials: dict[str, int] = {}
    for split in trials.splits(circuit):
        for solver in trials.solvers(circuit, split):
            records = trials.records(circuit, split, solver)
            if all(kind_of(r) == "heuristic" for r in records) or solver in _HEURISTICS:
                continue
            seconds.setdefault(solver, []).extend(seconds_of(r) for r in records if is_certified(r))
            n_trials[solver] = n_trials.get(solver, 0) + len(records)
    return seconds, n_trials


_HEURISTICS = ("independent", "max_product", "argmax_product")


def illustration(discovered_at: int | None = None) -> dict[str, Any]:
    """Run the purely random method on the published illustration and return its trace for `plot_schematic`.

    Sixty-four exponential draws normalised are the distribution of six binary variables: the first seed
    whose p* rounds to the published 0.104 gives it. The run is the first seed that finds the mode at the
    published draw (or at `discovered_at`), so that the certification times can be compared.
    """
    from certimap.certify.bounds import evidence_per_draw, log_delta, log_tau, published_evidence_per_draw

    figures = paper()["illustration"]
    probabilities = _illustrated_distribution(figures["n_variables"], figures["p_star"])
    mode = int(np.argmax(probabilities))
    wanted = discovered_at or figures["discovered_at"]
    result = _run_illustration(probabilities, _seed_finding(probabilities, mode, wanted), figures)
    rows = list({e.n_draws: e for e in result.history if e.n_draws > 0}.values())
    evidence = [e.n_draws * evidence_per_draw(log_tau(e.log_prob, figures["epsilon"])) for e in rows]
    tau = log_tau(math.log(probabilities[mode]), figures["epsilon"])
    needed = -math.log(figures["delta"])
    return {
        "n_draws": [e.n_draws for e in rows],
        "lower": [math.exp(e.log_prob) for e in rows],
        "upper": [math.exp(e.log_upper_bound) for e in rows],
        "delta": [math.exp(log_delta(x)) for x in evidence],
        "p_star": float(probabilities[mode]),
        "requested_delta": figures["delta"],
        "discovered_at": wanted,
        "certified_at": result.n_draws,
        "certified_at_published_rule": math.ceil(needed / published_evidence_per_draw(tau)),
        "kind": result.certificate.kind.value,
    }


def _illustrated_distribution(n: int, p_star: float) -> Any:
    for seed in range(N_TRIES):
        rng: Any = np.random.default_rng(seed)
        draws = np.asarray(rng.exponential(size=2**n), np.float64)
        probabilities: NDArray[np.float64] = draws / np.sum(draws)
        if round(float(np.max(probabilities)), 3) == p_star:
            return probabilities
    raise AssertionError("no seed gives the illustrated distribution")


def _sampled_states(probabilities: Any, seed: int, n: int) -> Any:
    return np.random.default_rng(seed).choice(len(probabilities), size=n, p=probabilities)


def _seed_finding(probabilities: Any, mode: int, wanted: int) -> int:
    """Return the first seed whose draws meet the mode at draw number `wanted` for the first time."""
    for seed in range(N_TRIES):
        if np.flatnonzero(_sampled_states(probabilities, seed, 256) == mode)[:1].tolist() == [wanted - 1]:
            return seed
    raise AssertionError("no seed finds the mode at that draw")


def _run_illustration(probabilities: Any, seed: int, figures: dict[str, Any]) -> Any:
    from certimap.core.posterior import FunctionPosterior
    from certimap.solvers.driver import run
    from certimap.solvers.request import Request
    from certimap.solvers.sampling import Pac

    n = int(figures["n_variables"])
    place = 1 << np.arange(n)
    states = iter(_sampled_states(probabilities, seed, 256).tolist() * 64)  # the first 256 are more than it needs

    def sample(count: int, _rng: np.random.Generator) -> Any:
        drawn = np.array([next(states) for _ in range(count)], np.int64)
        return ((drawn[:, None] & place) > 0).astype(np.int16)

    def log_prob(points: Any) -> Any:
        return np.log(probabilities[points.astype(np.int64) @ place])

    posterior = FunctionPosterior([2] * n, sample, log_prob)
    return run(posterior, Request(Pac(batch=1), figures["epsilon"], figures["delta"]), seed=seed)
