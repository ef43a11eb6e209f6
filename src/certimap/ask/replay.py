"""Records of queries for replay, and comparison of a replayed answer with the record.

A record is a result in the format of `certimap solve --json`, with the entry `asked`: the query, the evidence, all
settings, the fingerprint of the model, and the machine. Evidence is stored as state positions, so that labels of
any type survive JSON, and as the query's log weights, so that numbers are identical to the last bit.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from certimap import __version__
from certimap.ask.api import map_query
from certimap.ask.session import settled
from certimap.core.arguments import Record, is_dict, is_list
from certimap.core.constraints import constraints_of
from certimap.core.control import Limits, physical_memory
from certimap.core.domain import Categorical, Domain
from certimap.core.query import make_query
from certimap.core.result import MapResult, Status
from certimap.errors import ModelError, ParseError
from certimap.interop.networks import unroll
from certimap.io.files import AnyPath, parsed_json
from certimap.io.native import decoded_label, encoded_label, fingerprint
from certimap.solvers.request import Settings

SETTINGS = tuple(name for name in Settings.__annotations__ if name not in ("workers", "proof_bytes"))
# Times, entries that follow from compared ones, and facts about the run
NOT_COMPARED = ("seconds", "min_entropy_bits", "draws_needed", "asked", "version", "history", "explanation")
_OBJECTS = ("evidence", "settings", "machine")
_PACKAGES = ("numpy", "numba", "scipy")
_CUT_SHORT = (Status.TIME_LIMIT, Status.INTERRUPTED, Status.MEMORY_LIMIT)


def asked(
    model: Any,
    variables: Sequence[str] | str | None,
    evidence: Any,
    settings: Settings,
    *,
    model_fingerprint: str | None = None,
    file: str | None = None,
) -> Record:
    """Return the record of a query to `map_query`, ready for JSON.

    `settings` has the keywords that are not defaults, and the solver's own settings as `options`. `file` is the
    model's file, for people; replaying uses the fingerprint, which is computed unless it is given.
    """
    domain: Domain = model.domain
    return {
        **({} if file is None else {"file": file}),
        "model": fingerprint(model) if model_fingerprint is None else model_fingerprint,
        "do": {n: encoded_label(x, n) for n, x in domain.interventions.items()},
        "query": None if variables is None else [variables] if isinstance(variables, str) else list(variables),
        "evidence": written_evidence(domain, settled(model, evidence, Limits())),
        "settings": {
            name: _written_starts(domain, value)
            if name == "warm_start"
            else [constraint.to_dict() for constraint in constraints_of(value)]
            if name == "constraints"
            else value
            for name in SETTINGS
            if (value := settings.get(name)) is not None
        },
        "machine": machine(),
    }


def machine() -> Record:
    """Return properties of the machine that may change last digits or the choice of a method."""
    facts: Record = {"processor": _processor(), "memory": physical_memory()}
    facts |= {"certimap": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            facts[package] = version(package)
    return facts


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def written_evidence(domain: Domain, evidence: Any) -> Record:
    """Return evidence by name: a position, positions, log weights (None for -inf), a value or an interval."""
    query = make_query(domain, None, evidence)
    written: Record = {}
    for i, variable in enumerate(domain):
        if not isinstance(variable, Categorical):
            if i in query.values:
                written[variable.name] = {"value": query.values[i]}
            elif i in query.intervals:
                written[variable.name] = {"interval": [_or_none(x) for x in query.intervals[i]]}
            continue
        weights = query.log_weights[domain.offsets[i] : domain.offsets[i + 1]]
        kept = np.flatnonzero(weights > -math.inf)
        if i in query.observed:
            written[variable.name] = {"state": int(kept[0]), "label": str(variable.states[kept[0]])}
        elif np.all(weights[kept] == 0.0):
            if len(kept) < len(weights):
                labels = [str(variable.states[k]) for k in kept]
                written[variable.name] = {"states": kept.tolist(), "labels": labels}
        else:
            written[variable.name] = {"log_weights": [_or_none(w) for w in weights.tolist()]}
    return written


def _or_none(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _written_starts(domain: Domain, given: Any) -> list[Any]:
    """Return warm starts: names of solvers, and assignments by position."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, Mapping):
        return [written_evidence(domain, given)]
    if is_list(given):
        return [start for item in given for start in _written_starts(domain, item)]
    raise ModelError(
        f"a warm start of the type {type(given).__name__} cannot be recorded; names of solvers and mappings from "
        "names to labels can"
    )


def read_records(path: AnyPath) -> list[Record]:
    """Return the records of a file of `certimap solve --json`; raises ParseError for anything else."""
    held = parsed_json(path)
    records: list[Any] = held if is_list(held) else [held]
    for number, record in enumerate(records, 1):
        _check_record(record, path, f"answer {number}")
    return records


def _check_record(record: Any, path: AnyPath, what: str) -> None:
    """Refuse a record that is not an answer, or lacks the query."""
    entries: Record = record if is_dict(record) else {}
    if "error" in entries and "message" in entries:
        return  # a case that failed
    if not isinstance(entries.get("certificate"), dict) or not isinstance(entries.get("status"), dict):
        raise ParseError(f"{what} is no result; expected what 'certimap solve --json' writes", path)
    if not isinstance(entries.get("asked"), dict):
        raise ParseError(f"{what} does not say what was asked ('asked'), so that it cannot be replayed", path)
    how: Record = entries["asked"]
    kinds: Record = {"model": str, "query": (list, type(None))} | dict.fromkeys(_OBJECTS, dict)
    wrong = [name for name, kind in kinds.items() if name not in how or not isinstance(how[name], kind)]
    wrong += [] if is_dict(how.get("do", {})) else ["do"]
    wrong += [] if "settings" in wrong else [name for name in how["settings"] if name not in SETTINGS]
    if wrong or not isinstance(entries.get("seed"), int):
        raise ParseError(f"{what} has a damaged entry {(wrong or ['seed'])[0]!r} of what was asked", path)


def read_evidence(domain: Domain, written: Record) -> Record:
    """Convert recorded evidence, or evidence with {"likelihood": weights} by state, for `map_query`."""
    evidence: Record = {}
    form: Any
    for name, form in written.items():
        variable = domain[name]
        try:
            kind, content = next(iter(form.items()))
            if isinstance(variable, Categorical):
                evidence[name] = _read_states(variable, kind, content)
            elif kind == "value":
                evidence[name] = float(content)
            else:
                low, high = content
                evidence[name] = (-math.inf if low is None else low, math.inf if high is None else high)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, StopIteration):
            raise ModelError(f"the evidence {form!r} does not fit the variable {name!r}") from None
    return evidence


def _read_states(variable: Categorical, kind: str, content: Any) -> Any:
    if kind == "state":
        return variable.states[_position(variable, content)]
    if kind == "states":
        return {"states": [variable.states[_position(variable, k)] for k in content]}
    if kind == "likelihood":
        return {kind: [float(w) for w in content]}
    if kind == "log_weights":
        return {"log_likelihood": [-math.inf if w is None else float(w) for w in content]}
    raise KeyError(kind)


def _position(variable: Categorical, k: Any) -> int:
    if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k < variable.n_states:
        raise ValueError
    return k


@dataclass(frozen=True)
class Replay:
    """The result of replaying a recorded query."""

    result: MapResult  # the new answer
    differences: list[str] = field(default_factory=list[str])  # sentences: the recorded value and the new value
    # sentences: possible causes of differences, such as another version or processor
    notes: list[str] = field(default_factory=list[str])

    @property
    def same(self) -> bool:
        """Whether everything but times equals the record."""
        return not self.differences


def replay(
    model: Any,
    record: Record,
    *,
    workers: int | None = None,
    time_limit: float | None = None,
    model_fingerprint: str | None = None,
) -> Replay:
    """Run a recorded query again, with its seed and settings, and compare everything but times.

    `record` is one answer of `certimap solve --json`. The answer does not depend on `workers`; `time_limit`
    (seconds) replaces the recorded limit. Raises ModelError when the model is not the recorded one.
    """
    how = record["asked"]
    own = fingerprint(model) if model_fingerprint is None else model_fingerprint
    if own != how["model"] and how.get("steps"):  # the record is of a sequence
        model = unroll(model, how["steps"])
        own = fingerprint(model)
    if own != how["model"] and how.get("do"):  # the record is of this model after interventions
        model = model.do({name: decoded_label(x) for name, x in dict(how["do"]).items()})
        own = fingerprint(model)
    if own != how["model"]:
        raise ModelError(f"the record is of another model: its fingerprint is {how['model']}, this one's is {own}")
    settings: Record = dict(how["settings"])
    options = settings.pop("options", {})
    if "warm_start" in settings:
        starts = settings["warm_start"]
        settings["warm_start"] = [s if isinstance(s, str) else read_evidence(model.domain, s) for s in starts]
    settings |= {} if time_limit is None else {"time_limit": time_limit}
    evidence = read_evidence(model.domain, how["evidence"])
    result = map_query(model, how["query"], evidence, rng=record["seed"], workers=workers, **settings, **options)
    return Replay(result, _differences(record, json.loads(result.to_json())), _notes(record, result))


def _differences(then: Record, now: Record, place: str = "") -> list[str]:
    """Return a sentence for each entry that differs."""
    found: list[str] = []
    for name in dict.fromkeys((*then, *now)):
        if not place and name in NOT_COMPARED:
            continue
        old, new = then.get(name), now.get(name)
        if is_dict(old) and is_dict(new):
            found += _differences(old, new, f"{place}{name}.")
        elif old != new:
            found.append(f"{place}{name} was {_shown(old)} and is {_shown(new)}")
    return found


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _notes(record: Record, result: MapResult) -> list[str]:
    """Return possible causes of differences: version, machine, and runs that a limit cut short."""
    then, here = record["asked"].get("machine", {}), machine()
    changed = [name for name in dict.fromkeys((*then, *here)) if then.get(name) != here.get(name)]
    notes = [f"{name} was {then.get(name)} and is {here.get(name)}" for name in changed]
    code = record["status"]["code"]
    cut = record.get("note") or (code if code in _CUT_SHORT else None)
    if cut is not None:
        notes.append(f"the recorded run was cut short ({cut}); how far it came by then is the machine's doing")
    elif result.note is not None or result.status in _CUT_SHORT:
        cut = result.note or result.status.value
        notes.append(f"this run was cut short ({cut}); a larger time limit lets it come as far")
    return notes
