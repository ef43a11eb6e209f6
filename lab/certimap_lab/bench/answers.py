"""Answers of other programs to the benchmark's queries: scored exactly here, recorded beside the trials."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from certimap import __version__
from certimap.certify.ledger import ExternalBound, Ledger, issue
from certimap.core.domain import Label
from certimap.errors import CertimapError
from certimap.solvers.registry import names
from certimap_lab.bench.protocol import BenchQuery, Split, condition_on
from certimap_lab.bench.records import BenchError, Record, read_records
from certimap_lab.bench.trial import Task, TrialRunner

REQUIRED = ("circuit", "dataset", "split", "query", "solver", "assignment")
OPTIONAL = ("seconds", "log_upper_bound")


def read_answers(path: Path) -> list[Record]:
    """Read a file of answers, one JSON object per line.

    Each has `circuit`, `dataset`, `split` and `query` as the trials of a run name them, `solver` (the program's
    name, none of certimap's), `assignment` (one label per query variable, in the order of the trial's
    `query_variables`), and perhaps `seconds` and `log_upper_bound`, a bound on ln p(q | e) that it proved.

    Raises
    ------
    BenchError
        For a file that is absent or has a line of another form, named by its number.
    """
    if not path.is_file():
        raise BenchError(f"{path} is no file; answers are read from a file of JSON lines")
    answers = read_records(path)
    for number, answer in enumerate(answers, start=1):
        missing = [name for name in REQUIRED if name not in answer]
        unknown = [name for name in answer if name not in REQUIRED + OPTIONAL]
        if missing or unknown:
            wrong = f"lacks {missing[0]!r}" if missing else f"has {unknown[0]!r}"
            raise BenchError(f"{path}:{number}: an answer {wrong}; expected {', '.join(REQUIRED + OPTIONAL)}")
        if answer["solver"] in names():
            raise BenchError(
                f"{path}:{number}: {answer['solver']!r} is a solver of certimap; the program's name is expected"
            )
    return answers


def score_answers(path: Path, runner: TrialRunner) -> Iterator[Record]:
    """Yield a record for each answer of a file, as a trial has it.

    Raises
    ------
    BenchError
        For a query that the run has not, or an assignment that is none of its query variables.
    """
    for number, answer in enumerate(read_answers(path), start=1):
        try:
            task = Task(
                answer["dataset"], answer["circuit"], Split.parse(answer["split"]), int(answer["query"]), ()
            )
            yield _score(answer, task, runner)
        except (CertimapError, FileNotFoundError, TypeError, ValueError) as problem:
            raise BenchError(f"{path}:{number}: {problem}") from None


def _score(answer: Record, task: Task, runner: TrialRunner) -> Record:
    query: BenchQuery = runner.query(task)
    model = runner.model(task.dataset, task.circuit)
    given: list[Label] = answer["assignment"]
    if len(given) != len(query.variables):
        raise BenchError(f"the assignment has {len(given)} labels; {len(query.variables)} are expected")
    posterior = condition_on(model, query.on(model.domain), runner.settings.workers)
    settings = runner.settings
    ledger = Ledger(posterior, epsilon=settings.epsilon, delta=settings.delta)
    point = posterior.domain.encode(dict(zip(query.variables, given, strict=True)))
    if answer.get("log_upper_bound") is not None:
        bound = ExternalBound.read({"source": answer["solver"], "log_prob": answer["log_upper_bound"]})
        assert bound is not None
        ledger.upper_bound(bound.on(posterior.facts), bound.source)
    ledger.candidates(point[None, :])
    certificate = issue(ledger)
    facts = posterior.facts
    value, evidence = ledger.best_log_prob, facts.log_evidence
    log_prob = value if facts.is_normalised else None if evidence is None else value - evidence
    measured: Record = {
        "assignment": list(given),
        "log_prob": log_prob,
        "log_upper_bound": ledger.log_upper_bound if math.isfinite(ledger.log_upper_bound) else None,
        "log_evidence": evidence,
        "certificate": {
            "kind": certificate.kind.value,
            "epsilon": certificate.epsilon,
            "delta": certificate.delta,
            "rule": None if certificate.rule is None else certificate.rule.value,
            "assumptions": list(certificate.assumptions),
        },
        "status": "certified" if certificate.kind.value != "none" else "heuristic",
        "n_draws": 0,
        "n_draws_to_best": None,
        "n_evaluations": ledger.n_evaluations,
        "engine": answer["solver"],
        "n_edges": int(facts.work),
        "seconds_conditioning": 0.0,
        "seconds_solving": _seconds(answer.get("seconds")),
        "peak_memory_mib": 0.0,
        "from_elsewhere": True,
    }
    shared = {"seed": settings.seed, "requested_epsilon": settings.epsilon, "requested_delta": settings.delta}
    header = task.header(answer["solver"]) | query.to_record(model.domain)
    return header | shared | {"version": __version__} | measured


def _seconds(given: Any) -> float:
    """Return the time that a program states, 0 where it states none."""
    if given is None:
        return 0.0
    if isinstance(given, bool) or not isinstance(given, int | float) or not given >= 0.0:
        raise BenchError(f"seconds is {given!r}; a number of at least 0 is expected")
    return float(given)
